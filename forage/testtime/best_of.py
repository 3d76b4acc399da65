"""Best of n: play several episodes and choose the one that a scorer likes best.

Paper: https://arxiv.org/abs/2110.14168 samples many solutions and chooses by a verifier trained on labelled answers.

Here: any scorer chooses among n episodes, written (scorers.py) or learned from rewarded episodes (preference.py). Costs
n times one episode.

Left out: a verifier that is a language model and judges every token. The learned scorer sees embeddings and counts of a
whole episode, and learns from pairs instead of from right and wrong answers.

Where it doesn't help: a policy whose samples are all alike, and a scorer that can't tell them apart (among equal scores
the first episode is chosen, which is plain sampling again).
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
from forage.testtime.scorers import Oracle, Scorer, best_index, scores_of


async def candidates(
    agent: Agent, question: Question, samples: Iterable[int], seed: int, asked: str = ""
) -> list[Episode]:
    """The question's episodes with these sample numbers, played at the same time."""
    return list(await asyncio.gather(*(agent.play(question, sample, seed, asked=asked) for sample in samples)))


@dataclass(frozen=True)
class BestOf:
    """A strategy. Example: await BestOf(looks_good, n=8)(agent, question, seed)."""

    scorer: Scorer | Oracle
    n: int = 8

    def __post_init__(self) -> None:
        check_at_least_one(self, "n")

    async def __call__(self, agent: Agent, question: Question, seed: int) -> Outcome:
        tried = await candidates(agent, question, range(self.n), seed)
        scores = await scores_of(agent, self.scorer, question, tried)
        return Outcome(tried[best_index(scores, tried)], tuple(tried))
