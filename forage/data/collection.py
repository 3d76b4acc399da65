"""Collection: a standard test collection (documents, queries, relevance judgements) from local files.

BEIR's layout is a folder (https://github.com/beir-cellar/beir/wiki/Load-your-custom-dataset):

    corpus.jsonl      {"_id": "d1", "title": "Gout", "text": "Crystals in a joint."}
    queries.jsonl     {"_id": "q1", "text": "what is gout"}
    qrels/test.tsv    query-id, corpus-id, score; separated by tabs, with this header

Files in TREC's formats work too: judgements as `query 0 document grade` separated by white space, queries and documents
as `id<tab>text`. All of them may be gzipped (.gz).
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forage.data.chunking import Chunk, chunk_ids_by_document
from forage.data.records import Document, Question, clean
from forage.errors import UserError
from forage.files import json_lines, replacing

QRELS_HEADER = ("query-id", "corpus-id", "score")
Judgements = dict[str, dict[str, int]]
"""For each query, its judged documents with their grades; 0 and below don't answer it."""


@dataclass(frozen=True)
class Collection:
    """Documents, queries by id, judgements by split, and each line left out as 'file:line: why'."""

    documents: list[Document]
    queries: dict[str, str]
    judgements: dict[str, Judgements]
    problems: list[str]


def read_beir(folder: Path, splits: Sequence[str]) -> Collection:
    """A folder in BEIR's layout. The first split must exist; others that don't are skipped."""
    paths = {split: path for split in splits if (path := _packed(folder / "qrels" / f"{split}.tsv")).is_file()}
    if splits[0] not in paths:
        known = ", ".join(sorted(path.name.partition(".")[0] for path in (folder / "qrels").glob("*.tsv*")))
        hint = f"it has {known}" if known else "is it a collection?"
        raise UserError(f"{folder} has no qrels/{splits[0]}.tsv; {hint}")
    return read_collection(_packed(folder / "corpus.jsonl"), _packed(folder / "queries.jsonl"), paths)


def read_collection(corpus: Path, queries: Path, qrels: Mapping[str, Path]) -> Collection:
    """Three kinds of files. A broken line is an error; judgements of unknown queries or documents become problems."""
    documents, problems = read_corpus(corpus)
    topics = read_topics(queries)
    known = {document.id for document in documents}
    judgements = {}
    for split, path in qrels.items():
        judgements[split], missing = _known_only(path, topics, known)
        problems += missing
        if not judgements[split]:
            raise UserError(
                f"{path}: no query of {queries.name} has a document of {corpus.name} that answers it"
                + (f" ({problems[-1]})" if problems else "")
            )
    return Collection(documents, topics, judgements, problems)


def read_corpus(path: Path) -> tuple[list[Document], list[str]]:
    """.jsonl of _id (or id), title and text, or .tsv of id and text; documents without any text become problems.

    If a document has only a title, the title is its text.
    """
    documents, problems = dict[str, Document](), []
    for number, row in _records(path, "document"):
        title, text = str(row.get("title") or "").strip(), clean(str(row.get("text") or ""))
        doc_id = _new_id(row, documents, path, number)
        if title or text:
            documents[doc_id] = Document(doc_id, title, text or title, source="corpus")
        else:
            problems.append(f"{path}:{number}: document {doc_id} has no text; left out")
    if not documents:
        raise UserError(f"{path} has no document")
    return list(documents.values()), problems


def read_topics(path: Path) -> dict[str, str]:
    """Queries by id: .jsonl of _id (or id) and text, or .tsv of id and text."""
    queries: dict[str, str] = {}
    for number, row in _records(path, "query"):
        text = " ".join(str(row.get("text") or "").split())
        query_id = _new_id(row, queries, path, number)
        if not text:
            raise UserError(f"{path}:{number}: query {query_id} has no text; fix or delete that line")
        queries[query_id] = text
    if not queries:
        raise UserError(f"{path} has no query")
    return queries


