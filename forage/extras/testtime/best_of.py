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
from forage.agent.protocol import Protocol
from forage.data.records import Question
from forage.errors import check_at_least_one
from forage.evaluation.outcomes import Outcome
from forage.extras.testtime.scorers import Oracle, Scorer, agreement, best_index, scores_of
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


def agreed(protocol: Protocol, question: Question, episodes: Sequence[Episode]) -> list[float]:
    """Self-consistency, BestOf(agreed): the episode counts whose answer the others agree with.

    Paper: https://arxiv.org/abs/2203.11171 samples reasoning paths and takes a majority vote over their short answers.

    Here: answers are free text. If over half of those that are not empty are equal up to articles, case and
    punctuation, they score 1 and the others 0; else the highest score has the medoid, the answer most similar to the
    others on average, as in minimum-Bayes-risk decoding. An empty answer has the lowest.

    Left out: weighting votes by probability.

    Where it doesn't help: a policy that keeps making the same mistake, and questions with several right answers.

    Example: of "Rest.", "the rest", "ice and rest" the first two score 1. Of "a b", "b c", "c d" the second is best.
    """
    said = [plain(episode.answer) for episode in episodes]
    counts = Counter(filter(None, said))
    for text, count in counts.most_common(1):
        if count * 2 > counts.total():
            return [float(each == text) for each in said]
    means = agreement(protocol, question, episodes)
    return [(mean + bool(text)) / 2 for mean, text in zip(means, said, strict=True)]


def plain(answer: str) -> str:
    """Without articles, case and punctuation. Example: "The joints – of a toe." gives "joints of toe"."""
    return " ".join(without_articles(answer))
