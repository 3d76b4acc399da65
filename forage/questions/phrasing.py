"""Questions made without a model: about a title and a heading or telling word.

What does "Care of bees" say about winter feeding?            answer: the beginning of that section
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from forage.data.chunking import Chunk, sentence_spans
from forage.questions.vetting import Candidate
from forage.store.bm25 import STOP_WORDS, Tokenizer

WORD = re.compile(r"[^\W\d_][\w’'-]*\w")
HEADING_WORDS, MOST_HEADINGS = 10, 3
LONGEST_NAME = 20  # words of a title or heading in a question
RARE_LETTERS = 5


class Phraser:
    """Makes at most one question for a passage, by how many passages have each word."""

    def __init__(self, passages: Sequence[Chunk]) -> None:
        self.counts = Counter(word for passage in passages for word in set(WORD.findall(passage.text.lower())))

    async def __call__(self, passages: Sequence[Chunk]) -> list[Candidate]:
        made = (phrased(passage, self.counts) for passage in passages)
        return [Candidate("title", passage, *both) for passage, both in zip(passages, made, strict=True) if both]


def phrased(passage: Chunk, counts: Mapping[str, int]) -> tuple[str, str] | None:
    """A question and its answer, where the passage has a title and a whole sentence."""
    title = shortened(passage.title)
    headings, rest = split_headings(passage.text)
    sentences = sentences_of(rest)
    if not title or not sentences:
        return None
    subjects = [heading for heading in headings if not within(heading, passage.title)]
    if subjects:
        subject, answer = shortened(subjects[-1]), " ".join(sentences[:2])
    else:
        subject = telling_word(rest, passage.title, counts)
        answer = next((s for s in sentences if re.search(rf"\b{re.escape(subject)}\b", s)), "") if subject else ""
    if subject.endswith("?"):  # the heading of a page of questions
        return f"{title}: {subject}", answer
    return (f'What does "{title}" say about {lowered(subject)}?', answer) if answer else None


def telling_word(text: str, title: str, counts: Mapping[str, int]) -> str:
    """The word that is frequent here and rare elsewhere, as it is first written; the earliest of equals."""
    words = [word for word in WORD.findall(text) if len(word) >= RARE_LETTERS and not within(word, title)]
    here = Counter(word.lower() for word in words)
    telling = [word for word in words if word.lower() not in STOP_WORDS]
    return max(telling, key=lambda word: here[word.lower()] / max(1, counts[word.lower()]), default="")


def split_headings(text: str) -> tuple[list[str], str]:
    """(lines that look like headings at the beginning, the rest).

    Example: "Asthma\\nCare\\nRest helps." gives (["Asthma", "Care"], "Rest helps."). More than MOST_HEADINGS in a row
    are a list.
    """
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    number = 0
    while number < len(lines) - 1 and is_heading(lines[number]):
        number += 1
    if number > MOST_HEADINGS:
        number = 0
    return lines[:number], "\n".join(lines[number:])


def is_heading(line: str) -> bool:
    return len(line.split()) <= HEADING_WORDS and not line.endswith((".", "!", ":", ";", ",")) and " | " not in line


def sentences_of(text: str) -> list[str]:
    """Sentences, each on one line; a chunk may end inside of one, which is left out if it ends without a mark."""
    sentences = [" ".join(text[start:end].split()) for start, end in sentence_spans(text)]
    return [sentence for sentence in sentences if re.search(r"[.!?][\"'”’)\]]*$", sentence)]


def within(name: str, title: str) -> bool:
    """Whether each telling word of a name is in the title, whatever its form."""
    words = Tokenizer()
    return set(words(name)) <= set(words(title))


def shortened(name: str) -> str:
    words = name.replace('"', "'").split()
    return " ".join(words[:LONGEST_NAME])


def lowered(subject: str) -> str:
    """A subject inside a sentence: a capital at its beginning goes, unless its first word has others.

    Example: "Winter feeding" gives "winter feeding", "DNA tests" stays.
    """
    first, _, rest = subject.partition(" ")
    return " ".join(filter(None, [first.lower() if first[1:].islower() else first, rest]))
