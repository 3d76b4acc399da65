"""Documents made from rows and pages: one per address, from its page or else from the data set's answers."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import urlparse

from forage.data.qa_rows import QARow
from forage.data.records import Document, clean
from forage.data.relevance import shared_share, trigrams
from forage.data.scraping.page_text import Page
from forage.metrics import grouped
from forage.text import composed, words_of

# An answer is on a page if at least this share of its word triples is; pages change after a data set is made.
ON_PAGE = 0.5


@dataclass
class Library:
    """Documents, and which of them has each row's answer."""

    documents: list[Document] = field(default_factory=list)
    doc_of_row: list[str] = field(default_factory=list)
    """The id of each row's document; empty where it has none."""
    places: dict[str, tuple[str, str]] = field(default_factory=dict)
    """For each URL, its document's id and where that one's text came from: 'page', 'answer' or 'nothing'."""
    answers_added: int = 0
    """Answers missing from their page and added to its document."""
    duplicates: int = 0
    """Documents left out because another has the same text."""


def assemble(rows: Sequence[QARow], pages: Mapping[str, Document]) -> Library:
    """One document per URL (per row, if it has none); equal texts are kept once."""
    library, kept, taken = Library(doc_of_row=[""] * len(rows)), dict[str, Document](), set[str]()
    for place, numbers in grouped((row.url or f"row:{row.id}", number) for number, row in enumerate(rows)).items():
        place_rows = [rows[number] for number in numbers]
        document, missing = _document(place_rows, pages.get(place))
        doc_id, source = "", "nothing"
        if document.text:
            library.answers_added += missing
            if document.text in kept:
                library.duplicates += 1
            else:
                document = replace(document, id=document_id(place, document.url, taken))
                taken.add(document.id)
                kept[document.text] = document
            doc_id, source = kept[document.text].id, kept[document.text].source
        if place_rows[0].url:
            library.places[place] = doc_id, source
        for number in numbers:
            library.doc_of_row[number] = doc_id
    library.documents = list(kept.values())
    return library


def _document(rows: Sequence[QARow], page: Document | None) -> tuple[Document, int]:
    """The document of one place (URL or row), still without an id, and how many answers were added to its page."""
    title, url = next((row.focus for row in rows if row.focus), ""), rows[0].url
    answers = list(dict.fromkeys(text for row in rows if (text := clean(row.answer))))
    if page is None:
        return _with_sections(Document("", title, "", url, "answer"), answers), 0
    on_page = trigrams(page.text)
    missing = [answer for answer in answers if shared_share(trigrams(answer), on_page) < ON_PAGE]
    document = replace(page, title=title or page.title, url=url)
    return _with_sections(document, missing), len(missing)


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


def page_text(page: Page) -> Document:
    """A page as a document without an id: one line per block.

    A section starts, after a blank line, at each heading that follows other text.

    Example: h1 "Asthma", h2 "Care", p "Rest.", h2 "Drugs" -> "Asthma\nCare\nRest.\n\nDrugs", sections (0, 19).
    """
    text, sections, previous = "", [0], None
    for block in page.blocks:
        if previous and block.is_heading and not previous.is_heading:
            text += "\n\n"
            sections.append(len(text))
        elif previous:
            text += "\n"
        text += composed(block.text)
        previous = block
    return Document("", composed(page.title), text, sections=tuple(sections))


def document_id(place: str, url: str, taken: Collection[str] = ()) -> str:
    """A readable and stable name: the end of the path, and a hash of the whole.

    Example: https://ghr.nlm.nih.gov/condition/asthma -> 'asthma-' and 8 hex digits. If another document has taken that,
    as happens among 100,000, there are more digits.
    """
    last = urlparse(url).path.rstrip("/").rsplit("/", 1)[-1].rsplit(".", 1)[0] if url else place.removeprefix("row:")
    slug = "-".join(words_of(last.replace("_", " "), whole_runs=True))[:40] or "page"
    whole = hashlib.sha256(place.encode()).hexdigest()
    return next(name for digits in (8, 16, 32, 64) if (name := f"{slug}-{whole[:digits]}") not in taken)
