"""Collection: a standard test collection (documents, queries, relevance judgements) in BEIR's layout.

https://github.com/beir-cellar/beir/wiki/Load-your-custom-dataset: a folder with

    corpus.jsonl      {"_id": "d1", "title": "Gout", "text": "Crystals in a joint."}
    queries.jsonl     {"_id": "q1", "text": "what is gout"}
    qrels/test.tsv    query-id, corpus-id, score; separated by tabs, with this header
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forage.data.chunking import Chunk, chunk_ids_by_document
from forage.data.records import Document, Question, clean
from forage.errors import UserError
from forage.files import json_lines, replacing

QRELS_HEADER = "query-id\tcorpus-id\tscore"
TRAIN = "train"
Judgements = dict[str, dict[str, int]]
"""For each query, its judged documents with their grades; 0 and below don't answer it."""


@dataclass(frozen=True)
class Collection:
    """Documents, queries by id, judgements by split, and each line left out as 'file:line: why'."""

    documents: list[Document]
    queries: dict[str, str]
    judgements: dict[str, Judgements]
    problems: list[str]


def read_beir(folder: Path, held_out: str) -> Collection:
    """The folder's split that is held out, and its training split where it has one."""
    documents, problems = read_corpus(folder / "corpus.jsonl")
    queries = read_queries(folder / "queries.jsonl")
    known = {document.id for document in documents}
    judgements = {}
    for split in (held_out, TRAIN):
        path = folder / "qrels" / f"{split}.tsv"
        if split == TRAIN and not path.is_file():
            continue
        read = read_qrels(path)
        unknown = [(q, d) for q, graded in read.items() for d in graded if q not in queries or d not in known]
        problems += [f"{path}: query {q} or document {d} is not there; their judgement is left out" for q, d in unknown]
        for query_id, doc_id in unknown:
            del read[query_id][doc_id]
        judgements[split] = {q: graded for q, graded in read.items() if max(graded.values(), default=0) > 0}
        if not judgements[split]:
            raise UserError(f"{path}: no query has a document that answers it ({'; '.join(problems[:3])})")
    return Collection(documents, queries, judgements, problems)


def read_corpus(path: Path) -> tuple[list[Document], list[str]]:
    """Documents without any text become problems. If a document has only a title, the title is its text."""
    documents, problems = dict[str, Document](), []
    for number, doc_id, row in _records(path):
        title, text = str(row.get("title") or "").strip(), clean(str(row.get("text") or ""))
        if title or text:
            documents[doc_id] = Document(doc_id, title, text or title, source="corpus")
        else:
            problems.append(f"{path}:{number}: document {doc_id} has no text; left out")
    return list(documents.values()), problems


def read_queries(path: Path) -> dict[str, str]:
    """Queries by id."""
    queries = {}
    for number, query_id, row in _records(path):
        queries[query_id] = " ".join(str(row.get("text") or "").split())
        if not queries[query_id]:
            raise UserError(f"{path}:{number}: query {query_id} has no text; fix or delete that line")
    return queries


def read_qrels(path: Path) -> Judgements:
    """Example: the lines "q1, d1, 2" and "q1, d2, 0" give {"q1": {"d1": 2, "d2": 0}}. Two grades are an error."""
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in path.parent.glob("*.tsv"))) or "nothing"
        raise UserError(f"{path}: no such file; {path.parent.name} has {known}")
    judgements: Judgements = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line == QRELS_HEADER:
            continue
        parts = line.split("\t")
        if len(parts) != 3 or not parts[2].lstrip("-").isdecimal():
            raise UserError(f"{path}:{number}: not query<tab>document<tab>whole number; fix or delete that line")
        query_id, doc_id, grade = parts[0], parts[1], int(parts[2])
        if judgements.setdefault(query_id, {}).setdefault(doc_id, grade) != grade:
            raise UserError(f"{path}:{number}: {query_id} and {doc_id} have another grade on an earlier line; keep one")
    return judgements


def write_qrels(path: Path, judgements: Mapping[str, Mapping[str, int]]) -> None:
    with replacing(path) as file:
        file.write(f"{QRELS_HEADER}\n")
        file.writelines(f"{q}\t{d}\t{grade}\n" for q, graded in judgements.items() for d, grade in graded.items())


def questions_of(collection: Collection, split: str, chunks: Iterable[Chunk]) -> list[Question]:
    """The split's queries as questions; every chunk of a relevant document is relevant, best documents first.

    Collections have no reference answers, so answers are empty.
    """
    chunk_ids = chunk_ids_by_document(chunks)
    questions = []
    for query_id, graded in collection.judgements[split].items():
        docs = sorted((d for d, grade in graded.items() if grade > 0), key=lambda d: -graded[d])
        relevant = tuple(chunk_id for d in docs for chunk_id in chunk_ids.get(d, ()))
        text = collection.queries[query_id]
        questions.append(Question(query_id, text, "", relevant_doc_ids=tuple(docs), relevant_chunk_ids=relevant))
    return questions


def _records(path: Path) -> Iterator[tuple[int, str, Mapping[str, Any]]]:
    """(line, id, fields) of a .jsonl; a missing or repeated id is an error, and so is a file without any."""
    seen: set[str] = set()
    for number, row in json_lines(path):
        name = str(row.get("_id") or "").strip() if isinstance(row, dict) else ""
        if not name or name in seen:
            raise UserError(
                f"{path}:{number}: {f'_id {name} is on an earlier line too' if name else 'no _id'}; mend it"
            )
        seen.add(name)
        yield number, name, row
    if not seen:
        raise UserError(f"{path} has no line")
