"""Credit: what each word of a query added to what its search found, for the tokens that say the word."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from forage.agent.episode import Episode, Search
from forage.agent.protocol import CALL
from forage.agent.rewards import rank_score
from forage.agent.searcher import Place, Searcher
from forage.agent.tools import SEARCH
from forage.data.records import Question

Decode = Callable[[Sequence[int]], str]
DEPTH = 100
STRETCH = 16  # tokens that are decoded together
CALLED = re.compile(rf'"name"\s*:\s*"{SEARCH}"')
QUERY = r'"query"\s*:\s*"({})"'


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
        (number, list(words_in(episode, search, decode, again)), search.query)
        for number, episode in enumerate(episodes)
        for search, again in counted(episode.read_searches)
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


def counted(searches: Sequence[Search]) -> Iterator[tuple[Search, int]]:
    """Each search, and how many of its turn before it had the same query."""
    for number, search in enumerate(searches):
        yield search, sum((each.turn, each.query) == (search.turn, search.query) for each in searches[:number])


def words_in(episode: Episode, search: Search, decode: Decode, again: int = 0) -> Iterator[Word]:
    """Each word of a search's query, where its turn has said the same query `again` times before.

    A token belongs to the word of its last character that is no space. A query that does not stand in a call between
    quotes as it was searched for, such as one with escaped characters, has no words here, and so no credit.
    """
    if search.turn < 0:  # no turn of this conversation asked for it
        return
    first, last = episode.turns[search.turn].start, episode.turns[search.turn].end
    text, field = decode(episode.ids[first:last]), re.compile(QUERY.format(re.escape(search.query)))
    found = [(call.start(1), field.search(call[1])) for call in CALL.finditer(text) if CALLED.search(call[1])]
    places = [start + match.start(1) for start, match in found if match]
    if again >= len(places):
        return
    offset, ends = places[again], ends_of(episode.ids[first:last], decode)
    said = set[str]()
    for match in re.finditer(r"\S+", search.query):
        start, end = match.start() + offset, match.end() + offset
        tokens = [first + n for n, at in enumerate(ends) if start < at <= end and (not n or ends[n - 1] < at)]
        word = Word(match[0], [token for token in tokens if episode.mask[token]], match[0].casefold() in said)
        said.add(word.name)
        yield word


def ends_of(ids: Sequence[int], decode: Decode) -> list[int]:
    """How long the text is up to each token, without spaces at its end.

    What was decoded long before a token isn't decoded again for it. Each stretch begins with the last token of the one
    before, so that it does not matter how a tokenizer decodes the first one, whose space some leave out.
    """
    ends, first, before = list[int](), 0, 0
    for place in range(len(ids)):
        text = decode(ids[first : place + 1])
        ends.append(before + len(text.rstrip()))
        if place - first == STRETCH:
            first, before = place, before + len(text) - len(decode(ids[place : place + 1]))
    return ends
