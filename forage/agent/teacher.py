"""Teacher: plays demonstrations. It knows the answers, but searches for real, in the agent's own loop and protocol."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile

from forage.agent.agent import Agent, BatchedSearch, SearchMany, distinct, searched_for
from forage.agent.builder import Found
from forage.agent.episode import Episode
from forage.agent.options import AgentSettings, TeacherOptions
from forage.agent.plan_trials import Trial, choose_plans, first_relevant, topic_of, try_templates
from forage.agent.planning import write_plan
from forage.agent.protocol import Passage, Protocol, write_answer, write_call
from forage.agent.telling_words import IDLE
from forage.agent.thoughts import as_shown, before_answer, before_next_query, before_query, with_thoughts
from forage.data.records import Question
from forage.engines.base import Engine, Request, Sample
from forage.metrics import reciprocal_rank
from forage.text import most_parts

FOCUS = "\0"  # stands for what a question is about
SENTENCE = re.compile(r"(?<=[.!?])\s+")
Guess = Callable[[Question, random.Random], str | None]
"""What the answer to a question may say; None for how it really begins."""


def queries_of(question: Question) -> list[str]:
    """Queries that might find the answer, the most specific first.

    Example: "What are the symptoms of gout?", focus "Gout", type "symptoms" gives "Gout symptoms", "symptoms gout",
    "Gout", and the question itself.
    """
    words = re.findall(r"[\w'-]+", question.question)
    telling = " ".join(word for word in words if word.lower() not in IDLE)
    kind = "" if question.question_type in ("", "information") else question.question_type
    candidates = [f"{question.focus} {kind}", telling, question.focus, question.question]
    return [query for query in dict.fromkeys(" ".join(candidate.split()) for candidate in candidates) if query]


def body_of(answer: str) -> str:
    """An answer without its leading headings, which repeat the question; all of it if it is only headings.

    Example: "What is gout? A joint hurts." gives "A joint hurts.".
    """
    sentences = SENTENCE.split(" ".join(answer.split()))
    body = list(dropwhile(lambda sentence: sentence.endswith("?"), sentences))
    return " ".join(body or sentences)


def first_words(answer: str, words: int) -> str:
    """The first words of an answer, after its headings. Example: "What is gout? A joint hurts.", 2 words: "A joint"."""
    return " ".join(body_of(answer).split()[:words])


def beginnings(questions: Iterable[Question], words: int, most: int = 1) -> dict[str, list[str]]:
    """By question type, how answers begin, the most frequent first, with FOCUS in place of their subject.

    At most `most` of them: the first, and any others that several answers share. Example: most "prevention" answers
    begin "To avoid gout, drink"; "causes" answers, "Gout is caused by".
    """
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for question in questions:
        body = body_of(question.answer)
        if question.focus:
            body = re.sub(re.escape(question.focus), FOCUS, body, flags=re.IGNORECASE)
        counts[question.question_type][" ".join(body.split()[:words])] += 1
    ranked = {kind: several.most_common(most) for kind, several in counts.items()}
    return {kind: [b for place, (b, n) in enumerate(several) if n > 1 or not place] for kind, several in ranked.items()}


def best_beginnings(
    questions: Sequence[Question], words: int, search_many: SearchMany, question_weight: int, seed: int,
    most: int = 6, tried_on: int = 100,
) -> dict[str, str]:  # fmt: skip
    """By question type, the common beginning (of `words` words, half or a quarter as many) that finds answers best.

    Judged by mean reciprocal rank on up to `tried_on` questions of the type: the most frequent need not be the best.
    """
    lengths = sorted({max(1, words // part) for part in (1, 2, 4)}, reverse=True)
    candidates = [beginnings(questions, length, most) for length in lengths]
    of_type = defaultdict(list)
    for question in questions:
        of_type[question.question_type].append(question)
    draw, best = random.Random(seed), {}
    for kind, several in of_type.items():
        tried = draw.sample(several, min(tried_on, len(several)))
        found = {
            beginning: mean_reciprocal_rank(tried, [guess_of(q, words, question_weight, beginning) for q in tried],
                                            search_many, question_weight)
            for beginning in dict.fromkeys(one for of_length in candidates for one in of_length[kind])
        }  # fmt: skip
        best[kind] = max(found, key=found.__getitem__)
    return best


def mean_reciprocal_rank(
    questions: Sequence[Question], queries: Sequence[str], search_many: SearchMany, question_weight: int
) -> float:
    """Example: found at rank 1, at rank 2 and not at all: (1 + 1/2 + 0) / 3 = .5."""
    texts = [searched_for(q, query, question_weight) for q, query in zip(questions, queries, strict=True)]
    found = [[hit.chunk_id for hit in hits] for hits in search_many(texts)]
    return sum(map(reciprocal_rank, found, [q.relevant_chunk_ids for q in questions])) / len(questions)


def guess_of(question: Question, words: int, question_weight: int = 0, beginning: str | None = None) -> str:
    """The question followed by a guess at how its answer begins, as in query2doc (https://arxiv.org/abs/2303.07678).

    Empty without `words`. Where the search repeats the question anyway (`question_weight`), the guess stands alone.
    The policy can't know an answer's words, but it can learn how such answers are phrased, and a search for that phrase
    finds them. `beginning` is such a phrase, from `beginnings`; without one, the guess is how this very answer begins.
    Example: "What is gout?", answer "What is gout? A joint hurts and swells.", 3 words: "What is gout? A joint hurts".
    """
    if not words:
        return ""
    asked = [] if question_weight else question.question.split()
    said = first_words(question.answer, words) if beginning is None else beginning.replace(FOCUS, question.focus)
    return " ".join([*asked, said]).strip()


def short_answer(answer: str, count: Callable[[str], int], most: int) -> str:
    """The first sentences of an answer that fit into `most` tokens, or its first words if no sentence fits."""
    for parts in (SENTENCE.split(" ".join(answer.split())), SENTENCE.split(" ".join(answer.split()))[0].split()):
        fitting = most_parts(parts, count, most)
        if fitting:
            return " ".join(parts[:fitting])
    return " ".join(answer.split()[:1])


def readable(answer: str, passage: str) -> str:
    """The sentences of an answer that the passage contains, or the whole answer if it contains none.

    This way the teacher answers from what it found. Example: "It hurts. Rest helps." with "Gout: Rest helps. [cut"
    gives "Rest helps."
    """
    sentences = SENTENCE.split(" ".join(answer.split()))
    return " ".join([sentence for sentence in sentences if sentence in passage] or sentences)


def choose_queries(
    ranks: Mapping[str, int | None], choose: random.Random, guess: str = "", steady: bool = False
) -> list[str] | None:
    """The teacher's queries, given the rank at which each candidate finds an answering chunk; None if all fail.

    The teacher picks a query with the best rank and prefers the guess among equals (with `steady`, whenever the guess
    finds the answer at all). For a tenth of the questions a failing query comes first, to show the policy that it may
    search again. (If that share is a third, a small model learns to search endlessly.)
    """
    good = {query: rank for query, rank in ranks.items() if rank is not None}
    bad = [query for query, rank in ranks.items() if rank is None]
    if not good:
        return None
    best = [query for query, rank in good.items() if rank == min(good.values())]
    query = guess if guess in (good if steady else best) else choose.choice(best)
    return [choose.choice(bad), query] if bad and choose.random() < 0.1 else [query]


class Teacher(Engine):
    """An engine that recites given lines, so that the agent's loop plays demonstrations just as it plays rollouts."""

    adapter = "teacher"

    def __init__(self, protocol: Protocol, turns: Mapping[str, Sequence[str]]) -> None:
        self._protocol = protocol
        self._left = {episode: list(texts) for episode, texts in turns.items()}

    async def generate(self, request: Request) -> Sample:
        text, opening = self._left[request.episode].pop(0), self._protocol.call_opening
        begun = request.ids[-len(opening) :] == opening  # --force-search
        ids = self._protocol.call_rest_ids(text) if begun else self._protocol.turn_ids(text)
        if len(ids) > request.max_tokens:
            return Sample(tuple(ids[: request.max_tokens]), (0.0,) * request.max_tokens, "length")
        return Sample(tuple(ids), (0.0,) * len(ids), "stop")

    def release(self, episode: str) -> None:
        self._left.pop(episode)


async def demonstrate(
    questions: Sequence[Question], search_many: SearchMany, protocol: Protocol, settings: AgentSettings,
    teacher: TeacherOptions, seed: int, guess: Guess | None = None,
) -> list[Episode]:  # fmt: skip
    """Play a well-formed episode for each question that one of the teacher's queries can answer.

    Where the agent has templates, a plan with one of them is preferred to a query that finds the answer no higher.
    `guess` says what an answer may say; without it, a guess is how this answer begins.
    """
    choose = random.Random(seed)
    guesses = draw_guesses(questions, settings.question_weight, teacher, guess, choose)
    hits_of = search_candidates(questions, guesses, search_many, settings.question_weight)
    trials_of = try_templates(questions, settings, search_many)
    scripts, expected = {}, {}
    for question, guessed in zip(questions, guesses, strict=True):
        hits = hits_of[question.id]
        ranks = {query: first_relevant(found, question) for query, found in hits.items()}
        best = min((rank for rank in ranks.values() if rank), default=None)
        if plans := choose_plans(trials_of[question.id], best, choose, settings.max_calls):
            topic = protocol.harmless(topic_of(question))
            steps = [plan_step(topic, plan) for plan in plans]
        else:
            queries = choose_queries(ranks, choose, guessed, steady=guess is not None) or []
            steps = [query_step(protocol.harmless(query), hits[query]) for query in queries]
        if steps and (len(steps) < settings.max_turns or len(steps) == settings.max_turns == 1):
            scripts[question] = write_turns(question, steps, protocol, settings, teacher)
            expected[question] = [tuple(hit.chunk_id for hit in each) for step in steps for each in step.found]
    turns = {f"{question.id}/0": script for question, script in scripts.items()}
    agent = Agent(Teacher(protocol, turns), protocol, BatchedSearch(search_many), settings)
    played = [(question, await agent.play(question)) for question in scripts]
    return [
        episode
        for question, episode in played
        if episode.well_formed
        # A query that had to be made harmless may find something else than what the thoughts quote.
        and (not teacher.thought_words or [search.hits for search in episode.searches] == expected[question])
    ]


@dataclass(frozen=True)
class Step:
    """A turn of the teacher that searches."""

    call: str
    sought: str
    """What it searches for, as a thought says it."""
    found: tuple[Sequence[Found], ...]
    """What each of its searches finds."""

    @property
    def shown(self) -> list[Found]:
        return distinct(self.found)


def query_step(query: str, found: Sequence[Found]) -> Step:
    return Step(write_call(query), query, (found,))


def plan_step(topic: str, plan: Sequence[Trial]) -> Step:
    """Example: templates "signs" and "cure" and topic "gout" search for "signs, cure of gout", as a thought says."""
    names = [trial.template for trial in plan]
    return Step(write_plan(topic, names), f"{', '.join(names)} of {topic}", tuple(trial.hits for trial in plan))


def write_turns(
    question: Question, steps: Sequence[Step], protocol: Protocol, settings: AgentSettings, teacher: TeacherOptions
) -> list[str]:
    """The turns of an episode with these searches, of which only the last step's find the answer."""
    acts, words = [step.call for step in steps], teacher.thought_words
    found = [step.shown for step in steps]
    thoughts = [
        before_query(protocol.harmless(question.question), steps[0].sought, words),
        *map(before_next_query, found, [step.sought for step in steps[1:]]),
    ]
    if settings.max_turns > 1:
        rank = first_relevant(found[-1], question) or 0
        hit = found[-1][rank - 1]
        answer = read_out(question, hit, protocol, teacher.answer_tokens)
        if not words:
            return [*acts, f"Passage {rank} answers this.\n{write_answer(answer)}"]
        acts.append(write_answer(answer))
        thoughts.append(before_answer(rank, as_shown(hit, protocol), answer))
    return with_thoughts(question.question, acts, thoughts, found, words, protocol, settings)


def draw_guesses(
    questions: Sequence[Question], question_weight: int, teacher: TeacherOptions, guess: Guess | None,
    choose: random.Random,
) -> list[str]:  # fmt: skip
    """The guess for each question, empty where a random draw against `guess_share` says to go without."""
    guesses = []
    for question in questions:
        words = teacher.guess_words if choose.random() < teacher.guess_share else 0
        said = guess(question, choose) if guess and words else None
        guesses.append(guess_of(question, words, question_weight, said))
    return guesses


def search_candidates(
    questions: Sequence[Question], guesses: Sequence[str], search_many: SearchMany, question_weight: int
) -> dict[str, dict[str, Sequence[Found]]]:
    """By question id, what each of its candidate queries finds. All are searched in one batch, without duplicates."""
    texts = {
        question.id: {
            query: searched_for(question, query, question_weight) for query in [*queries_of(question), guess] if query
        }
        for question, guess in zip(questions, guesses, strict=True)
    }
    distinct = sorted({text for text_of in texts.values() for text in text_of.values()})
    found = dict(zip(distinct, search_many(distinct), strict=True))
    return {name: {query: found[text] for query, text in text_of.items()} for name, text_of in texts.items()}


def read_out(question: Question, hit: Found, protocol: Protocol, answer_tokens: int) -> str:
    """The answer, as the passage shows it."""
    # As harmless as the passage: what the policy learns to write must hold no turn that the reference forges.
    answer = readable(protocol.harmless(body_of(question.answer)), protocol.show([Passage(hit.title, hit.text)]))
    return short_answer(answer, lambda text: len(protocol.turn_ids(text)), answer_tokens)


def accepted(episode: Episode, question: Question, similarity: Callable[[str, str], float], least: float) -> bool:
    """Rejection sampling: is this episode worth learning from?"""
    found = bool(set(episode.hits) & set(question.relevant_chunk_ids))
    return episode.well_formed and found and similarity(episode.answer, question.answer) >= least
