"""Questions made without a model: about a title and a heading or telling word, and sentences with a blank.

What does "Care of bees" say about winter feeding?            answer: the beginning of that section
What fills the blank? "... feed ____ of syrup to each hive"   answer: the term, and its sentence
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from forage.data.chunking import Chunk, sentence_spans
from forage.questions.candidates import Candidate, Dropped, drawn
from forage.store.bm25 import STOP_WORDS, Tokenizer

BLANK = "____"
CELL = " | "  # between the cells of a table's row
WORD = re.compile(r"[^\W\d_][\w’'-]*\w")
NUMBER = re.compile(r"(?<![\w.,:/-])\d[\d.,:/]*(?<![.,:/])%?(?![\w-])")
SENTENCE_WORDS = 6, 40  # of a sentence that may get a blank
AROUND = 8  # words shown on each side of a blank: the whole sentence would find itself
HEADING_WORDS, MOST_HEADINGS = 10, 3
LONGEST_NAME = 20  # words of a title or heading in a question
RARE_LETTERS = 5


@dataclass(frozen=True)
class Vocabulary:
    """In how many of the passages each word occurs."""

    passages: int
    counts: Mapping[str, int]

    @classmethod
    def of(cls, passages: Iterable[Chunk]) -> Vocabulary:
        counts, number = Counter[str](), 0
        for passage in passages:
            number += 1
            counts.update({word.lower() for word in WORD.findall(passage.text)})
        return cls(number, counts)


@dataclass(frozen=True)
class Phraser:
    """Makes at most one question of each kind for a passage, the same ones for the same seed."""

    vocabulary: Vocabulary
    seed: int

    async def made(self, passages: Sequence[Chunk]) -> list[Candidate | Dropped]:
        return [candidate for passage in passages for candidate in self.candidates(passage)]

    def candidates(self, passage: Chunk) -> list[Candidate]:
        return [*self._about_title(passage), *self._cloze(passage)]

    def _about_title(self, passage: Chunk) -> Iterator[Candidate]:
        title = shortened(passage.title)
        if not title:
            return
        headings, rest = split_headings(passage.text)
        subjects = [heading for heading in headings if not within(heading, passage.title)]
        sentences = sentences_of(rest)
        if not sentences:
            return
        if subjects:
            subject, answer = shortened(subjects[-1]), " ".join(sentences[:2])
        else:
            subject = self._telling_word(rest, passage.title)
            answer = next((s for s in sentences if re.search(rf"\b{re.escape(subject)}\b", s)), "") if subject else ""
        if subject.endswith("?"):  # the heading of a page of questions
            yield Candidate("title", passage, f"{title}: {subject}", answer)
        elif answer:
            yield Candidate("title", passage, f'What does "{title}" say about {lowered(subject)}?', answer)

    def _telling_word(self, text: str, title: str) -> str:
        """The word that is frequent here and rare elsewhere, as it is first written; the earliest of equals."""
        words = [word for word in WORD.findall(text) if len(word) >= RARE_LETTERS and not within(word, title)]
        here, first = Counter(word.lower() for word in words), {word.lower(): word for word in reversed(words)}
        names = [name for name in dict.fromkeys(word.lower() for word in words) if name not in STOP_WORDS]
        return first[max(names, key=lambda name: here[name] / self._count(name))] if names else ""

    def _cloze(self, passage: Chunk) -> Iterator[Candidate]:
        _, rest = split_headings(passage.text)
        low, high = SENTENCE_WORDS
        sentences = [
            sentence for sentence in sentences_of(rest) if low <= len(sentence.split()) <= high and CELL not in sentence
        ]
        for sentence in sorted(sentences, key=lambda text: drawn(self.seed, passage.id, text)):
            terms = self._terms(sentence, passage.title)
            if terms:
                term, start = min(terms, key=lambda found: drawn(self.seed, passage.id, *found))
                question = f'What fills the blank? "{with_blank(sentence, start, len(term))}"'
                yield Candidate("cloze", passage, question, f"{term}: {sentence}", term)
                return

    def _terms(self, sentence: str, title: str) -> list[tuple[str, int]]:
        """(term, offset) of the numbers and of the rarest word; a term that is said twice gives itself away."""
        found = [(number[0], number.start()) for number in NUMBER.finditer(sentence) if number.start()]
        words = [word for word in WORD.finditer(sentence) if len(word[0]) >= RARE_LETTERS]
        words = [word for word in words if word[0].lower() not in STOP_WORDS and not within(word[0], title)]
        if words:
            rarest = min(words, key=lambda word: (self._count(word[0].lower()), -len(word[0])))
            if self._count(rarest[0].lower()) <= max(1, self.vocabulary.passages // 20):
                found.append((rarest[0], rarest.start()))
        return [(term, start) for term, start in found if len(re.findall(rf"(?i)\b{re.escape(term)}", sentence)) == 1]

    def _count(self, word: str) -> int:
        return max(1, self.vocabulary.counts.get(word, 0))


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
    return len(line.split()) <= HEADING_WORDS and not line.endswith((".", "!", ":", ";", ",")) and CELL not in line


def sentences_of(text: str) -> list[str]:
    """Sentences, each on one line; a chunk may end inside of one, which is left out if it ends without a mark."""
    sentences = [" ".join(text[start:end].split()) for start, end in sentence_spans(text)]
    return [sentence for sentence in sentences if re.search(r"[.!?][\"'”’)\]]*$", sentence)]


def with_blank(sentence: str, start: int, length: int) -> str:
    """The words around a term that is left out.

    Example: ("It was opened in 1923 by the king.", 17, 4) gives "It was opened in ____ by the king."
    """
    before, after = sentence[:start].split(" "), sentence[start + length :].split(" ")
    left = " ".join(before[-AROUND - 1 :]) if len(before) <= AROUND + 1 else "... " + " ".join(before[-AROUND - 1 :])
    right = " ".join(after[: AROUND + 1]) + (" ..." if len(after) > AROUND + 1 else "")
    return f"{left}{BLANK}{right}"


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
