"""Four samples of a question of the tiny data, of which the first is right in all and the second in nothing."""

from forage.extras.testtime.best_of import candidates
from tests.scripted_engine import run, turns

BAD_QUERY, BAD_ANSWER = "weather", "Thunder, lightning, umbrella."


def script(question):
    """What is said: sample 2 finds the right passage and answers badly, sample 3 the other way round."""
    good = question.question.removesuffix("?")
    return turns(
        {
            "0": (good, question.answer), "1": (BAD_QUERY, BAD_ANSWER), "2": (good, BAD_ANSWER),
            "3": (BAD_QUERY, question.answer),
        }
    )  # fmt: skip


def passages(question):
    [chunk] = question.relevant_chunk_ids
    return {
        question.question.removesuffix("?"): {chunk: f"{question.question} {question.answer} And rest."},
        BAD_QUERY: {"x#0": "Rain is expected in the north."},
    }


def samples_of(question, protocol, count=4):
    """Real episodes of the agent's."""

    async def several(agent, asked, seed):
        return await candidates(agent, asked, range(count), seed)

    return run(several, protocol, script(question), passages(question), question)[0]
