"""The query rewriter's files: train.jsonl (query, relevant_doc_ids) and pubmed_corpus.json (doc_id, text).

On export a "doc" is a chunk, the unit that the store searches; on import it is whatever the corpus says.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forage.data.chunking import Chunk
from forage.data.records import Document, Question
from forage.errors import UserError
from forage.files import json_lines, replacing, write_jsonl
from forage.text import encodable_values

CORPUS = "pubmed_corpus.json"


@dataclass(frozen=True)
class RewriterData:
    """Documents, questions, and each unusable row as 'file:line: what is wrong'."""

    documents: list[Document]
    questions: list[Question]
    problems: list[str]


def export_rewriter_data(
    folder: Path, chunks: Sequence[Chunk], train: Sequence[Question], held_out: Sequence[Question]
) -> None:
    """Write pubmed_corpus.json, train.jsonl and eval.jsonl into a folder."""
    with replacing(folder / CORPUS) as file:
        rows = [{"doc_id": chunk.id, "text": f"{chunk.title}\n{chunk.text}".strip()} for chunk in chunks]
        json.dump(rows, file, ensure_ascii=False, indent=0)
    for name, questions in (("train", train), ("eval", held_out)):
        pairs = ({"query": q.question, "relevant_doc_ids": list(q.relevant_chunk_ids)} for q in questions)
        write_jsonl(folder / f"{name}.jsonl", pairs)


def import_rewriter_data(queries: Path, corpus: Path) -> RewriterData:
    """Read queries and corpus. Unusable rows become problems; if no row is usable, that is an error."""
    documents, problems = _read_corpus(corpus)
    known = {document.id for document in documents}
    questions = []
    for number, row in json_lines(queries, problems):
        query, ids = _query_of(row)
        found = tuple(dict.fromkeys(doc_id for doc_id in ids if doc_id in known))
        if not query or not found:
            lacks = (
                f"none of its relevant_doc_ids is in {corpus.name}"
                if query and ids
                else "no query or no relevant_doc_ids"
            )
            problems.append(f"{queries}:{number}: {lacks}")
            continue
        if lost := len(set(ids)) - len(found):
            problems.append(f"{queries}:{number}: {lost} relevant_doc_ids are not in {corpus.name}; left out")
        questions.append(Question(f"q{number}", query, "", relevant_doc_ids=found))
    if not questions:
        raise UserError(f"{queries}: no usable query among {len(problems)} rows ({'; '.join(problems[:3])})")
    return RewriterData(documents, questions, problems)


def _read_corpus(path: Path) -> tuple[list[Document], list[str]]:
    try:
        rows = encodable_values(json.loads(path.read_bytes()))
    except (FileNotFoundError, ValueError, RecursionError) as error:
        raise UserError(f"{path} can't be read as JSON ({error}); it must be a list of doc_id and text") from error
    if not isinstance(rows, list):
        raise UserError(f"{path} must be a JSON list of objects with doc_id and text")
    documents: dict[str, Document] = {}
    problems = []
    for number, row in enumerate(rows, 1):
        doc_id, text = (str(row.get("doc_id") or ""), str(row.get("text") or "")) if isinstance(row, dict) else ("", "")
        if doc_id and text.strip() and doc_id not in documents:
            documents[doc_id] = Document(doc_id, "", text, source="corpus")
        else:
            why = f"repeats doc_id {doc_id!r}" if doc_id in documents else "has no doc_id or no text"
            problems.append(f"{path}: entry {number} {why}; left out")
    if not documents:
        raise UserError(f"{path}: no usable document")
    return list(documents.values()), problems


def _query_of(row: Any) -> tuple[str, list[str]]:
    if not isinstance(row, Mapping):
        return "", []
    query, ids = row.get("query"), row.get("relevant_doc_ids")
    return str(query or "").strip(), [str(doc_id) for doc_id in ids] if isinstance(ids, list) else []
