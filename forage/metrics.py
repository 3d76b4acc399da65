"""Metrics: of an answer and of what a search found, bootstrap intervals of their means, and what a difference shows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeVar

import numpy as np
from typing_extensions import TypedDict  # pydantic can't read typing's before Python 3.12

from forage.text import words_of

K = TypeVar("K")
V = TypeVar("V")


def token_f1(answer: str, reference: str) -> float:
    """Harmonic mean of the precision and recall of the answer's words, as SQuAD scores answers; in [0, 1].

    Example: "a big toe" and "the big red toe" share 2 words (articles don't count): precision 2/2, recall 2/3, so 0.8.
    """
    found, wanted = Counter(without_articles(answer)), Counter(without_articles(reference))
    shared = sum((found & wanted).values())
    if not shared:
        return 0.0
    precision, recall = shared / found.total(), shared / wanted.total()
    return 2 * precision * recall / (precision + recall)


def rouge_l(answer: str, reference: str) -> float:
    """ROUGE-L: F1 of the longest common subsequence of words (gaps allowed); in [0, 1].

    Articles count and words are not stemmed, https://aclanthology.org/W04-1013. Example: "the toe is red" and "red is
    the big toe" share "the toe": precision 2/4, recall 2/5, so 4/9.
    """
    found, wanted = map(words_of, (answer, reference))
    return 2 * common_length(found, wanted) / (len(found) + len(wanted)) if found and wanted else 0.0


def common_length(one: Sequence[str], other: Sequence[str]) -> int:
    """Length of the longest common subsequence. Example: a b c d and b x d share b d, so 2.

    Hyyrö's bit-parallel form of the usual table: each bit of one number stands for a word of `one`, and is 0 where the
    table's row rises. So each word of `other` costs four operations, whatever the length of `one`.
    """
    places: dict[str, int] = {}
    for place, word in enumerate(one):
        places[word] = places.get(word, 0) | 1 << place
    every = (1 << len(one)) - 1
    level = every
    for word in other:
        matched = level & places.get(word, 0)
        level = (level + matched | level - matched) & every
    return len(one) - level.bit_count()


def without_articles(text: str) -> list[str]:
    """Example: "The joints – of a toe." gives joints, of, toe."""
    return [word for word in words_of(text) if word not in ("a", "an", "the")]


def recall(found: Sequence[str], relevant: Sequence[str]) -> float:
    """Share of the relevant ids that were found. Example: ([a, b], [b, c]) gives .5."""
    return len(set(found) & set(relevant)) / len(set(relevant)) if relevant else 0.0


def reciprocal_rank(found: Sequence[str], relevant: Sequence[str]) -> float:
    """1 / rank of the first relevant id, or 0 if none was found. Example: ([a, b], [b, c]) gives .5."""
    wanted = set(relevant)
    return next((1 / place for place, doc_id in enumerate(found, 1) if doc_id in wanted), 0.0)


def ndcg(found: Sequence[str], relevant: Sequence[str], k: int) -> float:
    """Gain 1 for each relevant id, discounted by log2(rank + 1), divided by the gain of the best possible k.

    Example: ([a, b], [b, c], 2) gives (1 / log2 3) / (1 + 1 / log2 3) = .387.
    """
    wanted = set(relevant)
    gained = math.fsum(1 / math.log2(place + 1) for place, doc_id in enumerate(found[:k], 1) if doc_id in wanted)
    best = math.fsum(1 / math.log2(place + 1) for place in range(1, min(k, len(wanted)) + 1))
    return gained / best if wanted else 0.0


DRAWS = 2000


def bootstrapped(values: Sequence[float]) -> Interval:
    """Mean and 95 % percentile bootstrap interval over questions. For a paired comparison, pass the differences.

    Example: equal values have an interval of width 0.
    """
    given = np.asarray(values, np.float64)
    drawn = np.random.default_rng(0).integers(len(given), size=(DRAWS, len(given)))
    low, high = np.quantile(given[drawn].mean(axis=1), (0.025, 0.975)).tolist()
    return {"mean": float(given.mean()), "low": low, "high": high}


def span(interval: Interval) -> str:
    """Example: .1 to .25 is '.100 to .250'."""
    return f"{interval['low']:.3f} to {interval['high']:.3f}"


class Interval(TypedDict):
    """A mean over questions and its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float


def clear(found: Interval) -> bool:
    """Whether the interval of a difference excludes zero."""
    return found["low"] > 0 or found["high"] < 0


def figure(found: Interval) -> str:
    """Example: 0.500 (0.400 to 0.600)."""
    return f"{found['mean']:.3f} ({span(found)})"


def signed(found: Interval) -> str:
    """Example: +0.500 (+0.400 to +0.600)."""
    return f"{found['mean']:+.3f} ({found['low']:+.3f} to {found['high']:+.3f})"


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values by their names, in their order. Example: (a, 1), (b, 2), (a, 3) give {a: [1, 3], b: [2]}."""
    groups: dict[K, list[V]] = {}
    for name, value in pairs:
        groups.setdefault(name, []).append(value)
    return groups


# What a paired comparison shows, in words

FEWEST = 6  # questions that differ: so many all go one way by chance once in 32 times, five of them once in 16
CHANCE = 0.05  # the most by which a difference may be by chance
APART = 2.8  # standard errors from zero to a difference that four of five comparisons of its size would show


def needed(gains: Sequence[float]) -> int:
    """About how many questions would show a mean difference like that of `gains`, which must not be 0.

    Example: 1, 0, 0, 0 have mean .25 and deviation .5; a standard error of .25 / 2.8 takes (2.8 * .5 / .25)^2 = 32.
    """
    given = np.asarray(gains, np.float64)
    spread = given.std(ddof=len(given) > 1) / given.mean()
    return math.ceil(float(max((APART * spread) ** 2, FEWEST / np.mean(given != 0))))


def by_chance(gains: Sequence[float]) -> float:
    """How likely chance alone makes a mean so far from 0: what the stricter of two tests says.

    A few questions hold no rare loss that would outweigh many small gains, which the bootstrap can't know. One test
    turns the signs of gains at random; the other, the bootstrap-t, asks how often a mean of draws is as many of their
    deviations off. Example: six equal gains all keep or all change their sign in 2 of 64 cases, .03.
    """
    given, draw = np.asarray(gains, np.float64), np.random.default_rng(0)
    mean, deviation = abs(given.mean()), given.std()
    given = given if given.mean() > 0 else -given
    turned_D = (draw.choice((-1.0, 1.0), (DRAWS, len(given))) @ given) / len(given)
    drawn_DN = given[draw.integers(len(given), size=(DRAWS, len(given)))]
    off_D = (drawn_DN.mean(axis=1) - mean) * deviation - mean * drawn_DN.std(axis=1)  # of equal draws, in the limit
    return float(max(np.mean(abs(turned_D) >= mean - 1e-12), 2 * np.mean(off_D >= -1e-12) if deviation > 1e-9 else 0.0))


def shown(found: Interval, gains: Sequence[float]) -> bool:
    """Whether gains with this interval show a difference."""
    return clear(found) and sum(gain != 0 for gain in gains) >= FEWEST and by_chance(gains) <= CHANCE


def by_document(gains: Sequence[float], documents: Sequence[str]) -> list[float]:
    """The share of each document in the mean: what questions of one document gain is no independent evidence.

    Example: gains 1, 1, 0 of documents a, a, b give 2 / 1.5 and 0 / 1.5, whose mean is that of the gains.
    """
    totals = dict.fromkeys(documents, 0.0)
    for document, gain in zip(documents, gains, strict=True):
        totals[document] += gain
    return [total * len(totals) / len(gains) for total in totals.values()]


def verdict(one: str, other: str, measure: str, gains: Sequence[float], documents: Sequence[str] = ()) -> str:
    """Two sentences on the paired differences of one from the other: what they show, and what they don't.

    `documents` has what answers each question: where several share one, documents are drawn and not questions.
    """
    each, of = len(gains), ""
    if len(set(documents)) < len(documents):
        gains = by_document(gains, documents)
        of = f" of {len(gains)} documents"
    found, differ = bootstrapped(gains), sum(gain != 0 for gain in gains)
    size = f"{one} minus {other} is {signed(found)} in {measure} on {each} questions{of}"
    if shown(found, gains):
        better, worse = (one, other) if found["mean"] > 0 else (other, one)
        other_tries = "whether that holds for another seed, other data or another measure"
        return f"Shown: {better} is better than {worse}; {size}. Not shown: {other_tries}."
    more = "which is better, as their means are alike"
    if round(found["mean"], 3):
        about = float(f"{max(needed(gains), len(gains) + 1) * each / len(gains):.2g}")
        more = f"which is better; about {about:,.0f} questions would show a difference of this size"
    little = "no difference that chance alone could not make"
    if clear(found) and differ < FEWEST:
        little = f"nothing, as only {differ} of them differ"
    return f"Shown: {little}; {size}. Not shown: {more}."
