"""A user's own files as documents: one per file, with a record of what became of each file.

What a PDF shows as a picture of text can't be read.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import re
import stat
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from forage.data.documents import document_id, page_text
from forage.data.records import Document
from forage.data.scraping.page_text import Block, Page, drop_boilerplate, read_page
from forage.errors import UserError
from forage.progress import Counting
from forage.text import encodable

TYPES = {".txt": "txt", ".text": "txt", ".md": "md", ".markdown": "md", ".html": "html", ".htm": "html"}
TYPES |= {".xhtml": "html", ".pdf": "pdf"}
MAX_BYTES = 64 * 2**20  # of one file; a book has one or two megabytes of text
BEFORE_MARKDOWN = re.compile(r"\A---[ \t]*\n.*?^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
HYPHENATED = re.compile(r"(?<=[a-z])-\n(?=[a-z])")


class Unreadable(Exception):
    """Why a file gives no document, and more about it."""

    def __init__(self, cause: str, detail: str = "") -> None:
        super().__init__(cause, detail)
        self.cause, self.detail = cause, detail


@dataclass(frozen=True, slots=True)
class FileRecord:
    """What became of one file: a row of the manifest."""

    path: str
    """Relative to the folder."""
    cause: str = "ok"
    """Why it is no document, or ok."""
    detail: str = ""
    bytes: int = 0
    sha256: str = ""
    document_id: str = ""


@dataclass(frozen=True)
class OwnDocuments:
    """The documents, and what became of every file."""

    documents: list[Document]
    records: list[FileRecord]


def read_folder(folder: Path) -> OwnDocuments:
    """Read every file, one at a time: besides the documents' text, no more than one file is in memory."""
    records: dict[str, FileRecord] = {}
    pages: dict[str, Page] = {}
    files = list(walk(folder))
    with Counting("reading files", len(files)) as bar:
        for path, refused in files:
            # Bytes of a name that are not UTF-8 are shown as \xe9, so that two such names stay two.
            name = os.fsencode(path.relative_to(folder)).decode("utf-8", "backslashreplace")
            records[name], page = _read(path, name, refused)
            if page:
                pages[name] = page
            bar.update()
    html = {name: page for name, page in pages.items() if records[name].detail == "html"}
    pages |= drop_boilerplate(html, site_of)
    documents, kept = [], dict[str, str]()  # kept: text -> id of its document
    for name, page in pages.items():
        text = page_text(page)
        if not text.text:  # it had nothing of its own
            records[name] = replace(records[name], cause="no text")
        elif text.text in kept:
            records[name] = replace(records[name], cause="same text as another", document_id=kept[text.text])
        else:
            kept[text.text] = document_id(name, name)
            records[name] = replace(records[name], document_id=kept[text.text])
            documents.append(Document(kept[text.text], page.title, text.text, "", "file", text.sections))
    if not documents:
        causes = ", ".join(sorted({record.cause for record in records.values()})) or "it is empty"
        raise UserError(
            f"--documents {folder} has no file with text ({causes}); put {', '.join(sorted(TYPES))} files there"
        )
    return OwnDocuments(documents, list(records.values()))


def site_of(name: str) -> str:
    """The folder whose pages are taken for one site's.

    Example: site/bees.html and site/wasps/index.html are in site.
    """
    path = Path(name)
    return str(path.parent.parent if path.stem.lower() == "index" else path.parent)


def walk(folder: Path) -> Iterator[tuple[Path, Unreadable | None]]:
    """What is in a folder and its sub-folders, by name, and why not to read it.

    Links are followed, but no folder is entered twice. Of a hidden folder, and of one that can't be read, only the
    folder itself is told.
    """
    if not folder.is_dir():
        raise UserError(f"--documents {folder}: no such folder; name the folder that holds your files")
    seen: set[tuple[int, int]] = set()
    closed: list[OSError] = []
    for here, folders, names in os.walk(folder, followlinks=True, onerror=closed.append):
        place, entry = Path(here), os.stat(here)
        if (entry.st_dev, entry.st_ino) in seen:
            folders.clear()
            yield place, Unreadable("link to a folder read before")
            continue
        seen.add((entry.st_dev, entry.st_ino))
        hidden = [name for name in folders if name.startswith(".")]
        folders[:] = sorted(set(folders).difference(hidden), key=os.fsencode)
        for name in sorted(names + hidden, key=os.fsencode):
            yield place / name, _refused(place / name)
    for error in closed:
        yield Path(error.filename), Unreadable("can't be read", error.strerror or "")


