"""BM25 with the exact scores of rank_bm25.BM25Okapi, precomputed for each (term, text) pair; of chunks, and of titles.

`rank_bm25` goes through all texts for each word of each query. With precomputed scores, a query is the sum of a few
sparse rows. The library `bm25s` does this too, but none of its variants has BM25Okapi's floor under the idf of frequent
words, it scores in 32 bits, and the order of its ties is not fixed; this is as fast (`python -m bench.retrieval`).
"""

from __future__ import annotations

import json
import zipfile
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import Stemmer
from numpy.typing import NDArray

from forage.errors import UserError
from forage.files import replacing
from forage.store.fusion import Ids, Ranking, top_k
from forage.text import UNSPACED_CHARACTER, words_of

STOP_WORDS = frozenset(
    """
    a an and are as at be been but by can did do does for from had has have how if in into is it its may
    more most no not of on or other over should so such than that the their them then there these they
    this those to was were what when where which who why will with would you your
    """.split()
)
K1, B, EPSILON = 1.5, 0.75, 0.25  # BM25Okapi's defaults
# A row with scores for at least a quarter of the texts is added as a dense row, which is faster than by index.
DENSE_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """Stems of lower-cased words, without stop words of English.

    Example: "What are the causes of Gout?" -> ["caus", "gout"]. Of other languages, scripts that put no spaces between
    words become pairs of characters, as in Lucene: "痛风的病因" -> ["痛风", "风的", "的病", "病因"].
    """

    language: str = "english"

    def __call__(self, text: str) -> list[str]:
        words = words_of(text, whole_runs=True)
        if self.language == "english":
            words = [word for word in words if word not in STOP_WORDS]
        else:
            words = [part for word in words for part in (_pairs(word) if UNSPACED_CHARACTER.match(word) else [word])]
        return words if self.language == "other" else _stemmer(self.language).stemWords(words)


@lru_cache
def _stemmer(language: str) -> Stemmer.Stemmer:
    return Stemmer.Stemmer(language)


def _pairs(word: str) -> list[str]:
    """Example: "abc" gives ab, bc; "a" gives a."""
    return [word[place : place + 2] for place in range(max(1, len(word) - 1))]


@dataclass
class BM25:
    """Scores in compressed rows: term t occurs in texts[starts[t]:starts[t+1]], with weights[starts[t]:starts[t+1]]."""

    terms: dict[str, int]
    starts: NDArray[np.int64]
    texts: NDArray[np.int32]
    weights: NDArray[np.float64]
    size: int
    _dense_rows: dict[int, NDArray[np.float64]] = field(default_factory=dict, repr=False)

    @classmethod
    def build(cls, tokenized: Iterable[Sequence[str]]) -> BM25:
        """Index texts given as lists of words."""
        terms: dict[str, int] = {}
        # Not lists: of a word in a text, these take 16 bytes.
        term_ids, text_ids, counts, lengths = array("q"), array("i"), array("i"), array("q")
        for text_id, words in enumerate(tokenized):
            lengths.append(len(words))
            for word, count in Counter(words).items():
                term_ids.append(terms.setdefault(word, len(terms)))
                text_ids.append(text_id)
                counts.append(count)
        occurrences = np.asarray(term_ids), np.asarray(text_ids), np.asarray(counts)
        return cls(terms, *_weigh(*occurrences, np.asarray(lengths), len(terms)), len(lengths))

    def scores(self, words: Sequence[str]) -> NDArray[np.float64]:
        """The score of every text, exactly as BM25Okapi.get_scores computes it: terms are added in the same order."""
        total = np.zeros(self.size)
        for word in words:
            term = self.terms.get(word)
            if term is None:
                continue
            row = slice(self.starts[term], self.starts[term + 1])
            if row.stop - row.start >= DENSE_SHARE * self.size:
                total += self._dense_row(term, row)
            else:
                np.add.at(total, self.texts[row], self.weights[row])  # two to three times as fast as total[...] +=
        return total

    def rank(self, words: Sequence[str], k: int, only: Ids | None = None) -> Ranking:
        """The k best texts, `only` among some if they are given, that contain at least one of the words."""
        scores = self.scores(words)
        ids = top_k(scores, k, 0.0, only)
        if not len(ids):  # told by the ids, as another pass over all scores would take a tenth of the time
            scores = self.relevance(words)
            ids = top_k(scores, k, 0.0, only)
        return Ranking(ids, scores[ids])

    def relevance(self, words: Sequence[str]) -> NDArray[np.float64]:
        """The scores; where none is above 0, how many of the words each text has.

        BM25Okapi takes a word that half of the texts have for no sign of any: of two texts it finds neither, though
        one of them alone has the word.
        """
        scores = self.scores(words)
        if scores.max(initial=0.0) > 0:
            return scores
        terms = {self.terms[word] for word in words if word in self.terms}
        held = [self.texts[self.starts[term] : self.starts[term + 1]] for term in terms]
        return np.bincount(np.concatenate([*held, self.texts[:0]]), minlength=self.size).astype(np.float64)

    def _dense_row(self, term: int, row: slice) -> NDArray[np.float64]:
        if term not in self._dense_rows:
            dense = np.zeros(self.size)
            dense[self.texts[row]] = self.weights[row]
            self._dense_rows[term] = dense
        return self._dense_rows[term]

    def save(self, path: Path) -> None:
        """Write one .npz without pickles, under a temporary name that is then renamed."""
        words = np.frombuffer(json.dumps(list(self.terms)).encode(), np.uint8)
        with replacing(path) as file:
            np.savez(
                file.buffer, words=words, starts=self.starts, texts=self.texts, weights=self.weights, size=self.size
            )

    @classmethod
    def load(cls, path: Path) -> BM25:
        try:
            with np.load(path, allow_pickle=False) as file:
                terms = {word: term for term, word in enumerate(json.loads(file["words"].tobytes()))}
                return cls(terms, file["starts"], file["texts"], file["weights"], int(file["size"]))
        except (zipfile.BadZipFile, ValueError, KeyError) as error:
            raise UserError(f"{path} is damaged ({error}); re-run the build") from error


