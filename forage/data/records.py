"""Documents and questions: the two record types that all stages exchange, and their JSON Lines files.

A document is one page (or, if its page could not be fetched, the data set's answers for it). A question lists the
documents and chunks that answer it; retrieval rewards compare these ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from forage.errors import UserError
from forage.files import typed_lines
from forage.text import composed

WAY_OUT = "mend or delete that line, or make the data again with data_prep.py"


@dataclass(frozen=True, slots=True)
class Document:
    """A text to search. `source` says where it came from: 'page', 'answer', 'corpus' or 'file'.

    `sections` are the offsets in `text` where sections start; no chunk crosses one. Example: the text
    "Asthma\\nA long-term disease.\\n\\nTreatment\\nInhalers." with sections (0, 30) has two sections. A search may be
    limited by `metadata`.
    """

    id: str
    title: str
    text: str
    url: str = ""
    source: str = "page"
    sections: tuple[int, ...] = ()
    metadata: dict[str, str | int | float | bool] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """As in documents.jsonl; many readers take no empty object."""
        return {name: value for name, value in asdict(self).items() if name != "metadata" or value}


@dataclass(frozen=True, slots=True)
class Question:
    """A question, its reference answer, and the ids of the documents and chunks that answer it."""

    id: str
    question: str
    answer: str
    question_type: str = ""
    focus: str = ""
    relevant_doc_ids: tuple[str, ...] = ()
    relevant_chunk_ids: tuple[str, ...] = ()

    @property
    def document(self) -> str:
        """The first one that answers it; where none is known, its own name."""
        return (*self.relevant_doc_ids, self.id)[0]


def as_document(value: Any, number: int) -> Document:
    """A text, or a dictionary with a text and maybe other fields of a document, as a Document.

    An id left out is the number. Example: ("Sow in May.", 3) gives Document("3", "", "Sow in May.").
    """
    if isinstance(value, Document):
        return value
    row = {"text": value} if isinstance(value, str) else value
    if not isinstance(row, Mapping) or not isinstance(row.get("text"), str):
        raise UserError(
            f"document {number} is neither a text, nor a dictionary with a text under 'text', nor a Document: "
            f"{type(value).__name__}"
        )
    known = {each.name: row[each.name] for each in fields(Document) if row.get(each.name) is not None}
    row = {"id": number, "title": ""} | known
    return Document(**row | {"id": str(row["id"]), "title": str(row["title"])})


def clean(text: str) -> str:
    """Normalise letters and white space: one space between words, one line break between lines."""
    lines = (" ".join(line.split()) for line in composed(text).splitlines())
    return "\n".join(line for line in lines if line)


def read_documents(path: Path) -> list[Document]:
    """Read documents.jsonl as written by data_prep.py."""
    if not path.is_file():
        raise UserError(f"{path} is missing; name the documents.jsonl of data_prep.py")
    return list(typed_lines(Document, path, "a document", WAY_OUT, "ignore"))


def read_questions(path: Path) -> list[Question]:
    """Read train.jsonl or eval.jsonl as written by data_prep.py."""
    if not path.is_file():
        raise UserError(f"{path} is missing; make it with data_prep.py")
    questions = list(typed_lines(Question, path, "a question", WAY_OUT, "ignore"))
    for name, count in Counter(question.id for question in questions).items():
        if count > 1:  # what is kept of an episode names its question by the id alone
            raise UserError(f"{path}: {count} questions have the id {name!r}; {WAY_OUT}")
    return questions


def read_answerable(path: Path) -> list[Question]:
    """The questions that some chunk answers; no search can find the others' answers."""
    return [question for question in read_questions(path) if question.relevant_chunk_ids]


def asked_of(question: Question) -> str:
    """What is asked, without the description before it. Example: "crystals toe: Who gets it?" gives "Who gets it?"."""
    return question.question.rpartition(": ")[2]


def documents_of(chunk_ids: Iterable[str]) -> list[str]:
    """The chunks' documents, each once, in the order of their first chunks. Example: a#2, b#0, a#0 gives a, b."""
    return list(dict.fromkeys(chunk_id.rpartition("#")[0] for chunk_id in chunk_ids))
