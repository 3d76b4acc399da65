"""Teacher: plays demonstrations. It knows the answers, but searches for real, in the agent's own loop and protocol."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

from forage.agent.agent import Agent, BatchedSearch, SearchMany, sample_name, searched_for
from forage.agent.episode import AS_ASKED, STOPS, Episode
from forage.agent.options import AgentSettings
from forage.agent.protocol import CALL_OPENING, FAULTS, Protocol, write_answer, write_call
from forage.agent.searcher import remembering, search_each
from forage.agent.tools import functions_for
from forage.data.records import Question, asked_of
from forage.engines.base import Engine, Request, Sample
from forage.errors import check_at_least_one
from forage.progress import Counting
from forage.store.fusion import Hit
from forage.text import IDLE, body_of, most_parts, sentences_in, spoken_words, words_of

LONGEST, SHORTEST = 4, 6  # words of what may be a name, and its letters
BETWEEN = re.compile(r"[^\w\s'-]+|\n|\s-+\s")  # no name goes on over it
Scripts = dict[tuple[Question, int], list[str]]
"""The turns of each episode, by its question and number."""


@dataclass(frozen=True)
class TeacherOptions:
    """The teacher's demonstrations."""

    answer_tokens: int = 64
    """Maximum tokens of the teacher's answer: those sentences of the reference answer that the passage shows."""
    blind: Literal["no", "names", "title"] = "no"
    """Let the teacher know no more than the policy: it searches for the question, then again for something of the first
    passage and what is asked, and answers with the beginning of what that finds first. names: for a phrase of that
    passage at random, as might be a name. title: for its title."""
    phrases: int = 1
    """Demonstrations for each question with --blind names, each with another phrase. An update computes once what they
    begin with."""

    def check(self) -> None:
        check_at_least_one(self, "answer_tokens", "phrases")


async def demonstrate(
    questions: Sequence[Question], search_many: SearchMany, protocol: Protocol, settings: AgentSettings,
    teacher: TeacherOptions, seed: int,
) -> tuple[list[Episode], Counter[str]]:  # fmt: skip
    """A well-formed episode for each question that a query of the teacher's can answer; how many others, by cause."""
    choose, search_many = random.Random(seed), remembering(search_many)
    if teacher.blind != "no":
        scripts = blind_turns(questions, search_many, protocol, settings, teacher, choose)
        return await recited(scripts, search_many, protocol, settings)
    queries_for = {question.id: [*map(protocol.harmless, queries_of(question))] for question in questions}
    hits_of = search_candidates(questions, queries_for, search_many, settings.question_weight)
    scripts, without = Scripts(), Counter[str]()
    for question in questions:
        hits = hits_of[question.id]
        ranks = {query: first_relevant(found, question) for query, found in hits.items()}
        queries = choose_queries(ranks, choose)
        if not queries:
            without["no query finds what answers it"] += 1
        elif not leave_room(len(queries) + settings.search_first, settings):
            without["no turn is left for the answer (--max-turns)"] += 1
        else:
            calls = [*map(write_call, queries)]
            scripts[question, 0] = write_turns(question, calls, hits[queries[-1]], protocol, settings, teacher)
    taught, broken = await recited(scripts, search_many, protocol, settings)
    return taught, without + broken


def blind_turns(
    questions: Sequence[Question], search_many: SearchMany, protocol: Protocol, settings: AgentSettings,
    teacher: TeacherOptions, choose: random.Random,
) -> Scripts:  # fmt: skip
    """The turns of a teacher that doesn't know what answers: they show how one may search, not what for."""

    def search(queries: Iterable[tuple[Question, str]]) -> list[Sequence[Hit]]:
        return [*search_many([searched_for(question, query, settings.question_weight) for question, query in queries])]

    first = [protocol.harmless(question.question) for question in questions]
    again = [
        (question, number, query, protocol.harmless(other))
        for question, query, hits in zip(questions, first, search(zip(questions, first, strict=True)), strict=True)
        if hits
        for number, other in enumerate(
            [title_query(question, hits)] if teacher.blind == "title"
            else name_queries(question, as_shown(hits[0], protocol), teacher.phrases, choose)
        )
    ]  # fmt: skip
    scripts = Scripts()
    found = search((question, other) for question, _, _, other in again)
    for (question, number, query, other), hits in zip(again, found, strict=True):
        if hits:
            answer = read_out(replace(question, answer=""), hits[0], protocol, teacher.answer_tokens)
            ending = [] if settings.search_only else [f"Passage 1 answers this.\n{write_answer(answer)}"]
            scripts[question, number] = [*map(write_call, [query, other][settings.search_first :]), *ending]
    return scripts


