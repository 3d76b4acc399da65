"""A user's own files as documents: one per file, with a record of what became of each file.

What a PDF shows as a picture of text can't be read.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import re
import zlib
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

from lxml import etree

from forage.data.documents import document_id, page_text
from forage.data.records import Document
from forage.data.scraping.page_text import Block, Page, drop_boilerplate, read_page
from forage.errors import UserError
from forage.progress import counted
from forage.text import composed, encodable

TYPES = {".txt": "txt", ".text": "txt", ".md": "md", ".markdown": "md", ".html": "html", ".htm": "html"}
TYPES |= {".xhtml": "html", ".pdf": "pdf", ".docx": "docx"}
MAX_BYTES = 64 * 2**20  # of one file; a book has one or two megabytes of text
BEFORE_MARKDOWN = re.compile(r"\A---[ \t]*\n.*?^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
MOST_IN_TITLE = 8  # words
DOCUMENT, STYLES = "word/document.xml", "word/styles.xml"
HYPHENATED = re.compile(r"(?<=[a-z])-\n(?=[a-z])")


class Unreadable(Exception):
    """Why a file gives no document."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """What became of one file: a row of the manifest."""

    path: str
    """Relative to the folder."""
    cause: str = "ok"
    """Why it is no document, or ok."""
    bytes: int = 0
    sha256: str = ""
    document_id: str = ""


@dataclass(frozen=True)
class OwnDocuments:
    """The documents, and what became of every file."""

    documents: list[Document]
    records: list[FileRecord]
    recurring: Counter[str]
    """The paragraphs left out of pages of HTML because they recur, and on how many."""


def read_folder(folder: Path, *, keep_recurring: bool = False) -> OwnDocuments:
    """Read every file that is not hidden, one at a time: besides the documents' text, one file is in memory."""
    if not folder.is_dir():
        what = "a file" if folder.exists() else "no such folder"
        raise UserError(f"--documents {folder}: {what}; name the folder that holds your files")
    records: dict[str, FileRecord] = {}
    pages: dict[str, Page] = {}
    root = folder.resolve()
    files = [path.relative_to(folder) for path in folder.rglob("*") if not path.is_dir()]
    files = [path for path in files if not any(part.startswith(".") for part in path.parts)]
    # Bytes of a name that are not UTF-8 are shown as \xe9, so that two such names stay two.
    names = {path: os.fsencode(path).decode("utf-8", "backslashreplace") for path in files}
    alike = Counter(map(composed, names.values()))
    for path in counted("reading files", sorted(files, key=lambda path: Path(composed(names[path])))):
        name = composed(names[path]) if alike[composed(names[path])] == 1 else names[path]
        records[name], page = _read(folder / path, name, root)
        if page:
            pages[name] = page
    html = {name: page for name, page in pages.items() if TYPES[Path(name).suffix.lower()] == "html"}
    changed, recurring = drop_boilerplate({} if keep_recurring else html, lambda name: str(Path(name).parent))
    pages |= changed
    documents, kept = dict[str, Document](), dict[str, str]()  # kept: text -> id of its document
    for name, page in pages.items():
        text = page_text(page)
        if not text.text:  # it had nothing of its own
            records[name] = replace(records[name], cause="no text")
        elif text.text in kept:
            records[name] = replace(records[name], cause="same text as another", document_id=kept[text.text])
        else:
            kept[text.text] = own = document_id(name, name, documents)
            records[name] = replace(records[name], document_id=own)
            documents[own] = replace(text, id=own, source="file")
    if not documents:
        causes = ", ".join(sorted({record.cause for record in records.values()})) or "it is empty"
        raise UserError(
            f"--documents {folder} has no file with text ({causes}); put {', '.join(sorted(TYPES))} files there"
        )
    return OwnDocuments(list(documents.values()), list(records.values()), recurring)


def _read(path: Path, name: str, root: Path) -> tuple[FileRecord, Page | None]:
    record = FileRecord(name)
    try:
        if not path.is_file():
            raise Unreadable("not a file")  # a pipe would be waited for
        if not path.resolve().is_relative_to(root):
            raise Unreadable("a link out of the folder")
        if path.suffix.lower() not in TYPES:
            raise Unreadable("other type")
        if path.stat().st_size > MAX_BYTES:
            raise Unreadable(f"over {MAX_BYTES // 2**20} MiB")
        body = path.read_bytes()
        record = replace(record, bytes=len(body), sha256=hashlib.sha256(body).hexdigest())
        return record, read_document(name, TYPES[path.suffix.lower()], body)
    except OSError:
        return replace(record, cause="can't be read"), None
    except Unreadable as why:
        return replace(record, cause=str(why)), None


def read_document(name: str, kind: str, body: bytes) -> Page:
    """Title and blocks of one file; Unreadable where it has no text."""
    if kind == "pdf":
        page = read_pdf(body)
    elif kind == "docx":
        page = read_docx(body)
    elif kind == "html":
        page = read_page(body, None)
    elif kind == "md":
        page = read_markdown(_decoded(body))
    else:
        page = read_text(_decoded(body))
    blocks = tuple(Block(encodable(block.text), block.is_heading) for block in page.blocks)
    if not any(re.search(r"\w", block.text) for block in blocks):
        raise Unreadable("no text")
    return Page(encodable(page.title) or title_of_name(name), blocks)


def _decoded(body: bytes) -> str:
    """Text in UTF-8, with or without its mark. Another encoding can't be told from noise, so it is refused."""
    try:
        return body.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise Unreadable("not UTF-8") from error


