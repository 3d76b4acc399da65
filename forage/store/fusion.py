"""Hits and rankings: a passage that was found, the best k of many scores, and several rankings merged into one.

Ties always go to the lower index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from forage.data.chunking import Chunk
from forage.store.options import Fusion

# Hit: a passage that a search found.


@dataclass(frozen=True, slots=True)
class Hit:
    """A chunk found for a query; `rank` counts from 1."""

    chunk_id: str
    doc_id: str
    title: str
    text: str
    score: float
    rank: int


def hit_of(chunk: Chunk, score: float = 0.0, rank: int = 0) -> Hit:
    return Hit(chunk.id, chunk.doc_id, chunk.title, chunk.text, score, rank)


Ids = NDArray[np.int64]
Scores = NDArray[np.float64]

BLOCK = 64


@dataclass(frozen=True, slots=True)
class Ranking:
    """Ids and their scores, best first, equal scores by id."""

    ids: Ids
    scores: Scores


def top_k(scores: NDArray[np.floating], k: int, above: float = -np.inf, only: Ids | None = None) -> Ids:
    """Ids of the k highest scores that exceed `above`, best first, equal scores by id; `only` among some, if given.

    Example: top_k([1., 3., 3., 0.], k=3, above=0) -> [1, 2, 0].
    """
    if only is not None:
        return only[top_k(scores[only], k, above)]
    candidates = np.flatnonzero(scores >= kth_bound(scores, k)) if k < len(scores) else np.arange(len(scores))
    candidates = candidates[scores[candidates] > above]
    order = np.lexsort((candidates, -scores[candidates]))
    return candidates[order[:k]]


def kth_bound(scores: NDArray[np.floating], k: int) -> float:
    """A score that at least k scores reach, at most the k-th highest.

    It is the k-th highest of the maxima of 64 scores each, or of the maxima of those: k of them contain a score that
    high. Partitioning all scores takes forty times as long (on 27,000 scores: 240 against 6 microseconds).
    """
    each = len(scores) // BLOCK
    if k > each:
        return float(np.partition(scores, len(scores) - k)[len(scores) - k])
    # The 64 lie far apart, so that maxima are taken of whole rows, which is faster than along them.
    return kth_bound(scores[: BLOCK * each].reshape(BLOCK, each).max(axis=0), k)


def reciprocal_rank_fusion(rankings: Sequence[Ranking], weights: Sequence[float]) -> Ranking:
    """Sum over rankings of weight / (60 + rank), rank from 1, equal scores sharing the better one.

    Cormack, Clarke and Buettcher 2009, https://doi.org/10.1145/1571941.1572114. Example, weights 1 and 1: an id first
    in both scores 2/61; an id that only one ranking holds, second there, scores 1/62.
    """
    # Scores are sorted from the best, so the position of the first equal score is the number of better ones.
    ranks = [1 + np.searchsorted(-r.scores, -r.scores).astype(np.float64) for r in rankings]
    return _summed(rankings, [weight / (60 + rank) for weight, rank in zip(weights, ranks, strict=True)])


def weighted_score_fusion(
    rankings: Sequence[Ranking], weights: Sequence[float], ranges: Sequence[tuple[float | None, float | None]]
) -> Ranking:
    """Weighted sum of scores, each ranking's scaled so that its range becomes 0 to 1; a missing id counts 0.

    A range goes from the score of a text that does not match at all, which is 0 for BM25, to the best there can be.
    Where there is no such score, None takes the ranking's last or first. Example, weights .5 and .5, ranges (0, None)
    and (None, None), scores [4, 2, 1] and [.9, .8]: 4 -> 1, 2 -> .5, 1 -> .25; .9 -> 1, .8 -> 0.
    """
    scaled = [_scaled(ranking.scores, *range_) for ranking, range_ in zip(rankings, ranges, strict=True)]
    return _summed(rankings, [weight * scores for weight, scores in zip(weights, scaled, strict=True)])


def fuse(options: Fusion, dense: Ranking, sparse: Ranking, title: Ranking) -> Ranking:
    """One ranking from three, by the weights of the options; the scores of titles go from 0 to 1."""
    rankings = (dense, sparse, title)
    if options.fusion == "rrf":
        return reciprocal_rank_fusion(rankings, options.weights)
    weights = earned_weights(options.weights, title) if options.title_share else options.weights
    return weighted_score_fusion(rankings, weights, ranges=((None, None), (0.0, None), (0.0, 1.0)))


def earned_weights(weights: tuple[float, float, float], title: Ranking) -> tuple[float, float, float]:
    """The weights of dense, sparse and title, where what no title earns of its weight goes to the words.

    A question that names a page is answered there. One that names none has nothing but what it says. Example: of the
    weights .5, .1 and .4, a best title of score .25 earns .1, and the words have .1 + .3.
    """
    by_dense, by_words, by_title = weights
    earned = float(title.scores[0]) if len(title.scores) else 0.0
    return by_dense, by_words + by_title * (1 - earned), by_title


def _scaled(scores: Scores, floor: float | None, ceiling: float | None) -> Scores:
    if len(scores) == 0:
        return scores
    low = scores[-1] if floor is None else floor  # best first
    high = scores[0] if ceiling is None else ceiling
    if high == low:  # all equal: all count as the best, unless none of them matches
        return np.full_like(scores, 0.0 if floor is not None else 1.0)
    return (scores - low) / (high - low)


def _summed(rankings: Sequence[Ranking], parts: Sequence[Scores]) -> Ranking:
    ids, where = np.unique(np.concatenate([ranking.ids for ranking in rankings]), return_inverse=True)
    scores = np.zeros(len(ids))
    np.add.at(scores, where, np.concatenate(parts))
    order = np.lexsort((ids, -scores))
    return Ranking(ids[order], scores[order])
