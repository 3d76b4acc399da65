"""Four samples of a question of the tiny data, of which the first is right in all and the second in nothing."""

import json

import torch

from forage.agent.options import AgentSettings, write_agent
from forage.evaluation.preference.card import ScorerCard, write_scorer
from forage.evaluation.preference.features import PRODUCTS, SCALARS
from forage.evaluation.preference.model import Head
from forage.evaluation.strategies.best_of_n import candidates
from tests.scripted_engine import run, turns
from tests.word_embedder import WordEmbedder

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


def finish_evaluation(out, tiny):
    """What evaluate.py writes beside outcomes, for the tiny policy under the name `warm` and an embedder of words."""
    write_agent(AgentSettings(), out)
    (out / "config.json").write_text(json.dumps({"data": str(tiny / "data"), "split": "eval"}))
    (out / "eval.json").write_text(json.dumps({"embedder": "words"}))
    policy = {"source": str(tiny / "policy"), "adapter": "v000000"}
    (out / "policies.json").write_text(json.dumps({"warm": policy}))


def likes_passages(folder):
    """A scorer that prefers answers like their passages, which only the good sample has."""
    head = Head(len(SCALARS) + 16 * len(PRODUCTS), 1, 0)
    with torch.no_grad():
        head.hidden.weight.zero_()
        head.hidden.weight[0, SCALARS.index("answer_passage_max")] = 1
        head.hidden.bias.fill_(3)  # where the activation rises
        head.out.weight.fill_(1)
    card = ScorerCard("words", "", 16, 1, 0, {}, {}, {}, {}, {})
    write_scorer(folder, card, head, WordEmbedder().probe())
    return folder
