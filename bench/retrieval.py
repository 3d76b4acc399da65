"""Retrieval against its peers: index times, queries per second, and quality, on any QA data set.

    python -m bench.retrieval --data medquad.jsonl.gz

Peers: rank_bm25 and bm25s (words, same tokens as ours), LangChain's EnsembleRetriever over its BM25Retriever and its
Chroma (both, same tokens and same vectors as ours). Vectors are made once and timed separately. The fusion weights are
chosen on training questions; all quality figures are for held-out questions. Files stay in --store, so a second run
embeds nothing again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import bm25s
import ir_measures
import numpy as np
from ir_measures import RR, R, Success
from langchain_chroma import Chroma
from langchain_classic.retrievers import EnsembleRetriever
from langchain_community.retrievers import BM25Retriever
from langchain_core.embeddings import Embeddings
from numpy.typing import NDArray
from rank_bm25 import BM25Okapi
from rich.console import Console
from rich.table import Table

from bench.report import Bar, finish
from forage.cli import run_script
from forage.data.documents import assemble
from forage.data.options import Columns
from forage.data.qa_rows import read_records, to_rows
from forage.data.records import Question
from forage.data.relevance import make_questions, split_by_document
from forage.store.bm25 import BM25, Tokenizer
from forage.store.document_store import DocumentStore
from forage.store.fusion import Ranking, top_k
from forage.store.options import Fusion, StoreOptions

K = 10
BATCH = 256
MEASURES = [RR @ K, R @ 5, Success @ K]
CONSOLE = Console(width=110)


@dataclass(frozen=True)
class BenchOptions:
    """What to measure on."""

    data: str
    """Data set: a .jsonl, .jsonl.gz, .csv or .parquet file with questions and answers."""
    store: Path = Path("data/bench-store")
    """Folder for the store; kept, so that a second run embeds nothing anew."""
    questions: int = 1000
    """Held-out questions for quality and speed."""
    tuning_questions: int = 1000
    """Training questions on which the fusion is chosen."""
    slow_questions: int = 500
    """Questions for rank_bm25, whose ids and scores must be ours; it takes about a tenth of a second for each."""
    repeats: int = 3
    """Runs of each timing; the median counts."""
    seed: int = 0
    """Seed of the split and of the samples."""
    options: StoreOptions = field(default_factory=StoreOptions)


def main(bench: BenchOptions) -> None:
    store, train, held_out = prepare(bench)
    vectors = store.embed_queries([q.question for q in held_out])
    chosen = choose_fusion(store, train)
    quality = print_quality(store, held_out, vectors, chosen)
    print_tokenizers(store, held_out)
    sparse = print_sparse_speed(store, [q.question for q in held_out], bench)
    hybrid = print_hybrid_speed(store, [q.question for q in held_out], vectors, chosen, bench)
    better_part = max(quality["dense"], quality["sparse"])
    finish(
        [
            Bar("questions ranked and scored as by rank_bm25, to 1e-6", sparse["same"], 1),
            Bar("sparse / rank_bm25", sparse["ours"] / sparse["rank_bm25"], 100),
            Bar("sparse / bm25s", sparse["ours"] / sparse["bm25s"], 3),
            Bar("hybrid / EnsembleRetriever", hybrid["ours"] / hybrid["EnsembleRetriever"], 40),
            Bar("hybrid MRR@10 / better part's", quality["hybrid"] / better_part, 1.05),
        ]
    )


def prepare(bench: BenchOptions) -> tuple[DocumentStore, list[Question], list[Question]]:
    """The store, built from the data set's answers, and samples of its training and held-out questions."""
    rows, _ = to_rows(read_records(bench.data, bench.store), Columns())
    library = assemble(rows, {})
    started = time.perf_counter()
    store = DocumentStore.build(bench.store, library.documents, bench.options)
    CONSOLE.print(
        f"{store.card.documents:,} documents, {len(store.chunks):,} chunks; store built in "
        f"{time.perf_counter() - started:.1f} s, with {store.embedded:,} chunks that had no vector yet"
    )
    questions, _ = make_questions(rows, library.doc_of_row, store.chunks)
    train, held_out = split_by_document(questions, 0.2, bench.seed)
    draw = random.Random(bench.seed)
    return store, draw.sample(train, bench.tuning_questions), draw.sample(held_out, bench.questions)


