"""Questions behind a name: a subject is described by words of one of its passages, and another one answers.

"What are the symptoms of gout?" becomes "crystals kidney allopurinol: What are the symptoms of this?". A search for it
finds what the words are from, and so the name; a second search, for the name, finds what answers.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from forage.data.chunking import Chunk
from forage.data.records import Question
from forage.data.relevance import by_document
from forage.text import IDLE, whole_words, words_of

SHORTEST = 4  # letters of a word that describes
RAREST, COMMONEST = 5, 0.05  # chunks that say such a word, at least; share of the chunks, at most
FOUND = 10  # a question is dropped if a search for it finds what answers it among so many

Ranks = Callable[[Sequence[str]], Sequence[Sequence[str]]]
"""For each query, the ids of the FOUND best chunks."""


@dataclass(frozen=True)
class Behind:
    """Questions behind a name, and those that none was made of, with the cause."""

    kept: list[Question]
    dropped: list[tuple[Question, str]]
    one_search: float
    """Share of those made that one search for them answered; they are dropped."""
    named: float
    """Share of those kept whose first passage found has the name."""


def behind_names(questions: Sequence[Question], chunks: Sequence[Chunk], words: int, ranks: Ranks, seed: int) -> Behind:
    """Each question that names its document's title, with "this" for it, after `words` words that describe it."""
    chunk_of, chunks_of = {chunk.id: chunk for chunk in chunks}, by_document(chunks)
    spread = Counter(word for chunk in chunks for word in set(words_of(chunk.text)))
    telling = {word for word, count in spread.items() if is_telling(word, count, len(chunks))}
    made, dropped = list[Question](), list[tuple[Question, str]]()
    for question in questions:
        title = chunk_of[question.relevant_chunk_ids[0]].title if question.relevant_chunk_ids else ""
        asked = without_name(question.question, title)
        others = [c for doc in question.relevant_doc_ids for c in chunks_of.get(doc, ())]
        others = [chunk for chunk in others if chunk.id not in question.relevant_chunk_ids]
        said = description(title, others, telling, words, random.Random(f"{seed}/{question.id}")) if asked else []
        if said:
            text = f"{' '.join(said)}: {asked}"
            made.append(replace(question, id=f"{question.id}-behind", question=text, focus=title))
        else:
            dropped.append((question, "no other passage with words enough" if asked else "doesn't say its title"))
    found = dict(zip((q.id for q in made), ranks([q.question for q in made]), strict=True))
    answered = {q.id for q in made if not set(q.relevant_chunk_ids).isdisjoint(found[q.id])}
    kept = [question for question in made if question.id not in answered]
    dropped += [
        (question, f"one search finds its answer ({FOUND} passages)") for question in made if question.id in answered
    ]
    named = [bool(found[q.id]) and chunk_of[found[q.id][0]].title == q.focus for q in kept]
    return Behind(kept, dropped, len(answered) / max(1, len(made)), sum(named) / max(1, len(named)))


def is_telling(word: str, count: int, of: int) -> bool:
    """Whether a word that `count` of so many chunks say describes a subject: neither everywhere nor a misprint."""
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


def description(
    title: str, passages: Sequence[Chunk], telling: set[str], words: int, choose: random.Random
) -> list[str]:
    """So many words at random of the first passage that has them, none of them the title's."""
    name = words_of(title)
    for passage in passages:
        fit = [word for word in dict.fromkeys(words_of(passage.text)) if word in telling and not akin(word, name)]
        if len(fit) >= words:
            return choose.sample(fit, words)
    return []


def akin(word: str, name: Sequence[str]) -> bool:
    """Whether a word is one of the name's or begins as one. Example: "leukemias" and ["leukemia"]."""
    return any(word[:5] == other[:5] or word in other or (len(other) > 3 and other in word) for other in name)


def apart(train: Sequence[Question], held_out: Sequence[Question]) -> tuple[list[Question], list[Question]]:
    """(training questions whose subject is not held out, the others): two documents may be about one subject."""
    subjects = {subject(question) for question in held_out}
    sides: tuple[list[Question], list[Question]] = [], []
    for question in train:
        sides[subject(question) in subjects].append(question)
    return sides


def subject(question: Question) -> str:
    return " ".join(words_of(question.focus))
