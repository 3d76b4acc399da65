"""Documents and questions: the two record types that every stage exchanges, and their JSONL.

A document is one page (or, where its page could not be had, the data set's own answers for it). A question knows
the documents and, once they are chunked, the chunks that answer it; those ids are what retrieval rewards compare.
"""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TextIO

from core.errors import UserError


@dataclass(frozen=True, slots=True)
class Document:
    """One text to search in. `source` says where the text came from: 'page', 'answer' or 'corpus'.

    `sections` are offsets into `text` at which a new section starts; no chunk crosses one. Example: a text
    "Asthma\\nA long-term disease.\\n\\nTreatment\\nInhalers." with sections (0, 30) is chunked as two sections.
    """

    id: str
    title: str
    text: str
    url: str = ""
    source: str = "page"
    sections: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """A question with its reference answer and the ids of what answers it."""

    id: str
    question: str
    answer: str
    question_type: str = ""
    focus: str = ""
    relevant_doc_ids: tuple[str, ...] = ()
    relevant_chunk_ids: tuple[str, ...] = ()


def clean(text: str) -> str:
    """White space as a reader sees it: one space between words, single line breaks between lines."""
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "\n".join(line for line in lines if line)


@contextmanager
def replacing(path: Path) -> Iterator[TextIO]:
    """Write a text file so that a reader, or a crash, never sees half of it: temporary name, fsync, rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with partial.open("w", encoding="utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def replacing_folder(folder: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """As `replacing`, for a folder: what is yielded is filled, and takes its name when nothing went wrong."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        yield partial
        if overwrite and folder.exists():
            shutil.rmtree(folder)
        # safetensors lets nobody but the owner read what it wrote; a server beside the trainer is another user.
        partial.chmod(0o755)
        for path in partial.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def locked(path: Path, told: str) -> Iterator[None]:
    """Hold a lock file for this process, which the system lets go of when it ends, however it does.

    Where another process holds it, that is an error, told in these words.
    """
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(told) from error
        yield


def write_jsonl(path: Path, rows: Iterable[Any]) -> int:
    """Write dataclasses or mappings, one a line, atomically; return how many."""
    count = 0
    with replacing(path) as file:
        for row in rows:
            record = row if isinstance(row, Mapping) else asdict(row)
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
            count += 1
    return count


def json_lines(path: Path, broken: list[str] | None = None) -> Iterator[tuple[int, Any]]:
    """(line number, value) of each non-blank line of a .jsonl or .jsonl.gz.

    A line that is no JSON raises with its number; where a list of `broken` ones is given, it is told there instead.
    """
    number = 0
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        try:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    value = json.loads(line)
                except (json.JSONDecodeError, UnicodeDecodeError) as error:
                    told = f"{path}:{number}: not JSON ({error})"
                    if broken is None:
                        raise UserError(f"{told}; mend or delete that line") from error
                    broken.append(told)
                else:
                    yield number, value
        except (gzip.BadGzipFile, EOFError) as error:
            raise UserError(f"{path}: damaged after line {number} ({error}); get the file again") from error


def read_documents(path: Path) -> list[Document]:
    """documents.jsonl as written by data_prep.py."""
    return [Document(**_fields(row, Document, path, number)) for number, row in json_lines(path)]


def read_questions(path: Path) -> list[Question]:
    """train.jsonl or eval.jsonl as written by data_prep.py."""
    if not path.is_file():
        raise UserError(f"{path} is missing; make it with data_prep.py or collection_prep.py")
    return [Question(**_fields(row, Question, path, number)) for number, row in json_lines(path)]


def read_answerable(path: Path) -> list[Question]:
    """Those of them that some chunk of the store answers: only these can be searched for."""
    return [question for question in read_questions(path) if question.relevant_chunk_ids]


def _fields(row: Any, kind: type, path: Path, number: int) -> dict[str, Any]:
    """The fields of `kind` in a row; unknown keys are left aside, so that newer files stay readable."""
    names = [field.name for field in fields(kind)]
    missing = [name for name in names[:3] if not isinstance(row, dict) or name not in row]
    if missing:
        raise UserError(f"{path}:{number}: no {', '.join(missing)}; is this a file that data_prep.py wrote?")
    return {name: tuple(row[name]) if isinstance(row[name], list) else row[name] for name in names if name in row}
