"""Self-consistency: several episodes, of which the one whose answer the others agree with counts.

https://arxiv.org/abs/2203.11171 votes over short answers. Answers here are free text, so: what over half of the
answers say, if articles, case and punctuation are left out; else the medoid, the answer most like the others on
average, as minimum-Bayes-risk decoding chooses. With `fuse`, what was *found* is agreed upon as well: the candidates'
rankings become one by reciprocal ranks.

Simplified: every candidate has one vote, whatever its probability. Where it does not help: a policy whose mistakes are
alike, and questions of which answers may differ and all be right.
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
    """Replace what the chosen episode found by the fusion of what all found."""
    similarities: Similarities = f1_similarities
    """Of all pairs of answers; Cosines(embedder.encode_passages) is the other one there is."""

    def __post_init__(self) -> None:
        check_at_least_one(self, "n")

    async def __call__(self, agent: Agent, question: Question, seed: int) -> Outcome:
        tried = await candidates(agent, question, range(self.n), seed)
        chosen = await agent.search.in_thread(agreed, [episode.answer for episode in tried], self.similarities)
        if self.fuse and tried[chosen].searches:  # the fusion stands for a search; who made none is given none
            tried[chosen] = fused(tried[chosen], tried)
        return Outcome(tried[chosen], tuple(tried))


def agreed(answers: Sequence[str], similarities: Similarities = f1_similarities) -> int:
    """The place of the first answer that over half of those given say; else of the medoid.

    Example: "Rest.", "the rest", "ice and rest" give 0: two of three are alike. Answers "a b", "b c", "c d" give 1.
    Empty ones are none; the first one's place where there is nothing else.
    """
    said = [plain(answer) for answer in answers]
    counts = Counter(text for text in said if text)
    if counts and counts.most_common(1)[0][1] * 2 > counts.total():
        return said.index(counts.most_common(1)[0][0])
    means = mean_with_others(answers, similarities)
    return max(range(len(answers)), key=lambda n: (bool(said[n]), means[n], -n))


def plain(answer: str) -> str:
    """An answer without what does not count. Example: "The joints – of a toe." is "joints of toe"."""
    return " ".join(re.findall(r"\w+", ARTICLE.sub(" ", answer.lower())))


def fused(chosen: Episode, tried: Sequence[Episode]) -> Episode:
    """The chosen episode with the fused ranking in the place of what it found itself.

    It is what the system answers with, and no longer what the policy saw: its first search says so by its turn, -1,
    and by all queries as its query, its others have no hits; expert.py learns from no such episode. The ranking
    is cut to as many chunks as a candidate saw on average, so that it is not better only for being longer.
    """
    hits = fuse_hits([episode.hits for episode in tried])
    cut = math.ceil(sum(len(episode.hits) for episode in tried) / len(tried))
    queries = dict.fromkeys(search.query for episode in tried for search in episode.searches)
    first = Search(FUSED, " | ".join(queries), tuple(hits[:cut]))
    return replace(chosen, searches=(first, *(replace(search, hits=()) for search in chosen.searches[1:])))


def fuse_hits(rankings: Sequence[Sequence[str]]) -> list[str]:
    """One ranking by the sum of reciprocal ranks. Example: (a, b), (b, c), (b,) give b, a, c."""
    numbers = {hit: number for number, hit in enumerate(dict.fromkeys(hit for hits in rankings for hit in hits))}
    if not numbers:
        return []
    ranked = [
        Ranking(np.array([numbers[hit] for hit in hits], np.int64), -np.arange(len(hits), dtype=np.float64))
        for hits in rankings
    ]
    names = list(numbers)
    return [names[number] for number in reciprocal_rank_fusion(ranked, [1.0] * len(ranked)).ids]