def score(questions: Sequence[Question], rankings: Sequence[Ranking], store: DocumentStore) -> dict[Any, float]:
    """MRR@10, recall@5 and hit@10 by ir_measures, over chunks."""
    qrels = {q.id: dict.fromkeys(q.relevant_chunk_ids, 1) for q in questions}
    run = {
        # Ranks serve as scores: ir_measures breaks ties by id, we break them by position.
        question.id: {store.chunks[i].id: -float(rank) for rank, i in enumerate(ranking.ids[:K])}
        for question, ranking in zip(questions, rankings, strict=True)
    }
    return dict(ir_measures.calc_aggregate(MEASURES, qrels, run))


def choose_fusion(store: DocumentStore, train: Sequence[Question]) -> Fusion:
    """The fusion with the best MRR@10 on training questions."""
    texts = [q.question for q in train]
    vectors = store.embed_queries(texts)
    tried = {}
    ways: tuple[Literal["weighted", "rrf"], ...] = ("weighted", "rrf")
    for fusion in ways:
        for title_weight in (0.0, 0.2, 0.3, 0.4, 0.5):
            for sparse_weight in (0.05, 0.1, 0.2, 0.3):
                way = Fusion(fusion, round(1 - title_weight - sparse_weight, 2), title_weight)
                rankings = store.rank(texts, K, query_vectors=vectors, fusion=way)
                tried[way] = score(train, rankings, store)[RR @ K]
    best = max(tried, key=lambda way: tried[way])
    no_title = max((way for way in tried if not way.title_weight), key=lambda way: tried[way])
    CONSOLE.print(
        f"fusion chosen on {len(train):,} training questions: {best}, MRR@{K} {tried[best]:.4f}; "
        f"the best without titles: {no_title}, {tried[no_title]:.4f}"
    )
    return best


def print_quality(
    store: DocumentStore, questions: Sequence[Question], vectors: NDArray[np.float32], chosen: Fusion
) -> dict[str, float]:
    """Print MRR@10, recall@5 and hit@10 of each mode; return the MRR@10."""
    texts = [q.question for q in questions]
    rankings = {
        "sparse": store.rank(texts, K, "sparse"),
        "dense": store.rank(texts, K, "dense", query_vectors=vectors),
        "hybrid": store.rank(texts, K, query_vectors=vectors, fusion=chosen),
        "hybrid, store's defaults": store.rank(texts, K, query_vectors=vectors),
    }
    table = Table("mode", "MRR@10", "recall@5", "hit@10", title=f"{len(questions):,} held-out questions")
    scores = {name: score(questions, ranking, store) for name, ranking in rankings.items()}
    for name, values in scores.items():
        table.add_row(name, *(f"{values[measure]:.4f}" for measure in MEASURES))
    CONSOLE.print(table)
    return {name: values[RR @ K] for name, values in scores.items()}


def print_tokenizers(store: DocumentStore, questions: Sequence[Question]) -> None:
    """Print the effect of stems, stop words and the title in the chunk on sparse search."""
    table = Table("stems", "stop words", "title in chunk", "MRR@10", "recall@5", "hit@10", title="sparse search")
    for title in (True, False):
        way = replace(store.options, title_in_chunk=title)
        texts = [way.searched_text(chunk.title, chunk.text) for chunk in store.chunks]
        for stem in (True, False):
            for stop_words in (True, False):
                tokenize = Tokenizer(stem, stop_words)
                index = BM25.build(map(tokenize, texts))
                values = score(questions, [index.rank(tokenize(q.question), K) for q in questions], store)
                flags = ["cut" if stem else "-", "left out" if stop_words else "-", "in front" if title else "-"]
                table.add_row(*flags, *(f"{values[measure]:.4f}" for measure in MEASURES))
    CONSOLE.print(table)