def title_of_name(name: str) -> str:
    """Example: notes/care_of-bees.txt gives "care of bees"."""
    stem = Path(name).stem
    return re.sub(r"[\s_-]+", " ", stem).strip() or stem


def read_text(text: str) -> Page:
    """A plain text. A short line without a full stop is a heading, if it stands alone, whatever # it begins with; a
    first one is the title.

    Example: "Rye\n\nA cereal.\n\nSowing\n\nIn fall." has the title "Rye" and a section "Sowing".
    """
    blocks = tuple(Block(bare, True) if is_title(bare := each.text.lstrip("# ")) else each for each in paragraphs(text))
    return Page(blocks[0].text if blocks and blocks[0].is_heading else "", blocks)


def is_title(line: str) -> bool:
    return bool(re.match(r"[^\W_]", line)) and len(line.split()) <= MOST_IN_TITLE and line[-1] not in ".,;:!?"


def read_markdown(text: str) -> Page:
    """By way of HTML, without front matter. The title is the first heading of the first level."""
    from markdown_it import MarkdownIt

    html = MarkdownIt("commonmark").enable("table").render(BEFORE_MARKDOWN.sub("", text))
    return read_page(html.encode("utf-8", "replace"), "utf-8")


def read_pdf(body: bytes) -> Page:
    """Title, which may be empty, and paragraphs of a PDF. Unreadable where there is no text."""
    import pypdf

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it warns of each fault that it can read past
    try:
        reader = pypdf.PdfReader(io.BytesIO(body))
        if reader.is_encrypted:
            raise Unreadable("encrypted PDF")
        title = reader.metadata.title if reader.metadata else None
        blocks = tuple(block for page in reader.pages for block in paragraphs(page.extract_text()))
    except Unreadable:
        raise
    except Exception as error:  # whatever pypdf's code trips over in a damaged file
        raise Unreadable("damaged PDF") from error
    if not blocks:
        raise Unreadable("PDF without text (scanned?)")
    return Page(" ".join(str(title or "").split()), blocks)


WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
SHOWN_AGAIN = {"{http://schemas.openxmlformats.org/markup-compatibility/2006}Fallback", WORD + "moveFrom"}
OTHER_KIND = "a Word document of another kind; save it as .docx again"
PACKED = {ZIP_STORED, ZIP_DEFLATED}  # as Word does; what is packed otherwise has no bound
DAMAGED = (BadZipFile, EOFError, RuntimeError, ValueError, etree.XMLSyntaxError, zlib.error)
SPACES = {WORD + "tab", WORD + "br", WORD + "cr", WORD + "p", WORD + "tc"}  # between what is before them and after


def read_docx(body: bytes) -> Page:
    """Headings, paragraphs and the rows of tables of a Word document. The title is the first heading."""
    parser = etree.XMLParser(resolve_entities=False, no_network=True, remove_comments=True, remove_pis=True)
    try:
        with ZipFile(io.BytesIO(body)) as parts:
            files = {each.filename: each for each in parts.infolist()}
            if DOCUMENT not in files or any(each.compress_type not in PACKED for each in files.values()):
                raise Unreadable(OTHER_KIND)
            if any(files[name].file_size > MAX_BYTES for name in (DOCUMENT, STYLES) if name in files):
                raise Unreadable(f"over {MAX_BYTES // 2**20} MiB")
            read: list[Any] = [
                etree.fromstring(parts.read(name), parser) for name in (DOCUMENT, STYLES) if name in files
            ]
    except DAMAGED as error:
        raise Unreadable("damaged or encrypted Word document") from error
    if read[0].tag != WORD + "document":
        raise Unreadable(OTHER_KIND)
    names = [name for root in read for name in root.iterfind(f".//{WORD}style/{WORD}name")]
    headings = {  # by their names: Word translates the ids
        name.getparent().get(WORD + "styleId")
        for name in names
        if name.get(WORD + "val", "").lower().startswith(("heading", "title"))
    }
    blocks = tuple(block for root in read for block in word_blocks(root, headings) if block.text)
    return Page(next((block.text for block in blocks if block.is_heading), ""), blocks)


def word_blocks(parent: Any, headings: Collection[str]) -> Iterator[Block]:
    for child in parent:
        if child.tag == WORD + "p":
            style = child.find(f"{WORD}pPr/{WORD}pStyle")
            yield Block(word_text(child), style is not None and style.get(WORD + "val") in headings)
        elif child.tag == WORD + "tr":
            own = (cell for cell in child.iter(WORD + "tc") if next(cell.iterancestors(WORD + "tr")) is child)
            yield Block(" | ".join(filter(None, map(word_text, own))))
        elif child.tag not in SHOWN_AGAIN:
            yield from word_blocks(child, headings)


def word_text(node: Any) -> str:
    def pieces(node: Any) -> Iterator[str]:
        for child in node:
            if child.tag == WORD + "t":
                yield child.text or ""
            elif child.tag == WORD + "noBreakHyphen":
                yield "-"
            elif child.tag not in SHOWN_AGAIN:
                yield " " * (child.tag in SPACES)
                yield from pieces(child)

    return " ".join("".join(pieces(node)).split())


def paragraphs(text: str) -> tuple[Block, ...]:
    """Paragraphs between blank lines, each on one line; a word that a line's end divides is whole again.

    Example: "Bees like cro-\\ncuses.\\n\\nWasps." gives "Bees like crocuses." and "Wasps."
    """
    joined = (" ".join(HYPHENATED.sub("", part).split()) for part in re.split(r"\n\s*\n", text))
    return tuple(Block(part) for part in joined if part)
