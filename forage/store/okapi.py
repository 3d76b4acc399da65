"""The package rank_bm25 as a store's index, for those who would rather take it than our own (`--bm25 rank_bm25`).

The scores are the same to the last digits (tests/store/test_okapi.py). It goes through all texts for each word of each
query, and is built anew each time a store is opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from rank_bm25 import BM25Okapi

from forage.store.fusion import Ranking, top_k


class Okapi:
    """rank_bm25.BM25Okapi, searched as our BM25 is."""

    def __init__(self, tokenized: Iterable[Sequence[str]]) -> None:
        texts = list(tokenized)
        self.size = len(texts)
        # It divides by the texts' mean length, and by the number of words.
        self._index = BM25Okapi(texts) if any(texts) else None

    def scores(self, words: Sequence[str]) -> NDArray[np.float64]:
        if self._index is None:
            return np.zeros(self.size)
        return np.asarray(self._index.get_scores(list(words)), np.float64)

    def rank(self, words: Sequence[str], k: int) -> Ranking:
        """The k best texts that contain at least one of the words."""
        scores = self.scores(words)
        ids = top_k(scores, k, above=0.0)
        return Ranking(ids, scores[ids])
