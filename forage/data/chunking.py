"""Chunks: pieces of a document, split between sentences, that fit the embedder."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from forage.data.records import Document
from forage.errors import UserError

CountTokens = Callable[[Sequence[str]], list[int]]
Span = tuple[int, int]

# A sentence ends at . ! or ? (with closing quotes or brackets) before white space and something that can start a
# sentence (capitals, Cyrillic too; any letter of Hebrew, Arabic and the scripts of India), at a full stop of other
# scripts, or at a line break. The abbreviations that medical text is full of don't end one.
SENTENCE_END = re.compile(
    r"[.!?][\"'”’)\]]*\s+(?=[\"'“‘(\[«„]?[A-Z0-9À-ÞЀ-Я\u05d0-\u0dff])|[。！？｡][”’」』）]*\s*|[؟۔।॥]\s*|\n+"
)
ABBREVIATION = re.compile(r"(?:\b(?:Dr|Mr|Mrs|Ms|Prof|St|vs|e\.g|i\.e|etc|approx|Fig|No|spp?)|\b[A-Z])\.\s+$")
LONGEST_ABBREVIATION = len("approx")
LONGEST_TITLE = 1000  # characters


@dataclass(frozen=True, slots=True)
class Chunk:
    """`document.text[start:end]`, and its place among its document's chunks.

    Example: if the document 'asthma' is split in three, the second chunk has id 'asthma#1', index 1, of 3, previous
    'asthma#0' and next 'asthma#2'.
    """

    doc_id: str
    title: str
    text: str
    start: int
    end: int
    index: int
    of: int

    @property
    def id(self) -> str:
        return f"{self.doc_id}#{self.index}"

    @property
    def previous(self) -> str | None:
        return f"{self.doc_id}#{self.index - 1}" if self.index > 0 else None

    @property
    def next(self) -> str | None:
        return f"{self.doc_id}#{self.index + 1}" if self.index + 1 < self.of else None


def chunk_document(document: Document, count: CountTokens, size: int, overlap: int) -> list[Chunk]:
    """Split each section of a document into chunks of at most `size` tokens; white space alone makes no chunk."""
    if not 0 <= overlap < size:
        raise UserError(f"--chunk-overlap {overlap} must be at least 0 and less than --chunk-tokens {size}")
    length = len(document.text)
    starts = sorted({0, *(start for start in document.sections if 0 < start < length)})
    spans = [
        (section_start + start, section_start + end)
        for section_start, section_end in zip(starts, [*starts[1:], length], strict=True)
        for start, end in chunk_spans(document.text[section_start:section_end], count, size, overlap)
    ]
    title = document.title[:LONGEST_TITLE]  # it is repeated in each chunk: a megabyte would become gigabytes
    return [
        Chunk(document.id, title, document.text[start:end], start, end, index, len(spans))
        for index, (start, end) in enumerate(spans)
    ]


def chunk_spans(text: str, count: CountTokens, size: int, overlap: int) -> list[Span]:
    """Spans that cover every character of `text`, start at sentences and have at most `size` tokens each.

    Consecutive spans share whole sentences of at most `overlap` tokens. Example, one token per word, size 4, overlap 2:
    "A b. C d. E f." -> "A b. C d. ", "C d. E f."
    """
    if not text.strip():
        return []
    units, counts = _fitting(text, list(sentence_spans(text)), count, size)
    spans = [(units[first][0], units[last][1]) for first, last in _pack(counts, size, overlap)]
    # If a word was split, a sub-word tokenizer may need more tokens for the joined text than for its parts: recount.
    return _fitting(text, spans, count, size)[0]


def _fitting(text: str, spans: Sequence[Span], count: CountTokens, size: int) -> tuple[list[Span], list[int]]:
    """The spans, those that are too long in pieces, and their tokens."""
    fitting: list[tuple[Span, int]] = []
    for span, tokens in zip(spans, count([text[start:end] for start, end in spans]), strict=True):
        fitting += [(span, tokens)] if tokens <= size else _halve(text, span, count, size)
    return [span for span, _ in fitting], [tokens for _, tokens in fitting]


def sentence_spans(text: str) -> Iterator[Span]:
    """Spans of sentences that cover `text`; the white space after a sentence belongs to it."""
    start = 0
    for end in SENTENCE_END.finditer(text):
        # Only the last letters are looked at: in a megabyte of "A. A. A. ", a sentence has no end.
        if (
            ABBREVIATION.search(text, max(start, end.start() - LONGEST_ABBREVIATION), end.end())
            and "\n" not in end.group()
        ):
            continue
        yield start, end.end()
        start = end.end()
    if start < len(text):
        yield start, len(text)


def _halve(text: str, span: Span, count: CountTokens, size: int) -> list[tuple[Span, int]]:
    """Split an overlong span at the space nearest to its middle, repeatedly, until each piece fits."""
    start, end = span
    tokens = count([text[start:end]])[0]
    if tokens <= size or end - start == 1:
        return [(span, tokens)]
    middle = (start + end) // 2
    spaces = [place for place in (text.rfind(" ", start + 1, middle), text.find(" ", middle, end - 1)) if place > 0]
    cut = min(spaces, key=lambda place: abs(place - middle)) + 1 if spaces else middle
    return _halve(text, (start, cut), count, size) + _halve(text, (cut, end), count, size)


def _pack(counts: Sequence[int], size: int, overlap: int) -> Iterator[tuple[int, int]]:
    """(first, last) unit of each chunk: as many as fit, starting at most `overlap` tokens before the previous end.

    Example: counts [2, 2, 2], size 4, overlap 2 -> (0, 1), (1, 2).
    """
    first = 0
    while True:
        last, total = first, counts[first]
        while last + 1 < len(counts) and total + counts[last + 1] <= size:
            last += 1
            total += counts[last]
        yield first, last
        if last + 1 == len(counts):
            return
        # The overlap must leave room for the next unit; otherwise a chunk would lie wholly inside the previous one.
        room = min(overlap, size - counts[last + 1])
        start, shared = last + 1, 0
        while start - 1 > first and shared + counts[start - 1] <= room:
            start -= 1
            shared += counts[start]
        first = start
