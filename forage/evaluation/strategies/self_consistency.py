"""Self-consistency: play several episodes and choose the one whose answer the others agree with.

Paper: https://arxiv.org/abs/2203.11171 samples reasoning paths and takes a majority vote over their short answers.

Here: answers are free text. If over half of them are equal up to articles, case and punctuation, that answer wins; else
the medoid, the answer most similar to the others on average, as in minimum-Bayes-risk decoding. With `fuse`, the
candidates' rankings are also fused into one by reciprocal ranks.

Left out: weighting votes by probability.

Where it doesn't help: a policy that keeps making the same mistake, and questions with several right answers.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from forage.agent.agent import Agent
from forage.agent.episode import Episode, Search
from forage.data.records import Question
from forage.errors import check_at_least_one
from forage.evaluation.outcomes import FUSED, Outcome
from forage.evaluation.scorers import Similarities, f1_similarities, mean_with_others
from forage.evaluation.strategies.best_of_n import candidates
from forage.store.fusion import Ranking, reciprocal_rank_fusion

ARTICLE = re.compile(r"\b(a|an|the)\b")


@dataclass(frozen=True)
class SelfConsistency:
    """A strategy. Example: await SelfConsistency(n=8)(agent, question, seed)."""

    n: int = 8
    fuse: bool = False
    """Replace the chosen episode's hits by the fusion of all episodes' hits."""
    similarities: Similarities = f1_similarities
    """Similarity of all pairs of answers; the alternative is Cosines(embedder.encode_passages)."""

    def __post_init__(self) -> None:
        check_at_least_one(self, "n")

    async def __call__(self, agent: Agent, question: Question, seed: int) -> Outcome:
        tried = await candidates(agent, question, range(self.n), seed)
        chosen = await agent.search.in_thread(agreed, [episode.answer for episode in tried], self.similarities)
        if self.fuse and tried[chosen].searches:  # an episode that never searched gets no search
            tried[chosen] = fused(tried[chosen], tried)
        return Outcome(tried[chosen], tuple(tried))


def agreed(answers: Sequence[str], similarities: Similarities = f1_similarities) -> int:
    """The index of the answer that over half of the non-empty ones share, else of the medoid; 0 if all are empty.

    Example: "Rest.", "the rest", "ice and rest" give 0: two of three are alike. Answers "a b", "b c", "c d" give 1.
    """
    said = [plain(answer) for answer in answers]
    counts = Counter(text for text in said if text)
    if counts and counts.most_common(1)[0][1] * 2 > counts.total():
        return said.index(counts.most_common(1)[0][0])
    means = mean_with_others(answers, similarities)
    return max(range(len(answers)), key=lambda n: (bool(said[n]), means[n], -n))


def plain(answer: str) -> str:
    """Without articles, case and punctuation. Example: "The joints – of a toe." gives "joints of toe"."""
    return " ".join(re.findall(r"\w+", ARTICLE.sub(" ", answer.lower())))


def fused(chosen: Episode, tried: Sequence[Episode]) -> Episode:
    """The chosen episode with the fused ranking in place of its own hits.

    These are not hits that the policy saw, so the first search is marked with turn -1 and has all queries as its query,
    the other searches have no hits, and expert.py leaves such episodes out. The ranking is cut to the average number of
    chunks that a candidate saw, so that it is not better just by being longer.
    """
    hits = fuse_hits([episode.hits for episode in tried])
    cut = math.ceil(sum(len(episode.hits) for episode in tried) / len(tried))
    queries = dict.fromkeys(search.query for episode in tried for search in episode.searches)
    first = Search(FUSED, " | ".join(queries), tuple(hits[:cut]))
    return replace(chosen, searches=(first, *(replace(search, hits=()) for search in chosen.searches[1:])))


def fuse_hits(rankings: Sequence[Sequence[str]]) -> list[str]:
    """One ranking, by the sum of reciprocal ranks. Example: (a, b), (b, c), (b,) give b, a, c."""
    numbers = {hit: number for number, hit in enumerate(dict.fromkeys(hit for hits in rankings for hit in hits))}
    if not numbers:
        return []
    ranked = [
        Ranking(np.array([numbers[hit] for hit in hits], np.int64), -np.arange(len(hits), dtype=np.float64))
        for hits in rankings
    ]
    names = list(numbers)
    return [names[number] for number in reciprocal_rank_fusion(ranked, [1.0] * len(ranked)).ids]
