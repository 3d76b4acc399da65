"""Demonstrations: episodes a teacher plays with gold data, through the real search, in the agent's own protocol."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import dropwhile
from pathlib import Path

from forage.agent.agent import Agent, BatchedSearch, Found, SearchMany, searched_for
from forage.agent.episode import Episode
from forage.agent.options import Limits
from forage.agent.protocol import Passage, Protocol, write_answer, write_call
from forage.data.records import Question
from forage.engines.base import Request, Sample
from forage.metrics import reciprocal_rank

# Words that a question has and a query does not need.
IDLE = frozenset(
    (
        "a an and are as be by can could do does for from has have how i if in is it many me much my of on or should "
        "tell that the there they this to was what when where which who why will with would you your"
    ).split()
)
FOCUS = "\0"  # stands for what a question is about
SENTENCE = re.compile(r"(?<=[.!?])\s+")


def queries_of(question: Question) -> list[str]:
    """Queries one could look for the answer by, the most telling first.

    Example: "What are the symptoms of gout?", focus "Gout", type "symptoms" gives "Gout symptoms", "symptoms gout",
    "Gout", and the question itself.
    """
    words = re.findall(r"[\w'-]+", question.question)
    telling = " ".join(word for word in words if word.lower() not in IDLE)
    kind = "" if question.question_type in ("", "information") else question.question_type
    candidates = [f"{question.focus} {kind}", telling, question.focus, question.question]
    return [query for query in dict.fromkeys(" ".join(candidate.split()) for candidate in candidates) if query]


def body_of(answer: str) -> str:
    """An answer without the headings it begins with, which say the question again; all of it if it is only headings.

    Example: "What is gout? A joint hurts." gives "A joint hurts.".
    """
    sentences = SENTENCE.split(" ".join(answer.split()))
    told = list(dropwhile(lambda sentence: sentence.endswith("?"), sentences))
    return " ".join(told or sentences)


def first_words(answer: str, words: int) -> str:
    """How an answer begins, after its headings. Example: "What is gout? A joint hurts.", 2 words: "A joint"."""
    return " ".join(body_of(answer).split()[:words])


def beginnings(questions: Iterable[Question], words: int, most: int = 1) -> dict[str, list[str]]:
    """How the answers to questions of each type begin, the most frequent first, with FOCUS for what they are about.

    Of `most` of them those that several answers share, and the first. Example: most answers of type "prevention" begin
    "To avoid gout, drink"; of type "causes", "Gout is caused by".
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
    """Of each type's common beginnings of so many words, a half, a quarter, the one that finds answers best.

    By the mean reciprocal rank over some of the type's questions: what is frequent need not be telling.
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
    """Example: found at place 1, at place 2 and not at all: (1 + 1/2 + 0) / 3 = .5."""
    texts = [searched_for(q, query, question_weight) for q, query in zip(questions, queries, strict=True)]
    found = [[hit.chunk_id for hit in hits] for hits in search_many(texts)]
    return sum(map(reciprocal_rank, found, [q.relevant_chunk_ids for q in questions])) / len(questions)


def guess_of(question: Question, words: int, question_weight: int = 0, beginning: str | None = None) -> str:
    """The question and a guess how its answer begins, as in query2doc, https://arxiv.org/abs/2303.07678; or nothing.
    The question is left to the search where that has it already.

    The policy can't know an answer's words, but it can learn how answers to such questions are put, which finds them.
    A `beginning` is such a way, of `beginnings`; without one the guess is how the answer itself begins.
    Example: "What is gout?", answer "What is gout? A joint hurts and swells.", 3 words: "What is gout? A joint hurts".
    """
    if not words:
        return ""
    asked = [] if question_weight else question.question.split()
    said = first_words(question.answer, words) if beginning is None else beginning.replace(FOCUS, question.focus)
    return " ".join([*asked, said]).strip()


def short_answer(answer: str, count: Callable[[str], int], most: int) -> str:
    """The first sentences of an answer that fit into `most` tokens; of a first one too long, its first words."""
    sentences = SENTENCE.split(" ".join(answer.split()))
    for number in range(len(sentences), 0, -1):
        text = " ".join(sentences[:number])
        if count(text) <= most:
            return text
    words = sentences[0].split()
    while len(words) > 1 and count(" ".join(words)) > most:
        words.pop()
    return " ".join(words)


def readable(answer: str, passage: str) -> str:
    """The sentences of an answer that a passage shows; all of them where it shows none.

    So the teacher reads out what was found. Example: "It hurts. Rest helps." with "Gout: Rest helps. [cut" gives
    "Rest helps."
    """
    sentences = SENTENCE.split(" ".join(answer.split()))
    return " ".join([sentence for sentence in sentences if sentence in passage] or sentences)


def plan(
    ranks: Mapping[str, int | None], choose: random.Random, guess: str = "", steady: bool = False
) -> list[str] | None:
    """The teacher's queries, given at which place each candidate finds a chunk that answers; None if none does.

    One that finds it best, the guess if it does (or, `steady`, if it finds it at all), and for a tenth of the questions
    where another one does not find it, first that one: so the policy sees that it may search again. (At a third, a
    small model learns to search on and on.)
    """
    good = {query: rank for query, rank in ranks.items() if rank is not None}
    bad = [query for query, rank in ranks.items() if rank is None]
    if not good:
        return None
    best = [query for query, rank in good.items() if rank == min(good.values())]
    query = guess if guess in (good if steady else best) else choose.choice(best)
    return [choose.choice(bad), query] if bad and choose.random() < 0.1 else [query]


class Teacher:
    """An engine that says what it was told to, for the agent's loop to play: so demonstrations are like rollouts."""

    adapter = "teacher"

    def __init__(self, protocol: Protocol, turns: Mapping[str, Sequence[str]]) -> None:
        self._protocol = protocol
        self._left = {episode: list(texts) for episode, texts in turns.items()}

    async def generate(self, request: Request) -> Sample:
        ids = self._protocol.turn_ids(self._left[request.episode].pop(0))
        if len(ids) > request.max_tokens:
            return Sample(tuple(ids[: request.max_tokens]), (0.0,) * request.max_tokens, "length")
        return Sample(tuple(ids), (0.0,) * len(ids), "stop")

    async def load_adapter(self, name: str, folder: Path) -> None:
        raise NotImplementedError("a teacher has no adapter")

    def release(self, episode: str) -> None:
        self._left.pop(episode)


