"""S*: candidates are revised until a check passes, and chosen between by evidence fetched to tell them apart.

https://arxiv.org/abs/2502.14382 does it for programs. Stage 1: parallel samples, each debugged by the results of
public tests until they pass. Stage 2: candidates that behave alike are one; for each pair of the others the policy
invents an input that tells them apart, both are run on it, and what comes out decides.

Here, the public test is whether the passages that a candidate was shown hold its answer's words (`support`); where
they don't, it is played again and told which words nothing supports. The distinguishing input is a search query that
the policy writes for two answers, and what is run is the search: of the words that only one of the answers has, it
counts which one's the passages hold more of. Each pair gives a point, halved if equal; most points win, then the
larger cluster, then the first candidate.

Simplified: the judge compares words, where S* lets a model read the outputs. Evidence of a pair is shown to nobody: it
chooses, and is not counted among what the episode found. A policy that writes no query is served by the words in which
the answers differ.

Where it does not help: answers that say the same in other words look different here, and words are no proof: a passage
that denies something supports it. A policy that was trained to write one kind of query can't be expected to write
distinguishing ones; then this is self-consistency with a dearer tie-break.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from forage.agent.agent import Agent
from forage.agent.episode import Episode
from forage.data.records import Question
from forage.errors import check_at_least_one
from forage.evaluation.outcomes import Outcome
from forage.evaluation.scorers import WORDS, covered, shown, support
from forage.evaluation.strategies.asides import Aside, ask
from forage.evaluation.strategies.best_of_n import candidates
from forage.evaluation.strategies.self_consistency import plain

DISTINGUISH = (
    "Two answers to a medical question differ. Write one search query, a few words, that finds a text which tells "
    "which of them is right. Only the query."
)


@dataclass(frozen=True)
class SStar:
    """A strategy. Example: await SStar(n=4, rounds=1)(agent, question, seed)."""

    n: int = 4
    rounds: int = 1
    """How often a candidate is revised at most."""
    least_support: float = 0.8
    """Share of an answer's words in the passages shown at which it is left alone."""
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
        """A candidate and its revisions, the last of which stands; one without an answer is no revision."""
        (episode,) = await candidates(agent, question, [number], seed)
        line = [episode]
        for round_ in range(1, self.rounds + 1):
            if not line[-1].answer or support(agent.protocol, question, line[-1:])[0] >= self.least_support:
                break
            asked = with_check(agent, question, line[-1])
            (episode,) = await candidates(agent, question, [number + round_ * self.n], seed, asked)
            line = [*line, episode] if episode.answer else [episode, *line]
        return line

    async def _judge(
        self, agent: Agent, question: Question, one: Episode, other: Episode, name: str, seed: int
    ) -> tuple[float, Aside]:
        """(1 if the evidence speaks for one, 0 for the other, else a half; what its query cost)."""
        if not (one.answer and other.answer):
            return float(bool(one.answer)), Aside()
        text = f"Question: {question.question} Answer 1: {one.answer} Answer 2: {other.answer}"
        aside = await ask(agent, f"{question.id}/pair{name}", DISTINGUISH, text, self.query_tokens, seed)
        only_one, only_other = differing(one.answer, other.answer)
        query = aside.text or f"{question.question} {only_one} {only_other}"
        hits = await agent.search(query[: agent.settings.max_query])
        passages = [f"{hit.title} {hit.text}" for hit in hits]
        return preferred(covered(only_one, passages), covered(only_other, passages)), replace(aside, searches=1)


def clusters(episodes: Sequence[Episode]) -> list[list[Episode]]:
    """Episodes that answer alike, in the order of their first. Example: answers Rest., ice, rest give two."""
    groups: dict[str, list[Episode]] = {}
    for episode in episodes:
        groups.setdefault(plain(episode.answer), []).append(episode)
    return list(groups.values())


def differing(one: str, other: str) -> tuple[str, str]:
    """The words that only one has, and those that only the other has. Example: "rest, ice", "rest, heat": ice, heat."""
    words = [dict.fromkeys(text.split()) for text in (one, other)]
    stems = [set(WORDS(text)) for text in (one, other)]
    return (
        " ".join(word for word in words[0] if set(WORDS(word)) - stems[1]),
        " ".join(word for word in words[1] if set(WORDS(word)) - stems[0]),
    )


def preferred(one: float, other: float) -> float:
    """A pair's point. Example: .5 and .25 give 1; equal ones give .5."""
    return 0.5 if one == other else float(one > other)


def with_check(agent: Agent, question: Question, episode: Episode) -> str:
    """What a revision is asked: the answer so far, and what the check found."""
    passages = shown(agent.protocol, episode)
    lacking = [word for word in dict.fromkeys(episode.answer.split()) if WORDS(word) and covered(word, passages) < 1]
    return (
        f"{question.question} An earlier answer was: {episode.answer} No passage supports these words of it: "
        f"{' '.join(lacking)} Search again and answer by what is found."
    )
