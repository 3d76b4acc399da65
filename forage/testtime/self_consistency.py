"""Self-consistency: play several episodes and choose the one whose answer the others agree with.

Paper: https://arxiv.org/abs/2203.11171 samples reasoning paths and takes a majority vote over their short answers.

Here: answers are free text. If over half of them are equal up to articles, case and punctuation, that answer wins; else
the medoid, the answer most similar to the others on average, as in minimum-Bayes-risk decoding.

Left out: weighting votes by probability.

Where it doesn't help: a policy that keeps making the same mistake, and questions with several right answers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from forage.agent.agent import Agent
from forage.data.records import Question
from forage.errors import check_at_least_one
from forage.evaluation.outcomes import Outcome
from forage.testtime.best_of import candidates
from forage.testtime.scorers import mean_with_others

ARTICLE = re.compile(r"\b(a|an|the)\b")


@dataclass(frozen=True)
class SelfConsistency:
    """A strategy. Example: await SelfConsistency(n=8)(agent, question, seed)."""

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
    return " ".join(re.findall(r"\w+", ARTICLE.sub(" ", answer.lower())))