def title_query(question: Question, hits: Sequence[Hit]) -> str:
    """The title of the first hit, and what is asked.

    Example: "crystals kidney: What causes this?", first found "Gout", gives "Gout What causes this?".
    """
    return f"{hits[0].title} {asked_of(question)}" if hits else question.question


def name_queries(question: Question, shown: str, count: int, choose: random.Random) -> list[str]:
    """So many phrases at random that might be a name, of those that the question doesn't say, each after what is asked.

    After it, as then a phrase begins with the same token as in the passage. Example: "crystals kidney: What causes
    this?", shown "It is like acute gout, but ...", may give "What causes this? acute gout".
    """
    said = set(words_of(question.question))
    phrases = [phrase for phrase in phrases_of(shown) if not said.issuperset(words_of(phrase))]
    return [f"{asked_of(question)} {phrase}" for phrase in choose.sample(phrases, min(count, len(phrases)))]


def phrases_of(text: str) -> list[str]:
    """What stands between idle words and punctuation, at most LONGEST words from each end of it.

    Example: "It is like acute gout, but the pain stays." gives "like acute gout", "but" being too short, and "pain
    stays".
    """
    runs = [
        [*words]
        for part in BETWEEN.split(text)
        for idle, words in groupby(part.split(), key=lambda word: word.lower() in IDLE)
        if not idle
    ]
    phrases = [" ".join(end) for run in runs for end in (run[:LONGEST], run[-LONGEST:])]
    return [phrase for phrase in dict.fromkeys(phrases) if len(phrase) >= SHORTEST]


def leave_room(searches: int, settings: AgentSettings) -> bool:
    """Whether so many turns leave one for the answer, if there is one."""
    return searches < settings.max_turns or (settings.search_only and searches == settings.max_turns)


async def recited(
    scripts: Mapping[tuple[Question, int], Sequence[str]],
    search_many: SearchMany,
    protocol: Protocol,
    settings: AgentSettings,
) -> tuple[list[Episode], Counter[str]]:
    """The episodes in which these turns are said; those that are not well-formed are only counted, by cause."""
    reciter = Reciter(protocol, {sample_name(*which): script for which, script in scripts.items()})
    tools = functions_for(settings.tools)
    agent = Agent(reciter, protocol, BatchedSearch(search_many), settings, tools=tools)
    bar, played = Counting("demonstrations", len(scripts)), list[Episode]()
    for question, number in scripts:
        played.append(await agent.play(question, number))
        bar.update()
    broken = [episode for episode in played if not episode.well_formed]
    causes = Counter(FAULTS[each.faults[0]] if each.stop in AS_ASKED else STOPS[each.stop] for each in broken)
    return [episode for episode in played if episode.well_formed], causes


def causes_of(without: Counter[str]) -> str:
    """Why demonstrations are lacking. Example: "; 2 left out: the answer is empty"."""
    return "".join(f"; {count} left out: {cause}" for cause, count in without.most_common())


def queries_of(question: Question) -> list[str]:
    """Queries that might find the answer, the most specific first.

    Example: "What are the symptoms of gout?", focus "Gout", type "symptoms" gives "Gout symptoms", "symptoms gout",
    "Gout", and the question itself.
    """
    telling = " ".join(word for word in spoken_words(question.question) if word.lower() not in IDLE)
    kind = "" if question.question_type in ("", "information") else question.question_type
    candidates = [f"{question.focus} {kind}", telling, question.focus, question.question]
    return [query for query in dict.fromkeys(" ".join(candidate.split()) for candidate in candidates) if query]


def short_answer(answer: str, count: Callable[[str], int], most: int) -> str:
    """The first sentences of an answer that fit into `most` tokens, or its first words if no sentence fits."""
    sentences = sentences_in(answer)
    words = sentences[0].split()
    for parts in (sentences, words):
        if fitting := most_parts(parts, count, most):
            return " ".join(parts[:fitting])
    return "".join(words[:1])