async def demonstrate(
    questions: Sequence[Question], search_many: SearchMany, protocol: Protocol, limits: Limits, answer_tokens: int,
    seed: int, guess_words: int = 0, guess_share: float = 1.0, question_weight: int = 0,
    typical: Mapping[str, str] | None = None,
) -> list[Episode]:  # fmt: skip
    """A well-formed episode that finds the answer for each question where a query does."""
    choose = random.Random(seed)
    guesses = {
        q.id: guess_of(
            q, guess_words if choose.random() < guess_share else 0, question_weight,
            (typical or {}).get(q.question_type),
        )
        for q in questions
    }  # fmt: skip
    texts = {  # of each question's candidate queries, what is searched for
        q.id: {
            query: searched_for(q, query, question_weight) for query in filter(None, [*queries_of(q), guesses[q.id]])
        }
        for q in questions
    }
    distinct = sorted({text for of_query in texts.values() for text in of_query.values()})
    found = dict(zip(distinct, search_many(distinct), strict=True))
    turns, played = {}, []
    for question in questions:
        hits = {query: found[text] for query, text in texts[question.id].items()}
        ranks = {query: first_relevant(several, question) for query, several in hits.items()}
        searches = plan(ranks, choose, guesses[question.id], steady=typical is not None)
        if searches and len(searches) < limits.max_turns:
            place = ranks[searches[-1]] or 0
            hit = hits[searches[-1]][place - 1]
            answer = readable(body_of(question.answer), protocol.show([Passage(hit.title, hit.text)]))
            answer = short_answer(answer, lambda text: len(protocol.turn_ids(text)), answer_tokens)
            last = f"Passage {place} answers this.\n{write_answer(answer)}"
            turns[f"{question.id}/0"] = [*map(write_call, searches), last]
            played.append(question)
    agent = Agent(
        Teacher(protocol, turns), protocol, BatchedSearch(search_many), limits, question_weight=question_weight
    )
    episodes = [await agent.play(question) for question in played]
    return [episode for episode in episodes if episode.well_formed]


def first_relevant(hits: Iterable[Found], question: Question) -> int | None:
    """Place, from 1, of the first hit that answers the question."""
    relevant = set(question.relevant_chunk_ids)
    return next((place for place, hit in enumerate(hits, 1) if hit.chunk_id in relevant), None)


def accepted(episode: Episode, question: Question, similarity: Callable[[str, str], float], least: float) -> bool:
    """Rejection sampling: is this episode of the policy's worth learning from?"""
    found = bool(set(episode.hits) & set(question.relevant_chunk_ids))
    return episode.well_formed and found and similarity(episode.answer, question.answer) >= least
