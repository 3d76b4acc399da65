"""Documents made from rows and pages: one per address, from its page or else from the data set's answers."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol
from urllib.parse import urlparse

from forage.data.qa_rows import QARow
from forage.data.records import Document, clean
from forage.data.relevance import shared_share, trigrams
from forage.data.scraping.page_text import Page
from forage.spool import digest, grouped, new_rows

# An answer is on a page if at least this share of its word triples is; pages change after a data set is made.
ON_PAGE = 0.5


@dataclass(frozen=True)
class PageText:
    """The text of one fetched page, with the offsets at which its sections start."""

    title: str
    text: str
    sections: tuple[int, ...] = ()


class PageTexts(Protocol):
    """Where the text of a page is got from by its address; a dictionary is one."""

    def get(self, url: str, /) -> PageText | None: ...


@dataclass(frozen=True, slots=True)
class Place:
    """A URL, which document it led to, and where that one's text came from: 'page', 'answer' or 'nothing'."""

    url: str
    document_id: str
    source: str


@dataclass(frozen=True)
class Library:
    """Documents, and which of them has each row's answer."""

    documents: Sequence[Document]
    doc_of_row: list[str]
    """The id of each row's document; empty where it has none."""
    places: Sequence[Place]
    sources: Counter[str]
    """How many documents came from where."""
    answers_added: int
    """Answers missing from their page and added to its document."""
    duplicates: int
    """Documents left out because another has the same text."""


def assemble(rows: Sequence[QARow], pages: PageTexts, near: Path | None = None) -> Library:
    """One document per URL (per row, if it has none); equal texts are kept once.

    With a folder `near`, documents and places lie in files there. In memory are ids and digests.
    """
    documents, places, sources = new_rows(near), new_rows(near), Counter[str]()
    kept: dict[bytes, tuple[str, str]] = {}  # digest of a text -> id and source of its document
    taken: set[str] = set()
    doc_of_row = [""] * len(rows)
    added = duplicates = 0
    for numbers in grouped(map(place_of, rows)):
        place_rows = [rows[number] for number in numbers]
        place = place_of(place_rows[0])
        document, missing = _document(place, place_rows, pages.get(place))
        doc_id, source = "", "nothing"
        if document.text:
            added += missing
            key = digest(document.text)
            if key in kept:
                duplicates += 1
            else:
                document = _with_own_id(document, place, taken)
                taken.add(document.id)
                kept[key] = document.id, document.source
                sources[document.source] += 1
                documents.append(document)
            doc_id, source = kept[key]
        if place_rows[0].url:
            places.append(Place(place, doc_id, source))
        for number in numbers:
            doc_of_row[number] = doc_id
    return Library(documents, doc_of_row, places, sources, added, duplicates)


def place_of(row: QARow) -> str:
    """Rows of one place make one document."""
    return row.url or f"row:{row.id}"


def _with_own_id(document: Document, place: str, taken: set[str]) -> Document:
    """The document, with more of the hash in its id if another one has that id: among 100,000 addresses some do."""
    digits = 8
    while document.id in taken:
        digits *= 2
        document = replace(document, id=document_id(place, document.url, digits))
    return document


def _document(place: str, rows: Sequence[QARow], page: PageText | None) -> tuple[Document, int]:
    """The document of one place (URL or row), and how many answers were added to its page's text."""
    title = next((row.focus for row in rows if row.focus), "") or (page.title if page else "")
    url = rows[0].url
    document = Document(document_id(place, url), title, page.text if page else "", url, "page" if page else "answer")
    document = replace(document, sections=page.sections if page else ())
    answers = list(dict.fromkeys(text for row in rows if (text := clean(row.answer))))
    if page:
        on_page = trigrams(page.text)
        answers = [answer for answer in answers if shared_share(trigrams(answer), on_page) < ON_PAGE]
    return _with_sections(document, answers), len(answers) if page else 0


def _with_sections(document: Document, texts: Iterable[str]) -> Document:
    """The document with each text appended as a section.

    Example: text "", texts "Ab." and "Cd." -> text "Ab.\\n\\nCd.", sections (0, 5).
    """
    text, sections = document.text, list(document.sections)
    for addition in texts:
        text += "\n\n" if text else ""
        sections.append(len(text))
        text += addition
    return replace(document, text=text, sections=tuple(sections))


def page_text(page: Page) -> PageText:
    """One line per block; a section starts, after a blank line, at each heading that follows other text.

    Example: h1 "Asthma", h2 "Care", p "Rest.", h2 "Drugs" -> "Asthma\nCare\nRest.\n\nDrugs", sections (0, 19).
    """
    text, sections, previous = "", [0], None
    for block in page.blocks:
        if previous and block.is_heading and not previous.is_heading:
            text += "\n\n"
            sections.append(len(text))
        elif previous:
            text += "\n"
        text += block.text
        previous = block
    return PageText(page.title, text, tuple(sections))


def document_id(place: str, url: str, digits: int = 8) -> str:
    """A readable and stable name: the end of the path, and a hash of the whole.

    Example: https://ghr.nlm.nih.gov/condition/asthma -> 'asthma-' and 8 hex digits.
    """
    last = urlparse(url).path.rstrip("/").rsplit("/", 1)[-1].rsplit(".", 1)[0] if url else place.removeprefix("row:")
    slug = re.sub(r"[^a-z0-9]+", "-", last.lower()).strip("-")[:40] or "page"
    return f"{slug}-{hashlib.sha256(place.encode()).hexdigest()[:digits]}"