def read_qrels(path: Path) -> Judgements:
    """Judgements in TREC's or BEIR's format; one that doesn't fit the first line's, or a second grade, is an error.

    Example: the lines "q1 0 d1 2" and "q1 0 d2 0" give {"q1": {"d1": 2, "d2": 0}}.
    """
    judgements: Judgements = {}
    for _, query_id, doc_id, grade in _judged(path):
        judgements.setdefault(query_id, {})[doc_id] = grade
    return judgements


def write_qrels(path: Path, judgements: Mapping[str, Mapping[str, int]]) -> None:
    """Write judgements in BEIR's format."""
    with replacing(path) as file:
        file.write("\t".join(QRELS_HEADER) + "\n")
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


def _known_only(path: Path, queries: Mapping[str, str], documents: set[str]) -> tuple[Judgements, list[str]]:
    """Judgements of known queries and documents, for queries that some document answers; the rest are problems."""
    judgements, problems = Judgements(), []
    for number, query_id, doc_id, grade in _judged(path):
        if query_id not in queries:
            problems.append(f"{path}:{number}: query {query_id} is not among the queries; left out")
        elif doc_id not in documents:
            problems.append(f"{path}:{number}: document {doc_id} is not in the corpus; left out")
        else:
            judgements.setdefault(query_id, {})[doc_id] = grade
    return {q: graded for q, graded in judgements.items() if max(graded.values()) > 0}, problems


def _judged(path: Path) -> Iterator[tuple[int, str, str, int]]:
    """(line, query, document, grade); the first line decides which format it is."""
    seen: dict[tuple[str, str], int] = {}
    trec: bool | None = None
    for number, line in _lines(path):
        if trec is None:
            trec = "\t".join(QRELS_HEADER) != line
            if not trec:
                continue
        parts = line.split() if trec else line.split("\t")
        if len(parts) != (4 if trec else 3):
            form = "`query 0 document grade`" if trec else "`query<tab>document<tab>grade`"
            hint = f" (or begin with the line {'<tab>'.join(QRELS_HEADER)})" if trec and number == 1 else ""
            raise UserError(f"{path}:{number}: {len(parts)} columns, not {form}{hint}; fix or delete that line")
        query_id, doc_id, grade = parts[0].strip(), parts[-2].strip(), _grade(parts[-1], path, number)
        before = seen.setdefault((query_id, doc_id), grade)
        if before != grade:
            raise UserError(
                f"{path}:{number}: {query_id} and {doc_id} have grade {before} on an earlier line, {grade} here; "
                "keep one of them"
            )
        yield number, query_id, doc_id, grade


def _grade(text: str, path: Path, number: int) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise UserError(f"{path}:{number}: grade {text!r} is not a whole number; fix or delete that line") from error


def _records(path: Path, kind: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """(line, fields) of a .jsonl or .tsv."""
    if ".jsonl" in path.suffixes:
        if not path.is_file():
            raise UserError(f"{path}: no such file")
        for number, row in json_lines(path):
            if not isinstance(row, dict):
                raise UserError(f"{path}:{number}: not a JSON object; each line must be one {kind}")
            yield number, row
        return
    for number, line in _lines(path):
        name, tab, text = line.partition("\t")
        if not tab:
            raise UserError(f"{path}:{number}: no tab; each line must be a {kind}'s id, a tab, and its text")
        yield number, {"_id": name, "text": text}


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """(number, line) of each non-blank line."""
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    number, open_text = 0, gzip.open if path.suffix == ".gz" else open
    try:
        with open_text(path, "rt", encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 after line {number} ({error.reason}); save it as UTF-8") from error
    except (gzip.BadGzipFile, EOFError) as error:
        raise UserError(f"{path}: damaged after line {number} ({error}); download it again") from error


def _new_id(row: Mapping[str, Any], known: Mapping[str, object], path: Path, number: int) -> str:
    found = row.get("_id", row.get("id"))
    name = "" if found is None else str(found).strip()
    if not name:
        raise UserError(f"{path}:{number}: no _id; fix or delete that line")
    if name in known:
        raise UserError(f"{path}:{number}: _id {name} is on an earlier line too; ids must be unique")
    return name


def _packed(path: Path) -> Path:
    """The file, or its .gz if only that exists."""
    packed = path.with_name(f"{path.name}.gz")
    return packed if packed.is_file() and not path.is_file() else path