def print_sparse_speed(store: DocumentStore, texts: Sequence[str], bench: BenchOptions) -> dict[str, float]:
    """Queries per second from words to the best ten, with the same words for all; also times building the indexes."""
    tokenize = Tokenizer(store.options.stem, store.options.stop_words)
    corpus = [tokenize(store.options.searched_text(chunk.title, chunk.text)) for chunk in store.chunks]
    queries = [tokenize(text) for text in texts]
    ours, ours_s = timed(lambda: BM25.build(corpus))
    okapi, okapi_s = timed(lambda: BM25Okapi(corpus))
    peer = bm25s.BM25()
    _, peer_s = timed(lambda: peer.index(corpus, show_progress=False))
    few = queries[: bench.slow_questions]
    speeds = {
        "ours": rate(lambda: [ours.rank(words, K) for words in queries], len(queries), bench.repeats),
        "bm25s": rate(lambda: peer.retrieve(queries, k=K, show_progress=False), len(queries), bench.repeats),
        "rank_bm25": rate(lambda: [np.argsort(okapi.get_scores(w))[::-1][:K] for w in few], len(few), 1),
        "same": float(np.mean([same_ranking(ours, okapi, words) for words in few])),
    }
    table = Table("sparse", "index s", "queries/s", title=f"words to best {K}, {len(corpus):,} chunks")
    for name, seconds in (("ours", ours_s), ("bm25s", peer_s), ("rank_bm25", okapi_s)):
        table.add_row(name, f"{seconds:.2f}", f"{speeds[name]:,.1f}")
    CONSOLE.print(table)
    return speeds


def same_ranking(ours: BM25, okapi: BM25Okapi, words: Sequence[str]) -> bool:
    """Whether our scores are rank_bm25's to 1e-6, and so are the best ten, with ties in order of position."""
    expected = okapi.get_scores(words)
    close = bool(np.allclose(ours.scores(words), expected, rtol=0, atol=1e-6))
    return close and ours.rank(words, K).ids.tolist() == top_k(expected, K, above=0.0).tolist()


class KnownVectors(Embeddings):
    """Gives LangChain the existing vectors, so that no embedding is timed."""

    def __init__(self, texts: Sequence[str], vectors: NDArray[np.float32]) -> None:
        self.known = dict(zip(texts, vectors.tolist(), strict=True))

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.known[text] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        known: list[float] = self.known[text]
        return known


def print_hybrid_speed(
    store: DocumentStore, texts: Sequence[str], vectors: NDArray[np.float32], chosen: Fusion, bench: BenchOptions
) -> dict[str, float]:
    """Queries per second in batches of 256 embedded queries, ours and LangChain's."""
    batch, batch_vectors = list(texts[:BATCH]), vectors[:BATCH]
    embed_s = timed(lambda: store.embed_queries(batch))[1]
    with TemporaryDirectory() as folder:
        ensemble, index_s = timed(lambda: make_ensemble(store, batch, batch_vectors, chosen, folder))
        speeds = {
            "ours": rate(
                lambda: store.rank(batch, K, query_vectors=batch_vectors, fusion=chosen), len(batch), bench.repeats
            ),
            "EnsembleRetriever": rate(lambda: ensemble.batch(batch), len(batch), 1),
        }
    table = Table("hybrid", "index s", "queries/s", title=f"embedded queries to best {K}, batches of {BATCH}")
    table.add_row("ours (index: see above)", "", f"{speeds['ours']:,.1f}")
    table.add_row("EnsembleRetriever", f"{index_s:.1f}", f"{speeds['EnsembleRetriever']:,.1f}")
    CONSOLE.print(table)
    CONSOLE.print(
        f"embedding the {len(batch)} queries, apart and equal for both: {len(batch) / embed_s:,.1f} queries/s"
    )
    return speeds


def make_ensemble(
    store: DocumentStore, queries: Sequence[str], vectors: NDArray[np.float32], chosen: Fusion, folder: str
) -> EnsembleRetriever:
    """LangChain's BM25Retriever and Chroma over our chunks, with our tokens, our vectors and our weights."""
    tokenize = Tokenizer(store.options.stem, store.options.stop_words)
    texts = [store.options.searched_text(chunk.title, chunk.text) for chunk in store.chunks]
    known = KnownVectors([*texts, *queries], np.concatenate([store.vectors_ND, vectors]))
    words = BM25Retriever.from_texts(texts, preprocess_func=tokenize, k=K)
    chroma = Chroma("peer", known, persist_directory=folder, collection_configuration={"hnsw": {"space": "cosine"}})
    for first in range(0, len(texts), 5000):
        chroma.add_texts(texts[first : first + 5000])
    weights = [1 - chosen.dense_weight, chosen.dense_weight]  # it has no third ranking
    return EnsembleRetriever(retrievers=[words, chroma.as_retriever(search_kwargs={"k": K})], weights=weights)


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    started = time.perf_counter()
    result = work()
    return result, time.perf_counter() - started


def rate(work: Callable[[], Any], count: int, repeats: int) -> float:
    """Median of `repeats` runs, in queries per second."""
    return count / float(np.median([timed(work)[1] for _ in range(repeats)]))


if __name__ == "__main__":
    run_script(main, description=__doc__)
