"""Hybrid search on questions that don't repeat a page's title: is it as good as the better of its two parts?

    python -m bench.fusion --data medquad.jsonl.gz

Takes the data set's training questions (the held-out ones are never looked at), and puts each in six ways
(bench/other_questions.py). Half of them are for choosing; --half other looks at the other half. A sample of the
documents is enough, as embedding them all takes long on a CPU; --store keeps it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bench.other_questions import NAME, PLAIN, question_sets
from bench.report import Bar, finish
from forage.cli import run_script
from forage.data.chunking import Chunk
from forage.data.documents import Library, assemble
from forage.data.options import Columns
from forage.data.qa_rows import QARow, read_records, to_rows
from forage.data.records import Question
from forage.data.relevance import make_questions, split_by_document
from forage.errors import check_at_least_one
from forage.metrics import ndcg, recall, reciprocal_rank
from forage.statistics import bootstrapped, span
from forage.store.document_store import DocumentStore
from forage.store.fusion import Ranking
from forage.store.options import Fusion

K = 10
MEASURES = ("MRR@10", "nDCG@10", "recall@10")
Scores = NDArray[np.float64]  # (questions, measures)
DEFAULT = "hybrid"
RULES = {
    DEFAULT: Fusion(),
    "as before: the best title counts fully": Fusion(dense_weight=0.4, title_weight=0.5, title_share=False),
    "without titles, half and half": Fusion(dense_weight=0.5, title_weight=0.0),
    "reciprocal ranks, without titles": Fusion("rrf", dense_weight=0.5, title_weight=0.0),
}


@dataclass(frozen=True)
class BenchOptions:
    """What to measure on."""

    data: str
    """Data set: a .jsonl, .jsonl.gz, .csv or .parquet file with questions and answers."""
    store: Path = Path("data/bench-fusion-store")
    """Folder for the store; kept, so that a second run embeds nothing anew."""
    documents: int = 2000
    """Documents in the store, drawn at random."""
    questions: int = 800
    """Questions of each set; of other names, those whose subject has one."""
    half: Literal["dev", "other"] = "dev"
    """Half of the training questions to measure on."""
    seed: int = 0
    """Seed of the samples."""

    def check(self) -> None:
        check_at_least_one(self, "documents", "questions")


def main(bench: BenchOptions) -> None:
    bench.check()
    store, sets = prepare(bench)
    gains = {}
    for name, asked in sets.items():
        vectors = store.embed_queries([question.question for question in asked])
        by_way = {way: measured(store, asked, vectors, ranks) for way, ranks in WAYS.items()}
        print("\n".join(table(name, by_way)), flush=True)
        gains[name] = over_better_part(by_way)
    finish(
        [
            Bar(f"{name}: {measure}, hybrid less the better part", gain, 0)
            for name in (PLAIN, NAME)
            for measure, gain in zip(MEASURES, gains[name], strict=True)
        ]
    )


def prepare(bench: BenchOptions) -> tuple[DocumentStore, dict[str, list[Question]]]:
    """The store of a sample of the documents, and the sets of questions that it answers."""
    records = list(read_records(bench.data, bench.store))
    rows, _ = to_rows(records, Columns())
    library = assemble(rows, {})
    documents = random.Random(bench.seed).sample(library.documents, min(bench.documents, len(library.documents)))
    store = DocumentStore.build(bench.store, documents)
    dev, other = split_by_document(training_questions(rows, library, store), 0.5, seed=1)
    half = dev if bench.half == "dev" else other
    asked = random.Random(bench.seed).sample(half, min(bench.questions, len(half)))
    titles = {document.id: document.title for document in library.documents}
    names = {row.id: synonyms_of(record) for row, record in zip(rows, records, strict=True)}
    return store, question_sets(asked, [titles[q.relevant_doc_ids[0]] for q in asked], names, bench.seed)


def training_questions(rows: Sequence[QARow], library: Library, store: DocumentStore) -> list[Question]:
    """The store's questions, without those of documents that data_prep.py would hold out of the whole data set."""
    whole = [Chunk(each.id, each.title, each.text, 0, len(each.text), 0, 1) for each in library.documents]
    every, _ = make_questions(rows, library.doc_of_row, whole)
    held_out = {doc_id for question in split_by_document(every, 0.2, seed=0)[1] for doc_id in question.relevant_doc_ids}
    questions, _ = make_questions(rows, library.doc_of_row, store.chunks)
    return [question for question in questions if held_out.isdisjoint(question.relevant_doc_ids)]


def synonyms_of(record: Mapping[str, Any]) -> list[str]:
    """Other names of a row's subject. Example: {"synonyms": "PTSD|shell shock"} gives both."""
    return [name.strip() for name in str(record.get("synonyms") or "").split("|") if name.strip()]


Ranks = Callable[[DocumentStore, Sequence[str], NDArray[np.float32]], list[Ranking]]


def by_mode(mode: Literal["dense", "sparse"]) -> Ranks:
    return lambda store, texts, vectors: store.rank(texts, K, mode, query_vectors=vectors)


def by_rule(fusion: Fusion) -> Ranks:
    return lambda store, texts, vectors: store.rank(texts, K, fusion=fusion, query_vectors=vectors)


PARTS = ("dense", "sparse")
WAYS = {"dense": by_mode("dense"), "sparse": by_mode("sparse")} | {name: by_rule(r) for name, r in RULES.items()}


def measured(store: DocumentStore, questions: Sequence[Question], vectors: NDArray[np.float32], ranks: Ranks) -> Scores:
    """(questions, 3): MRR@10, nDCG@10 and recall@10 over chunks."""
    rankings = ranks(store, [question.question for question in questions], vectors)
    found = [[store.chunks[i].id for i in ranking.ids[:K]] for ranking in rankings]
    return np.array(
        [
            (reciprocal_rank(ids, wanted), ndcg(ids, wanted, K), recall(ids, wanted))
            for ids, wanted in zip(found, (question.relevant_chunk_ids for question in questions), strict=True)
        ]
    ).reshape(len(questions), len(MEASURES))


def better_part(by_way: Mapping[str, Scores]) -> Scores:
    """Scores of the part with the better mean, for each measure: dense may have the better MRR, sparse recall."""
    dense_is_better = by_way["dense"].mean(axis=0) >= by_way["sparse"].mean(axis=0)
    return np.where(dense_is_better, by_way["dense"], by_way["sparse"])


def over_better_part(by_way: Mapping[str, Scores], way: str = DEFAULT) -> list[float]:
    difference: list[float] = (by_way[way] - better_part(by_way)).mean(axis=0).tolist()
    return difference


def table(name: str, by_way: Mapping[str, Scores]) -> list[str]:
    """Means of each way, and its difference from the better part, question by question, with its interval."""
    better = better_part(by_way)
    lines = [f"{name}, {len(better):,} questions", "", f"| | {' | '.join(MEASURES)} |", "|---" * 4 + "|"]
    for way, scores in by_way.items():
        cells = [f"{mean:.3f}" for mean in scores.mean(axis=0)]
        if way not in PARTS:
            gains = [bootstrapped(column.tolist()) for column in (scores - better).T]
            cells = [f"{cell}, {gain['mean']:+.3f} ({span(gain)})" for cell, gain in zip(cells, gains, strict=True)]
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return [*lines, ""]


if __name__ == "__main__":
    run_script(main, description=__doc__)
