"""Altered: systems that play as the agent does, but whose searches find something else than the store would.

What an answer loses by that is what the policy owes to its searches; lab.py makes a page of it. An alteration is given
the setting, the question of the episode and a query, and says what a search finds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from forage.agent.agent import Agent, BatchedSearch, SearchMany
from forage.agent.searcher import searching
from forage.data.records import Question, documents_of
from forage.errors import UserError
from forage.evaluation.baselines import single
from forage.evaluation.outcomes import Outcome
from forage.store.fusion import Hit, hit_of

if TYPE_CHECKING:
    from forage.evaluation.setting import Setting

T = TypeVar("T")
Alteration = Callable[["Setting", Question, str], list[Hit]]


def nothing_found(setting: Setting, question: Question, query: str) -> list[Hit]:
    """Each search finds nothing."""
    return []


def random_found(setting: Setting, question: Question, query: str) -> list[Hit]:
    """Each search finds passages at random, none of which answers; the same query finds the same."""
    draw, right = random.Random(f"{setting.options.seed}/{question.id}/{query}"), question.relevant_chunk_ids
    chunks = list(setting.chunks.values())
    drawn = draw.sample(chunks, min(len(chunks), setting.agent.k + len(right)))
    return ranked([hit_of(chunk) for chunk in drawn if chunk.id not in right][: setting.agent.k])


def others_found(setting: Setting, question: Question, query: str) -> list[Hit]:
    """Each search finds what a search for another question finds, the same one for the whole episode."""
    return without_right(setting, question, other_than(question, setting.all_questions, setting.options.seed).question)


def right_left_out(setting: Setting, question: Question, query: str) -> list[Hit]:
    """Each search lacks the passages that answer; those behind them move up."""
    return without_right(setting, question, query)


def right_first(setting: Setting, question: Question, query: str) -> list[Hit]:
    """Each search finds a passage that answers first: its best one that does, else the first that the data name."""
    hits = found(setting, query, setting.agent.k)
    right = [hit for hit in hits if hit.chunk_id in question.relevant_chunk_ids]
    right += [hit_of(setting.chunks[name]) for name in question.relevant_chunk_ids if name in setting.chunks]
    others = [hit for hit in hits if not right or hit.chunk_id != right[0].chunk_id]
    return ranked([*right[:1], *others][: setting.agent.k])


ALTERATIONS: Mapping[str, Alteration] = {
    each.__name__: each for each in (right_first, right_left_out, others_found, random_found, nothing_found)
}


def without_right(setting: Setting, question: Question, query: str) -> list[Hit]:
    right, k = set(question.relevant_chunk_ids), setting.agent.k
    return ranked([hit for hit in found(setting, query, k + len(right)) if hit.chunk_id not in right][:k])


def found(setting: Setting, query: str, k: int) -> list[Hit]:
    """What the store itself finds."""
    return setting.store.search([query], k, setting.agent.mode, fusion=setting.agent.fusion)[0]


def ranked(hits: Sequence[Hit]) -> list[Hit]:
    return [replace(hit, rank=rank) for rank, hit in enumerate(hits, 1)]


def other_than(question: Question, questions: Sequence[Question], seed: int) -> Question:
    """A question that no document of this one answers, drawn by the seed; more questions to play change nothing."""
    own = set(documents_of(question.relevant_chunk_ids))
    others = [each for each in questions if own.isdisjoint(documents_of(each.relevant_chunk_ids))]
    if not others:
        raise UserError(f"no other document than that of question {question.id} answers a question; give more data")
    return random.Random(f"{seed}/{question.id}").choice(others)


@dataclass(frozen=True)
class Altered:
    """The strategy: one episode, whose searches find what the alteration says, and show it as the agent does."""

    alter: Alteration
    setting: Setting = field(compare=False)

    def __post_init__(self) -> None:
        self.setting.chunks  # noqa: B018 what is missing is told now, not hours later

    async def __call__(self, agent: Agent, question: Question, seed: int) -> Outcome:
        store: Any = AlteredStore(self.setting.store.options, lambda query: self.alter(self.setting, question, query))
        search = Beside(searching(store, agent.settings), agent.search)
        # No CachingAgent, which would know the episode already.
        other = Agent(
            agent.engine, agent.protocol, search, agent.settings, agent.sampling, agent.observer, agent.tools
        )  # fmt: skip
        return await single(other, question, seed)


@dataclass(frozen=True)
class AlteredStore:
    """As much of a store as the agent's search asks for."""

    options: Any
    find: Callable[[str], list[Hit]]

    def search(self, queries: Sequence[str], *_: Any, **__: Any) -> list[list[Hit]]:
        return list(map(self.find, queries))


class Beside(BatchedSearch):
    """Searches where another one does: two users of an embedder must not run at the same time."""

    def __init__(self, search_many: SearchMany, other: BatchedSearch) -> None:
        super().__init__(search_many, in_line=other.in_line)
        self.other = other

    async def in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        return await self.other.in_thread(function, *arguments)
