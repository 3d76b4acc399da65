"""Credit: what each word of a query added to what its search found, for the tokens that say the word."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from forage.agent.episode import Episode
from forage.agent.protocol import CALL
from forage.agent.rewards import rank_score
from forage.agent.searcher import Place, Searcher
from forage.data.records import Question

Decode = Callable[[Sequence[int]], str]
DEPTH = 100


@dataclass(frozen=True)
class Word:
    """A word of a query."""

    text: str
    tokens: list[int]
    """Places of the sampled tokens that say it."""
    again: bool = False
    """Whether the query has said it before."""

    @property
    def name(self) -> str:
        return self.text.casefold()


def credited(
    episodes: Sequence[Episode], question: Question, searcher: Searcher, decode: Decode, cost: float = 0.0
) -> list[Episode]:
    """A question's episodes with `credits`: what the search would lose without the word that a token says.

    Example: "gout signs" ranks what answers first (1, with depth 100), "gout" tenth (.5) and "signs" not at all (0):
    the tokens of "gout" have a credit of 1 and those of "signs" one of .5 (here without margins, which count as much as
    ranks). `cost` is subtracted from each word's credit. A word that is said again has no credit but its cost: the
    search would weigh it more, and a policy that learns to repeat itself does not end when it takes the likeliest word.

    Words after the one that is left out were sampled with it in sight, so this is no unbiased estimate of what the
    word is worth. Its variance is much smaller than that of the whole query's reward.
    """
    said = [
        (number, list(words_in(episode, search.turn, search.query, decode)), search.query)
        for number, episode in enumerate(episodes)
        for search in episode.searches
    ]
    asked = [text for _, words, query in said for text in (query, *without_each(words))]
    places = iter(searcher.places([question] * len(asked), asked, DEPTH))
    credits = [[0.0] * len(episode.ids) if episode.searches else [] for episode in episodes]
    for number, words, _ in said:
        whole = value(next(places))
        for word in words:
            lost = 0.0 if word.again else whole - value(next(places))
            for token in word.tokens:
                credits[number][token] = lost - cost
    return [replace(episode, credits=tuple(each)) for episode, each in zip(episodes, credits, strict=True)]


def value(place: Place) -> float:
    """From 0 to 1: the mean of rank and margin, as get_search_gain and get_search_margin measure them."""
    return (rank_score(place.rank, DEPTH) + place.margin) / 2


def without_each(words: Sequence[Word]) -> Iterator[str]:
    """The query without each of its words, however often it says it.

    Example: "gout signs gout" gives "signs" and "gout gout".
    """
    for left_out in words:
        if not left_out.again:
            yield " ".join(word.text for word in words if word.name != left_out.name)


def words_in(episode: Episode, turn: int, query: str, decode: Decode) -> Iterator[Word]:
    """Each word of a query.

    A token belongs to the word of its last character that is no space. A query that does not stand in the turn between
    quotes as it was searched for, such as one with escaped characters, has no words here, and so no credit.
    """
    if turn < 0:  # no turn of this conversation asked for it
        return
    first, last = episode.turns[turn].start, episode.turns[turn].end
    ends = [len(decode(episode.ids[first : token + 1]).rstrip()) for token in range(first, last)]
    text = decode(episode.ids[first:last])
    # Inside of a call, as the turn may quote its query elsewhere, and the last there: a query of one word may be the
    # tool's name too, which is said before.
    places = [call.start(1) + place + 1 for call in CALL.finditer(text) if (place := call[1].rfind(f'"{query}"')) >= 0]
    if not places:
        return
    offset = places[-1]
    said = set[str]()
    for match in re.finditer(r"\S+", query):
        start, end = match.start() + offset, match.end() + offset
        tokens = [first + n for n, at in enumerate(ends) if start < at <= end and (not n or ends[n - 1] < at)]
        word = Word(match[0], [token for token in tokens if episode.mask[token]], match[0].casefold() in said)
        said.add(word.name)
        yield word