def readable(answer: str, passage: str) -> str:
    """The sentences of an answer that the passage contains, or the whole answer if it contains none.

    This way the teacher answers from what it found. Example: "It hurts. Rest helps." with "Gout: Rest helps. [cut"
    gives "Rest helps."
    """
    sentences = sentences_in(answer)
    return " ".join([sentence for sentence in sentences if sentence in passage] or sentences)


def choose_queries(ranks: Mapping[str, int | None], choose: random.Random) -> list[str] | None:
    """The teacher's queries, given the rank at which each candidate finds an answering chunk; None if all fail.

    The teacher picks a query with the best rank. For a tenth of the questions a failing query comes first, to show the
    policy that it may search again. (If that share is a third, a small model learns to search endlessly.)
    """
    good = {query: rank for query, rank in ranks.items() if rank is not None}
    bad = [query for query, rank in ranks.items() if rank is None]
    if not good:
        return None
    best = [query for query, rank in good.items() if rank == min(good.values())]
    query = choose.choice(best)
    return [choose.choice(bad), query] if bad and choose.random() < 0.1 else [query]


class Reciter(Engine):
    """An engine that says given lines, so that the agent's loop plays demonstrations just as it plays rollouts."""

    adapter = "teacher"

    def __init__(self, protocol: Protocol, turns: Mapping[str, Sequence[str]]) -> None:
        self._protocol = protocol
        self._left = {episode: list(texts) for episode, texts in turns.items()}

    async def generate(self, request: Request) -> Sample:
        text, opening = self._left[request.episode].pop(0), self._protocol.call_opening
        begun = request.ids[-len(opening) :] == opening  # --force-search
        ids = self._protocol.turn_ids(text.removeprefix(CALL_OPENING) if begun else text)
        if len(ids) > request.max_tokens:
            return Sample(tuple(ids[: request.max_tokens]), (0.0,) * request.max_tokens, "length")
        return Sample(tuple(ids), (0.0,) * len(ids), "stop")

    def release(self, episode: str) -> None:
        self._left.pop(episode)


def write_turns(
    question: Question, calls: Sequence[str], found: Sequence[Hit], protocol: Protocol, settings: AgentSettings,
    teacher: TeacherOptions,
) -> list[str]:  # fmt: skip
    """The turns of an episode with these calls, of which the last one finds what answers the question."""
    if settings.search_only:
        return [*calls]
    rank = first_relevant(found, question) or 0
    answer = read_out(question, found[rank - 1], protocol, teacher.answer_tokens)
    return [*calls, f"Passage {rank} answers this.\n{write_answer(answer)}"]


def search_candidates(
    questions: Sequence[Question], queries: Mapping[str, Sequence[str]], search_many: SearchMany, question_weight: int
) -> dict[str, dict[str, Sequence[Hit]]]:
    """By question id, what each of its queries finds. All are searched in one batch."""
    asked = [
        [searched_for(question, query, question_weight) for query in queries[question.id]] for question in questions
    ]
    found = zip(questions, search_each(search_many, asked), strict=True)
    return {question.id: dict(zip(queries[question.id], hits, strict=True)) for question, hits in found}


def first_relevant(hits: Iterable[Hit], question: Question) -> int | None:
    """Rank, from 1, of the first hit that answers the question."""
    relevant = set(question.relevant_chunk_ids)
    return next((rank for rank, hit in enumerate(hits, 1) if hit.chunk_id in relevant), None)


def read_out(question: Question, hit: Hit, protocol: Protocol, answer_tokens: int) -> str:
    """The answer, as the passage shows it; of a question without one, how the passage begins."""
    # As harmless as the passage: what the policy learns to write must hold no turn that the reference forges.
    answer = readable(protocol.harmless(body_of(question.answer or hit.text)), protocol.show([hit]))
    return short_answer(answer, lambda text: len(protocol.turn_ids(text)), answer_tokens)


def as_shown(hit: Hit, protocol: Protocol) -> str:
    """A passage's text as the policy reads it, without its number and title."""
    shown = protocol.show([hit]).removeprefix("[1] ")
    return shown.removeprefix(f"{protocol.harmless(hit.title)}: ") if hit.title.strip() else shown
