"""Documents and questions: the two record types that every stage exchanges, and their JSONL.

A document is one page (or, where its page could not be had, the data set's own answers for it). A question knows
the documents and, once they are chunked, the chunks that answer it; those ids are what retrieval rewards compare.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from forage.errors import UserError
from forage.files import json_lines


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
