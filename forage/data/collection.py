"""Collection: a standard test collection (documents, queries, relevance judgements) in BEIR's layout.

https://github.com/beir-cellar/beir/wiki/Load-your-custom-dataset: a folder with

    corpus.jsonl      {"_id": "d1", "title": "Gout", "text": "Crystals in a joint."}
    queries.jsonl     {"_id": "q1", "text": "what is gout"}
    qrels/test.tsv    query-id, corpus-id, score; separated by tabs, with this header
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forage.data.chunking import Chunk
from forage.data.records import Document, Question, clean
from forage.data.relevance import by_document
from forage.errors import UserError
from forage.files import json_lines, replacing
from forage.text import composed

QRELS_HEADER = "query-id\tcorpus-id\tscore"
TRAIN = "train"
Judgements = dict[str, dict[str, int]]
"""For each query, its judged documents with their grades; 0 and below don't answer it."""


@dataclass(frozen=True)
class Collection:
    """Documents, queries by id, judgements by split, and the number of documents and judgements left out, by cause."""

    documents: list[Document]
    queries: dict[str, str]
    judgements: dict[str, Judgements]
    left_out: Counter[str]


def read_beir(folder: Path, held_out: str) -> Collection:
    """The folder's split that is held out, and its training split where it has one."""
    rows = by_id(folder / "corpus.jsonl")
    documents = [document for doc_id, row in rows.items() if (document := document_of(doc_id, row)).text]
    queries = {
        query_id: clean(str(row.get("text") or "")).replace("\n", " ")
        for query_id, row in by_id(folder / "queries.jsonl").items()
    }
    left_out = Counter({"document without text": len(rows) - len(documents)})
    known = {document.id for document in documents}
    judgements = {}
    for split in (held_out, TRAIN):
        path = folder / "qrels" / f"{split}.tsv"
        if split == TRAIN and not path.is_file():
            continue
        read = read_qrels(path)
        there = {q: {d: graded[d] for d in graded if d in known} for q, graded in read.items() if queries.get(q)}
        lost = sum(map(len, read.values())) - sum(map(len, there.values()))
        left_out["judgement of a query or document that is not there"] += lost
        judgements[split] = {q: graded for q, graded in there.items() if max(graded.values(), default=0) > 0}
        if not judgements[split]:
            raise UserError(f"{path}: no query has a document that answers it")
    return Collection(documents, queries, judgements, +left_out)


def document_of(doc_id: str, row: Mapping[str, Any]) -> Document:
    """If a document has only a title, the title is its text."""
    title = composed(str(row.get("title") or "").strip())
    return Document(doc_id, title, clean(str(row.get("text") or "")) or title, source="corpus")


def by_id(path: Path) -> dict[str, Mapping[str, Any]]:
    """The lines of a .jsonl by their _id."""
    rows: dict[str, Mapping[str, Any]] = {}
    for number, row in json_lines(path):
        name = composed(str(row.get("_id") or "")) if isinstance(row, dict) else ""
        if not name or name in rows:
            raise UserError(f"{path}:{number}: no _id, or one that an earlier line has; mend it")
        rows[name] = row
    return rows


def read_qrels(path: Path) -> Judgements:
    """Example: the lines "q1, d1, 2" and "q1, d2, 0" give {"q1": {"d1": 2, "d2": 0}}."""
    if not path.is_file():
        raise UserError(f"{path}: no such file; name a split that is there with --eval-split")
    judgements: Judgements = {}
    for number, line in enumerate(composed(path.read_text(encoding="utf-8")).splitlines(), 1):
        if not line.strip() or line == QRELS_HEADER:
            continue
        parts = line.split("\t")
        if len(parts) != 3 or not parts[2].lstrip("-").isdecimal():
            raise UserError(f"{path}:{number}: not query<tab>document<tab>whole number; fix or delete that line")
        judgements.setdefault(parts[0], {})[parts[1]] = int(parts[2])
    return judgements


def write_qrels(path: Path, judgements: Mapping[str, Mapping[str, int]]) -> None:
    with replacing(path) as file:
        file.write(f"{QRELS_HEADER}\n")
        file.writelines(f"{q}\t{d}\t{grade}\n" for q, graded in judgements.items() for d, grade in graded.items())


def questions_of(collection: Collection, split: str, chunks: Iterable[Chunk]) -> list[Question]:
    """The split's queries as questions; every chunk of a relevant document is relevant, best documents first.

    Collections have no reference answers, so answers are empty.
    """
    chunks_of = by_document(chunks)
    questions = []
    for query_id, graded in collection.judgements[split].items():
        docs = sorted((d for d, grade in graded.items() if grade > 0), key=lambda d: -graded[d])
        relevant = tuple(chunk.id for d in docs for chunk in chunks_of.get(d, ()))
        text = collection.queries[query_id]
        questions.append(Question(query_id, text, "", relevant_doc_ids=tuple(docs), relevant_chunk_ids=relevant))
    return questions
