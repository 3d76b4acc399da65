"""Documents made from rows and pages: one per address, from its page or else from the data set's answers."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlparse

from forage.data.qa_rows import QARow
from forage.data.records import Document, clean
from forage.data.relevance import shared_share, trigrams
from forage.data.scraping.page_text import Page

# An answer is on a page if at least this share of its word triples is; pages change after a data set is made.
ON_PAGE = 0.5


@dataclass(frozen=True)
class PageText:
    """The text of one fetched page, with the offsets at which its sections start."""

    title: str
    text: str
    sections: tuple[int, ...] = ()


@dataclass(frozen=True)
class Library:
    """Documents, and which of them has each row's answer."""

    documents: list[Document]
    doc_of_row: dict[str, str]
    answers_added: int
    """Answers missing from their page and added to its document."""
    duplicates: int
    """Documents left out because another has the same text."""


def assemble(rows: Sequence[QARow], pages: Mapping[str, PageText]) -> Library:
    """One document per URL (per row, if it has none); equal texts are kept once."""
    by_place: dict[str, list[QARow]] = {}
    for row in rows:
        by_place.setdefault(row.url or f"row:{row.id}", []).append(row)
    documents: list[Document] = []
    kept: dict[str, str] = {}  # digest of a text -> id of its document
    doc_of_row: dict[str, str] = {}
    added = duplicates = 0
    for place, place_rows in by_place.items():
        document, missing = _document(place, place_rows, pages.get(place))
        if not document.text:
            continue
        added += missing
        digest = hashlib.sha256(document.text.encode()).hexdigest()
        if digest in kept:
            duplicates += 1
        else:
            kept[digest] = document.id
            documents.append(document)
        doc_of_row |= {row.id: kept[digest] for row in place_rows}
    return Library(documents, doc_of_row, added, duplicates)


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


def document_id(place: str, url: str) -> str:
    """A readable and stable name: the end of the path, and a hash of the whole.

    Example: https://ghr.nlm.nih.gov/condition/asthma -> 'asthma-' and 8 hex digits.
    """
    last = urlparse(url).path.rstrip("/").rsplit("/", 1)[-1].rsplit(".", 1)[0] if url else place.removeprefix("row:")
    slug = re.sub(r"[^a-z0-9]+", "-", last.lower()).strip("-")[:40] or "page"
    return f"{slug}-{hashlib.sha256(place.encode()).hexdigest()[:8]}"
