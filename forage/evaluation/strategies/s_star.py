"""S*: revise candidates until a check passes, then choose between them by evidence fetched to tell them apart.

Paper: https://arxiv.org/abs/2502.14382, for programs. Stage 1 samples in parallel and debugs each sample with the
results of public tests until they pass. Stage 2 merges candidates that behave alike; for each pair of the others, the
model invents an input that tells them apart, both programs run on it, and the model judges their outputs.

Here: the public test is whether the passages shown to a candidate contain its answer's words (`support`). If they
don't, the question is played again with a note of the unsupported words. The distinguishing input is a search query
that the policy writes for two answers: the answer whose own words (those the other lacks) the passages contain more of
gets the point, or half a point each if equal. If the policy writes no query, the words in which the answers differ are
searched for. Most points win, then the larger cluster, then the first candidate.

Left out: a model as the judge; words are compared instead. The evidence is used to choose only: the policy never reads
it, and it is not counted among the episode's hits.

Where it doesn't help: answers that say the same in other words look different here, and words prove little: a passage
that denies something supports it. A policy trained to write one kind of query will hardly write distinguishing ones;
then this is self-consistency with an expensive tie-break.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from forage.agent.agent import Agent
from forage.agent.episode import Episode
from forage.agent.prompts import worded
from forage.data.records import Question
from forage.errors import check_at_least_one
from forage.evaluation.outcomes import Outcome
from forage.evaluation.scorers import WORDS, covered, shown, support
from forage.evaluation.strategies.asides import Aside, ask
from forage.evaluation.strategies.best_of_n import candidates
from forage.evaluation.strategies.self_consistency import plain

DISTINGUISH = (
    "Two answers to a {subject}question differ. Write one search query, a few words, that finds a text which tells "
    "which of them is right. Only the query."
)


@dataclass(frozen=True)
class SStar:
    """A strategy. Example: await SStar(n=4, rounds=1)(agent, question, seed)."""

    n: int = 4
    rounds: int = 1
    """Most revisions of a candidate."""
    min_support: float = 0.8
    """An answer is revised unless at least this share of its words is in the passages shown."""
    query_tokens: int = 24

    def __post_init__(self) -> None:
        check_at_least_one(self, "n", "query_tokens")

    async def __call__(self, agent: Agent, question: Question, seed: int) -> Outcome:
        lines = await asyncio.gather(*(self._revised(agent, question, number, seed) for number in range(self.n)))
        groups = clusters([line[-1] for line in lines])
        pairs = list(combinations(range(len(groups)), 2))
        judged = await asyncio.gather(
            *(self._judge(agent, question, groups[a][0], groups[b][0], f"{a}-{b}", seed) for a, b in pairs)
        )
        points = [0.0] * len(groups)
        for (a, b), (point, _) in zip(pairs, judged, strict=True):
            points[a] += point
            points[b] += 1 - point
        best = max(range(len(groups)), key=lambda n: (bool(groups[n][0].answer), points[n], len(groups[n]), -n))
        asides = [aside for _, aside in judged]
        return Outcome(
            groups[best][0], tuple(episode for line in lines for episode in line),
            sum(aside.sampled for aside in asides), sum(aside.read for aside in asides),
            sum(aside.searches for aside in asides),
        )  # fmt: skip

    async def _revised(self, agent: Agent, question: Question, number: int, seed: int) -> list[Episode]:
        """A candidate and its revisions, the last of which counts; a revision without an answer is put first."""
        (episode,) = await candidates(agent, question, [number], seed)
        line = [episode]
        for round_ in range(1, self.rounds + 1):
            if not line[-1].answer or support(agent.protocol, question, line[-1:])[0] >= self.min_support:
                break
            asked = with_check(agent, question, line[-1])
            (episode,) = await candidates(agent, question, [number + round_ * self.n], seed, asked)
            line = [*line, episode] if episode.answer else [episode, *line]
        return line

    async def _judge(
        self, agent: Agent, question: Question, one: Episode, other: Episode, name: str, seed: int
    ) -> tuple[float, Aside]:
        """1 if the evidence favours `one`, 0 if the other, else a half; and what the query cost."""
        if not (one.answer and other.answer):
            return float(bool(one.answer)), Aside()
        text = f"Question: {question.question} Answer 1: {one.answer} Answer 2: {other.answer}"
        aside = await ask(
            agent, f"{question.id}/pair{name}", worded(DISTINGUISH, agent.protocol.task), text, self.query_tokens, seed
        )
        only_one, only_other = differing(one.answer, other.answer)
        query = aside.text or f"{question.question} {only_one} {only_other}"
        hits = await agent.search(query[: agent.settings.max_query])
        passages = [f"{hit.title} {hit.text}" for hit in hits]
        return preferred(covered(only_one, passages), covered(only_other, passages)), replace(aside, searches=1)


def clusters(episodes: Sequence[Episode]) -> list[list[Episode]]:
    """Groups of episodes with the same answer, in the order of their first. Example: Rest., ice, rest give two."""
    groups: dict[str, list[Episode]] = {}
    for episode in episodes:
        groups.setdefault(plain(episode.answer), []).append(episode)
    return list(groups.values())


def differing(one: str, other: str) -> tuple[str, str]:
    """The words that only one of two answers has. Example: "rest, ice" and "rest, heat" give ice and heat."""
    words = [dict.fromkeys(text.split()) for text in (one, other)]
    stems = [set(WORDS(text)) for text in (one, other)]
    return (
        " ".join(word for word in words[0] if set(WORDS(word)) - stems[1]),
        " ".join(word for word in words[1] if set(WORDS(word)) - stems[0]),
    )


def preferred(one: float, other: float) -> float:
    """The first one's point. Example: .5 and .25 give 1; equal ones give .5."""
    return 0.5 if one == other else float(one > other)


def with_check(agent: Agent, question: Question, episode: Episode) -> str:
    """The prompt of a revision: the answer so far, and what the check found."""
    passages = shown(agent.protocol, episode)
    lacking = [word for word in dict.fromkeys(episode.answer.split()) if WORDS(word) and covered(word, passages) < 1]
    return (
        f"{question.question} An earlier answer was: {episode.answer} No passage supports these words of it: "
        f"{' '.join(lacking)} Search again and answer by what is found."
    )