def _weigh(
    term_ids: NDArray[np.int64],
    text_ids: NDArray[np.int32],
    counts: NDArray[np.int32],
    lengths_N: NDArray[np.int64],
    n_terms: int,
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float64]]:
    """(starts, texts, weights): the score of each (term, text) pair, in BM25Okapi's order of operations."""
    order = np.argsort(term_ids, kind="stable")
    texts = text_ids[order]
    frequency = counts[order].astype(np.int64)
    mean_length = lengths_N.sum() / max(len(lengths_N), 1)
    document_frequency = np.bincount(term_ids, minlength=n_terms)
    idf = np.repeat(_idf(document_frequency, len(lengths_N)), document_frequency)
    norm = K1 * (1 - B + B * lengths_N[texts] / mean_length) if len(texts) else np.zeros(0)
    weights = idf * (frequency * (K1 + 1) / (frequency + norm))
    return np.concatenate([[0], np.cumsum(document_frequency)]).astype(np.int64), texts, weights


def _idf(document_frequency: NDArray[np.int64], n_texts: int) -> NDArray[np.float64]:
    """log((N - n + .5) / (n + .5)); a word in more than half of the texts gets EPSILON times the mean of all words."""
    idf: NDArray[np.float64] = np.log(n_texts - document_frequency + 0.5) - np.log(document_frequency + 0.5)
    if len(idf):
        # A running sum like BM25Okapi's; numpy's sum adds in another order.
        mean = np.cumsum(idf)[-1] / len(idf)
        idf[idf < 0] = EPSILON * mean
    return idf


@dataclass(frozen=True)
class Titles:
    """The distinct titles of a store, and which of them each chunk has."""

    index: BM25
    of_chunk: Ids
    words: list[frozenset[str]]
    """The distinct words of each title."""

    @classmethod
    def build(cls, titles: Sequence[str], tokenize: Callable[[str], list[str]]) -> Titles:
        """From the title of each chunk."""
        number = {title: place for place, title in enumerate(dict.fromkeys(titles))}
        words = [tokenize(title) for title in number]
        of_chunk = np.array([number[title] for title in titles], np.int64)
        return cls(BM25.build(words), of_chunk, list(map(frozenset, words)))

    def rank(self, words: Sequence[str], chunks: Ids, by_share: bool) -> Ranking:
        """These chunks by how well the words match their titles, from 0 to 1.

        A title's BM25 score over that of the best title among these, squared, because partly matching names mislead: a
        title that matches half as well as the best counts .25. With `by_share` this is multiplied by the share of the
        title's words that were said, as else the best title would count fully however little of it was.
        """
        titles = self.of_chunk[chunks]
        # Of few titles, a word that most of them have may score below 0.
        scores = np.square(self.index.relevance(words).clip(0))[titles]
        best = scores.max(initial=0.0)
        scores = scores / best if best else scores
        if by_share:
            scores = scores * np.array([said_share(self.words[title], words) for title in titles.tolist()])
        order = np.lexsort((chunks, -scores))
        return Ranking(chunks[order], scores[order])


def said_share(title: frozenset[str], words: Sequence[str]) -> float:
    """The share of a title's words that are among these. Example: of "gouty arthritis", "arthritis" says .5."""
    return len(title.intersection(words)) / max(len(title), 1)
