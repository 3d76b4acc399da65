"""Own questions about own documents: each is placed at the passages that answer it, or left out with a cause."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePath

from forage.data.chunking import Chunk
from forage.data.options import Columns
from forage.data.own_documents import FileRecord
from forage.data.qa_rows import KNOWN_NAMES, QARow, read_records, to_rows
from forage.data.relevance import Placed, relevant_chunks
from forage.metrics import grouped
from forage.progress import counted
from forage.text import IDLE, folded, words_of

# The column that names a file has other usual names than one of addresses.
USUAL = {**KNOWN_NAMES, "url": ("source", "file", "path", "document", "filename", *KNOWN_NAMES["url"])}
NEAREST = 20  # passages that are compared with an answer whose document isn't named
UNTELLING = IDLE | {"yes", "no", "not", "none", "true", "false"}  # an answer of these alone is in any passage
SAID = 0.6  # share of an answer's telling words that a passage says, at least, if the answer isn't there word for word


def read_own_questions(file: str, columns: Columns) -> list[QARow]:
    """The rows of a file; `url` is the source."""
    return to_rows(read_records(file, Path()), columns, needs=("question",), usual=USUAL, source=file)[0]


def place(
    rows: Sequence[QARow],
    records: Iterable[FileRecord],
    chunks_of: dict[str, list[Chunk]],
    search: Callable[[str, int], Sequence[Chunk]],
) -> tuple[list[Placed], list[tuple[QARow, str]]]:
    """(rows with what answers them, rows that are left out with the cause).

    An answer is looked for in the document that the source names, or else in the passages that a search for question
    and answer finds. Without an answer, or with one like "No" that any passage may say, all of the source's count. Of
    several sources, as in "rye.md; tin.md", those that say the answer count: the others only lead there.
    """
    named, placed, left_out = documents_by_name(records), list[Placed](), list[tuple[QARow, str]]()
    for row in counted("placing questions", rows):
        told = not UNTELLING.issuperset(words_of(row.answer))
        docs = [named.get(folded(name), set()) for name in sources_in(row.url, named)]
        if not row.question:
            left_out.append((row, "no question"))
        elif not told and not row.url:
            left_out.append((row, "neither telling answer nor source"))
        elif any(len(each) != 1 for each in docs):
            left_out.append((row, "source names several files" if all(docs) else "source is no file with text"))
        else:
            near = [chunk for each in docs for chunk in chunks_of[min(each)]]
            near = near or [*search(f"{row.question} {row.answer}", NEAREST)]
            found = saying(row.answer, near) if told else near
            by_doc = grouped((chunk.doc_id, chunk.id) for chunk in found)
            placed += [(row, doc, chunks) for doc, chunks in by_doc.items()]
            if not found:
                left_out.append((row, "answer in no passage" + (" of its source" if docs else "")))
    return placed, left_out


def sources_in(source: str, named: Mapping[str, object]) -> list[str]:
    """The names of files in a row's source. Example: "rye.md; tin.md" gives two, unless a file has that name."""
    return [source] if folded(source) in named else [name for name in map(str.strip, source.split(";")) if name]


def documents_by_name(records: Iterable[FileRecord]) -> dict[str, set[str]]:
    """The documents that a name may mean: a path in the folder, its last part, or that without its ending.

    Example: breads/rye.md is meant by "breads/rye.md", "rye.md" and "Rye".
    """
    named: dict[str, set[str]] = defaultdict(set)
    for record in records:
        if record.document_id:
            path = PurePath(record.path)
            for name in {record.path, path.name, path.stem}:
                named[folded(name)].add(record.document_id)
    return named


def saying(answer: str, chunks: Sequence[Chunk]) -> list[Chunk]:
    """The passages that say the answer: by runs of three words, word for word, or, if none does, most of its words."""
    ids = set(relevant_chunks(answer, chunks))
    words = words_of(answer)
    text = f" {' '.join(words)} "
    found = [chunk for chunk in chunks if chunk.id in ids or text in f" {' '.join(words_of(chunk.text))} "]
    telling = set(words) - UNTELLING
    if found or not telling:
        return found
    shares = [len(telling & set(words_of(chunk.text))) / len(telling) for chunk in chunks]
    best = max(shares, default=0.0)
    return [chunk for chunk, share in zip(chunks, shares, strict=True) if share == best >= SAID]
