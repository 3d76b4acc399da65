"""Best of n: several episodes of the policy's, of which a scorer's favourite counts.

As in https://arxiv.org/abs/2110.14168, whose verifier is trained on labelled answers; here any of
forage/evaluation/scorers.py.
Costs n times one episode. Where it does not help: a policy whose samples are all alike, and a scorer that can't tell
them apart (of equal scores the first one counts, which is plain sampling again).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from forage.agent.agent import Agent
from forage.agent.episode import Episode
from forage.data.records import Question
from forage.errors import check_at_least_one
from forage.evaluation.outcomes import Outcome
from forage.evaluation.scorers import Oracle, Scorer, best_place, scores_of


async def candidates(
    agent: Agent, question: Question, samples: Iterable[int], seed: int, asked: str = ""
) -> list[Episode]:
    """The question's episodes of these numbers, played at the same time."""
    return list(await asyncio.gather(*(agent.play(question, sample, seed, asked=asked) for sample in samples)))


@dataclass(frozen=True)
class BestOfN:
    """A strategy. Example: await BestOfN(agreement, n=8)(agent, question, seed)."""

    scorer: Scorer | Oracle
    n: int = 8

    def __post_init__(self) -> None:
        check_at_least_one(self, "n")

    async def __call__(self, agent: Agent, question: Question, seed: int) -> Outcome:
        tried = await candidates(agent, question, range(self.n), seed)
        scores = await scores_of(agent, self.scorer, question, tried)
        return Outcome(tried[best_place(scores, tried)], tuple(tried))
