"""Best of n, and self-consistency below: play several episodes and choose the one that a scorer likes best.

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
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from forage.agent.agent import Agent
from forage.agent.episode import Episode
from forage.data.records import Question
from forage.errors import check_at_least_one
from forage.evaluation.outcomes import Outcome
from forage.extras.testtime.scorers import Oracle, Scorer, best_index, mean_with_others, scores_of
from forage.metrics import without_articles


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


@dataclass(frozen=True)
class SelfConsistency:
    """Self-consistency: play several episodes and choose the one whose answer the others agree with.

    Paper: https://arxiv.org/abs/2203.11171 samples reasoning paths and takes a majority vote over their short answers.

    Here: answers are free text. If over half of them are equal up to articles, case and punctuation, that answer wins;
    else the medoid, the answer most similar to the others on average, as in minimum-Bayes-risk decoding.

    Left out: weighting votes by probability.

    Where it doesn't help: a policy that keeps making the same mistake, and questions with several right answers.

    A strategy. Example: await SelfConsistency(n=8)(agent, question, seed).
    """

    n: int = 8

    def __post_init__(self) -> None:
        check_at_least_one(self, "n")

    async def __call__(self, agent: Agent, question: Question, seed: int) -> Outcome:
        tried = await candidates(agent, question, range(self.n), seed)
        return Outcome(tried[agreed([episode.answer for episode in tried])], tuple(tried))


def agreed(answers: Sequence[str]) -> int:
    """The index of the answer that over half of the non-empty ones share, else of the medoid; 0 if all are empty.

    Example: "Rest.", "the rest", "ice and rest" give 0: two of three are alike. Answers "a b", "b c", "c d" give 1.
    """
    said = [plain(answer) for answer in answers]
    counts = Counter(text for text in said if text)
    if counts and counts.most_common(1)[0][1] * 2 > counts.total():
        return said.index(counts.most_common(1)[0][0])
    means = mean_with_others(answers)
    return max(range(len(answers)), key=lambda n: (bool(said[n]), means[n], -n))


def plain(answer: str) -> str:
    """Without articles, case and punctuation. Example: "The joints – of a toe." gives "joints of toe"."""
    return " ".join(without_articles(answer))
