"""Questions that need two documents: a passage of one says another's name, and the other answers.

A passage about bronchiectasis says "... lines the airways, as in primary ciliary dyskinesia, and hair-like structures
...". With "What are the genetic changes related to primary ciliary dyskinesia?" it gives "hair structures airways
lines: What are the genetic changes related to this?". A search for it finds the passage, which says a name; a second
search, for that name, finds what answers. Few of the words point to the document that answers, and questions that one
search answers are left out.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from forage.data.chunking import Chunk
from forage.data.records import Question
from forage.text import IDLE, whole_words, words_of

SHORTEST = 4  # letters of a word that describes
RAREST, COMMONEST = 5, 0.05  # passages that say such a word, at least; share of the passages, at most
AROUND = 14  # words on each side of a name, from which the description is drawn
LONGEST_NAME, SHORTEST_NAME, SAID = 6, 6, 30  # words of a name; its letters; passages that say it, at most
FOUND = 10  # a question is left out if a search for it finds what answers it among so many

Name = tuple[str, ...]
Ranks = Callable[[Sequence[str]], Sequence[Sequence[str]]]
"""For each query, the ids of the FOUND best passages."""
Describe = Callable[["Mention", str], str]
"""The text that stands in for a name, in the question of this id; empty if none can."""


@dataclass(frozen=True)
class Mention:
    """A passage that says the name of another document, and where among its words."""

    chunk: Chunk
    place: int
    name: Name

    @property
    def names(self) -> list[str]:
        """Words that a description must not give away: of the name, and of the title of the document that says it."""
        return [*self.name, *words_of(self.chunk.title)]


@dataclass(frozen=True)
class Linked:
    """Questions that need two documents, and those that were left out, with the cause."""

    kept: list[Question]
    dropped: list[tuple[Question, str]]
    named: float
    """Share of those kept whose first passage found says the name."""


class Passages:
    """The passages of a store, what their documents are called, and where they mention one another."""

    def __init__(self, chunks: Sequence[Chunk]) -> None:
        self.chunks = chunks
        self.title_of = {chunk.id: chunk.title for chunk in chunks}
        self.spread = Counter(word for chunk in chunks for word in set(words_of(chunk.text)))
        self.telling = {word for word, count in self.spread.items() if is_telling(word, count, len(chunks))}

    @cached_property
    def mentions(self) -> list[Mention]:
        return mentions(self.chunks, self.title_of.values())

    def title(self, question: Question) -> str:
        """What the document is called that answers."""
        return self.title_of[question.relevant_chunk_ids[0]] if question.relevant_chunk_ids else ""

    def links(self) -> list[tuple[str, str]]:
        """The documents of each mention: the one that says the name, and each that it is the name of."""
        called: dict[Name, set[str]] = defaultdict(set)
        for chunk in self.chunks:
            called[tuple(words_of(chunk.title))].add(chunk.doc_id)
        return [(mention.chunk.doc_id, named) for mention in self.mentions for named in sorted(called[mention.name])]

    def apart(self, train: Sequence[Question], held_out: Sequence[Question]) -> tuple[list[Mention], list[Mention]]:
        """The mentions for questions to train on and for held-out ones, such that no document serves both.

        A document that answers no question itself goes where more of its mentions are answered. What is mentioned under
        the name of something held out is left out of training, also where another document is meant.
        """
        docs = [{doc for question in side for doc in question.relevant_doc_ids} for side in (train, held_out)]
        both = [question for question in train if not docs[1].isdisjoint(question.relevant_doc_ids)]
        names = [{tuple(words_of(self.title(question))) for question in side} for side in (train, held_out, both)]
        names[0] -= names[1] | names[2]
        pull: dict[str, Counter[int]] = defaultdict(Counter)
        for mention in self.mentions:
            pull[mention.chunk.doc_id].update(side for side in (0, 1) if mention.name in names[side])

        def side_of(doc: str) -> int | None:
            own = [side for side in (0, 1) if doc in docs[side]]
            return (own[0] if len(own) == 1 else None) if own else int(pull[doc][1] > pull[doc][0])

        placed = [(mention, side_of(mention.chunk.doc_id)) for mention in self.mentions]
        train_on, held = ([m for m, side in placed if side == of and m.name in names[of]] for of in (0, 1))
        return train_on, held


def mentions(chunks: Sequence[Chunk], titles: Iterable[str]) -> list[Mention]:
    """Where a passage says one of the titles, the longest that begins there, but for its own document's or one akin.

    A title that many passages say names no one thing. Example: of "Gout" and "Gout diet", the text "a gout diet" says
    the latter.
    """
    begun: dict[str, list[Name]] = defaultdict(list)
    for name in {tuple(words_of(title)) for title in titles}:
        if len(name) <= LONGEST_NAME and len("".join(name)) >= SHORTEST_NAME:
            begun[name[0]].append(name)
    for names in begun.values():
        names.sort(key=lambda name: (-len(name), name))
    found = list[Mention]()
    for chunk in chunks:
        words, own, end = words_of(chunk.text), words_of(chunk.title), 0
        said = set[Name]()
        for place, word in enumerate(words):
            fitting = [name for name in begun.get(word, ()) if tuple(words[place : place + len(name)]) == name]
            if not fitting or place < end:
                continue
            name = fitting[0]
            end = place + len(name)
            if name not in said and not (says(own, name) or says(name, own)):
                said.add(name)
                found.append(Mention(chunk, place, name))
    spread = Counter(mention.name for mention in found)
    return [mention for mention in found if spread[mention.name] <= SAID]


def says(words: Sequence[str], name: Sequence[str]) -> bool:
    """Example: ["kidney", "failure", "diet"] says ["kidney", "failure"]."""
    return f" {' '.join(name)} " in f" {' '.join(words)} "


def link(
    passages: Passages, questions: Sequence[Question], found: Sequence[Mention], describe: Describe, ranks: Ranks,
    seed: int,
) -> Linked:  # fmt: skip
    """A question for each mention and each question about what it names, which it describes."""
    about: dict[Name, list[tuple[Question, str]]] = defaultdict(list)
    dropped = list[tuple[Question, str]]()
    for question in questions:
        title = passages.title(question)
        if asked := without_name(question.question, title):
            about[tuple(words_of(title))].append((question, asked))
        else:
            dropped.append((question, "doesn't say its title"))
    made, texts = list[Question](), set[str]()
    passage_of = dict[str, Chunk]()
    for mention in found:
        for question, asked in about.get(mention.name, ()):
            name = f"{question.id}-after-{mention.chunk.doc_id}"
            if mention.chunk.doc_id in question.relevant_doc_ids or name in passage_of:
                continue
            if said := describe(mention, name):
                text = f"{said}: {asked}"
                if text in texts:  # the words are few
                    continue
                texts.add(text)
                made.append(replace(question, id=name, question=text, focus=passages.title(question)))
                passage_of[name] = mention.chunk
            else:
                dropped.append((question, "nothing describes its name"))
    random.Random(seed).shuffle(made)
    hits = dict(zip((q.id for q in made), ranks([q.question for q in made]), strict=True))
    answered = {q.id for q in made if not set(q.relevant_chunk_ids).isdisjoint(hits[q.id])}
    kept = [question for question in made if question.id not in answered]
    dropped += [(q, f"one search finds its answer ({FOUND} passages)") for q in made if q.id in answered]
    named = [hits[q.id][:1] == [passage_of[q.id].id] for q in kept]
    return Linked(kept, dropped, sum(named) / max(1, len(named)))


def is_telling(word: str, count: int, of: int) -> bool:
    """Whether a word that `count` of so many passages say describes something: neither everywhere nor a misprint."""
    least = min(RAREST, max(2, of // 1000))
    return len(word) >= SHORTEST and word.isalpha() and word not in IDLE and least <= count <= max(4, COMMONEST * of)


def without_name(question: str, title: str) -> str:
    """The question with "this" for its title, empty if it doesn't say it.

    Example: "What causes Gout ?", titled "Gout", gives "What causes this?".
    """
    if not title.strip():
        return ""
    text, count = re.subn(f'"?{whole_words(title)}"?', "this", question, flags=re.IGNORECASE)
    return re.sub(r"\s+([?.!,])", r"\1", " ".join(text.split())) if count else ""


def description(telling: set[str], words: int, seed: int, mention: Mention, question: str) -> str:
    """So many words at random from around the name, none akin to it or to the title of the document that says it."""
    said = words_of(mention.chunk.text)
    end = mention.place + len(mention.name)
    around = said[max(0, mention.place - AROUND) : mention.place] + said[end : end + AROUND]
    fit = [word for word in dict.fromkeys(around) if word in telling and not akin(word, mention.names)]
    return " ".join(random.Random(f"{seed}/{question}").sample(fit, words)) if len(fit) >= words else ""


def akin(word: str, name: Sequence[str]) -> bool:
    """Whether a word is one of the name's or begins as one. Example: "leukemias" and ["leukemia"]."""
    return any(word[:5] == other[:5] or word in other or (len(other) > 3 and other in word) for other in name)