def _refused(path: Path) -> Unreadable | None:
    if path.name.startswith("."):
        return Unreadable("hidden")
    try:
        mode = path.stat().st_mode
    except OSError as error:  # ELOOP: a link to itself
        return Unreadable("link to nothing" if path.is_symlink() else "can't be read", error.strerror or "")
    if not stat.S_ISREG(mode):
        return Unreadable("not a file")  # a pipe would be waited for
    return None if path.suffix.lower() in TYPES else Unreadable("other type", path.suffix.lower() or "no suffix")


def _read(path: Path, name: str, refused: Unreadable | None) -> tuple[FileRecord, Page | None]:
    record = FileRecord(name)
    try:
        if refused:
            raise refused
        record = replace(record, detail=TYPES[path.suffix.lower()], bytes=path.stat().st_size)
        if record.bytes > MAX_BYTES:
            raise Unreadable(f"over {MAX_BYTES // 2**20} MiB")
        body = path.read_bytes()
        record = replace(record, sha256=hashlib.sha256(body).hexdigest())
        return record, read_document(name, record.detail, body)
    except OSError as error:
        return replace(record, cause="can't be read", detail=error.strerror or ""), None
    except Unreadable as why:
        return replace(record, cause=why.cause, detail=why.detail or record.detail), None


def read_document(name: str, kind: str, body: bytes) -> Page:
    """Title and blocks of one file; Unreadable where it has no text."""
    if not body.strip():
        raise Unreadable("empty")
    if kind == "pdf":
        page = read_pdf(body)
    elif kind == "html":
        page = read_page(body, None)
    elif kind == "md":
        page = read_markdown(_decoded(body))
    else:
        page = Page("", paragraphs(_decoded(body)))
    blocks = tuple(Block(encodable(block.text), block.is_heading) for block in page.blocks)
    if not any(re.search(r"\w", block.text) for block in blocks):
        raise Unreadable("no text")
    return Page(encodable(page.title) or title_of_name(name), blocks)


def _decoded(body: bytes) -> str:
    """Text in UTF-8, with or without its mark. Another encoding can't be told from noise, so it is refused."""
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Unreadable("not UTF-8") from error
    if "\0" in text:
        raise Unreadable("not text")
    return text.replace("\r\n", "\n")


def title_of_name(name: str) -> str:
    """Example: notes/care_of-bees.txt gives "care of bees"."""
    stem = Path(name).stem
    return re.sub(r"[\s_-]+", " ", stem).strip() or stem


def read_markdown(text: str) -> Page:
    """By way of HTML, without front matter and comments. The title is the first heading."""
    from markdown_it import MarkdownIt

    html = MarkdownIt("commonmark").enable("table").render(COMMENT.sub("", BEFORE_MARKDOWN.sub("", text)))
    blocks = read_page(html.encode("utf-8", "replace"), "utf-8").blocks
    return Page(next((block.text for block in blocks if block.is_heading), ""), blocks)


def read_pdf(body: bytes) -> Page:
    """Title, which may be empty, and paragraphs of a PDF. Unreadable where there is no text."""
    import pypdf
    from pypdf.errors import PyPdfError

    # pypdf lets through what its code trips over in a damaged file.
    tripped = (ArithmeticError, AssertionError, AttributeError, LookupError, NotImplementedError, RecursionError)
    tripped += (TypeError, ValueError, struct.error, zlib.error, EOFError)  # type: ignore[assignment]
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it warns of each fault that it can read past
    try:
        reader = pypdf.PdfReader(io.BytesIO(body))
        if reader.is_encrypted:
            raise Unreadable("encrypted PDF")
        title = reader.metadata.title if reader.metadata else None
        blocks = tuple(block for page in reader.pages for block in paragraphs(page.extract_text()))
    except (PyPdfError, *tripped) as error:
        raise Unreadable("damaged PDF") from error
    if not blocks:
        raise Unreadable("PDF without text (scanned?)")
    return Page(" ".join(str(title or "").split()), blocks)


def paragraphs(text: str) -> tuple[Block, ...]:
    """Paragraphs between blank lines, each on one line; a word that a line's end divides is whole again.

    Example: "Bees like cro-\\ncuses.\\n\\nWasps." gives "Bees like crocuses." and "Wasps."
    """
    joined = (" ".join(HYPHENATED.sub("", part).split()) for part in re.split(r"\n\s*\n", text))
    return tuple(Block(part) for part in joined if part)
