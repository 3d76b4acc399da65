"""The query rewriter's files: train.jsonl and eval.jsonl (query, relevant_doc_ids), pubmed_corpus.json (doc_id, text).

A "doc" is a chunk, the unit that the store searches.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from forage.data.chunking import Chunk
from forage.data.records import Question
from forage.files import replacing, write_jsonl

CORPUS = "pubmed_corpus.json"


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
