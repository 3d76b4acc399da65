"""Retrieval against its peers: index times, queries per second, and quality, on any QA data set.

    python -m bench.retrieval --data medquad.jsonl.gz

Peers: rank_bm25 and bm25s (words, with the same tokens as ours), LangChain's EnsembleRetriever over its BM25Retriever
and its Chroma (words and vectors, the same as ours). Vectors are made once and timed separately. Quality is measured on
held-out questions, with the store's own weights. --store is kept, so a second run embeds nothing.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import bm25s
import numpy as np
from langchain_chroma import Chroma
from langchain_classic.retrievers import EnsembleRetriever
from langchain_community.retrievers import BM25Retriever
from langchain_core.embeddings import Embeddings
from numpy.typing import NDArray
from rank_bm25 import BM25Okapi

from bench.harness import Bar, finish, in_turns, ratios, seconds_of
from forage.arguments import run_script
from forage.data.documents import assemble
from forage.data.options import Columns
from forage.data.qa_rows import read_records, to_rows
from forage.data.records import Question
from forage.data.relevance import make_questions, split_by_document
from forage.evaluation.measures import grades_of, retrieval_measures
from forage.store.bm25 import BM25, Tokenizer
from forage.store.document_store import DocumentStore
from forage.store.fusion import top_k
from forage.store.options import StoreOptions

K = 10
BATCH = 256
MRR = f"mrr@{K}"
SLOW = 500  # questions for rank_bm25, which takes about a tenth of a second for each


@dataclass(frozen=True)
class Options:
    """What to measure on."""

    data: str
    """Data set: a .jsonl, .jsonl.gz, .csv or .parquet file with questions and answers."""
    store: Path = Path("data/bench-store")
    """Folder for the store; kept, so that a second run embeds nothing anew."""
    questions: int = 1000
    """Held-out questions for quality and speed."""
    rounds: int = 3
    """Runs of each timing, taking turns; rank_bm25 and LangChain have one."""
    seed: int = 0
    """Seed of the split and of the sample."""
    options: StoreOptions = field(default_factory=StoreOptions)


def main(options: Options) -> None:
    store, questions = prepare(options)
    texts = [question.question for question in questions]
    vectors = store.embed_queries(texts)
    quality = qualities(store, questions, vectors)
    sparse = sparse_bars(store, texts, options.rounds)
    hybrid = hybrid_bar(store, texts[:BATCH], vectors[:BATCH], options.rounds)
    better_part = max(quality["dense"], quality["sparse"])
    finish([*sparse, hybrid, Bar(f"hybrid MRR@{K} / better part's", (quality["hybrid"] / better_part,), 1.05)])


def prepare(options: Options) -> tuple[DocumentStore, list[Question]]:
    """The store, built from the data set's answers, and a sample of its held-out questions."""
    rows, _ = to_rows(read_records(options.data, options.store), Columns())
    library = assemble(rows, {})
    started = time.perf_counter()
    store = DocumentStore.build(options.store, library.documents, options.options)
    print(
        f"{store.manifest.documents:,} documents, {len(store.chunks):,} chunks; store built in "
        f"{time.perf_counter() - started:.1f} s, with {store.embedded:,} chunks that had no vector yet"
    )
    questions, _ = make_questions(rows, library.doc_of_row, store.chunks)
    train, held_out = split_by_document(questions, 0.2, options.seed)
    draw = random.Random(options.seed)
    draw.sample(train, min(1000, len(train)))  # keeps the held-out sample the one that published figures are of
    return store, draw.sample(held_out, options.questions)


def qualities(store: DocumentStore, questions: Sequence[Question], vectors: NDArray[np.float32]) -> dict[str, float]:
    """MRR@10 of each mode; prints recall@5 too."""
    texts = [question.question for question in questions]
    rankings = {
        "sparse": store.rank(texts, K, "sparse"),
        "dense": store.rank(texts, K, "dense", query_vectors=vectors),
        "hybrid": store.rank(texts, K, query_vectors=vectors),
    }
    found, grades = dict[str, float](), grades_of(questions)
    for name, ranking in rankings.items():
        measures = retrieval_measures([[store.chunks[i].id for i in each.ids] for each in ranking], grades, (5, K))
        means = {measure: float(measures[measure].mean()) for measure in (MRR, "recall@5")}
        print(f"{name:7} {', '.join(f'{measure} {mean:.4f}' for measure, mean in means.items())}")
        found[name] = means[MRR]
    return found


def sparse_bars(store: DocumentStore, texts: Sequence[str], rounds: int) -> list[Bar]:
    """From words to the best ten, with the same words for all."""
    tokenize = Tokenizer()
    corpus = [tokenize(store.options.searched_text(chunk.title, chunk.text)) for chunk in store.chunks]
    queries = [tokenize(text) for text in texts]
    few, peer = queries[:SLOW], bm25s.BM25()
    ours, okapi = BM25.build(corpus), BM25Okapi(corpus)
    built = {
        "ours": seconds_of(lambda: BM25.build(corpus)), "rank_bm25": seconds_of(lambda: BM25Okapi(corpus)),
        "bm25s": seconds_of(lambda: peer.index(corpus, show_progress=False)),
    }  # fmt: skip
    rates = in_turns({
        "ours": lambda: rate(lambda: [ours.rank(words, K) for words in queries], len(queries)),
        "bm25s": lambda: rate(lambda: peer.retrieve(queries, k=K, show_progress=False), len(queries)),
    }, rounds)  # fmt: skip
    expected = list[NDArray[np.float64]]()
    slow = rate(lambda: expected.extend(map(okapi.get_scores, few)), len(few))  # without picking the best ten
    said("words", built, rates | {"rank_bm25": [slow]})
    same = float(np.mean([same_ranking(ours, *each) for each in zip(few, expected, strict=True)]))
    return [
        Bar("questions ranked and scored as by rank_bm25, to 1e-6", (same,), 1),
        Bar("sparse / rank_bm25", tuple(each / slow for each in rates["ours"]), 100),
        Bar("sparse / bm25s", ratios(rates["ours"], rates["bm25s"]), 3),
    ]


def same_ranking(ours: BM25, words: Sequence[str], expected_N: NDArray[np.float64]) -> bool:
    """Whether our scores are rank_bm25's to 1e-6, and so are the best ten, with ties in order of position."""
    close = bool(np.allclose(ours.scores(words), expected_N, rtol=0, atol=1e-6))
    return close and ours.rank(words, K).ids.tolist() == top_k(expected_N, K, above=0.0).tolist()


def hybrid_bar(store: DocumentStore, texts: list[str], vectors: NDArray[np.float32], rounds: int) -> Bar:
    """A batch of embedded queries, ours and LangChain's."""
    with TemporaryDirectory() as folder:
        ensemble = make_ensemble(store, texts, vectors, folder)
        ours = [rate(lambda: store.rank(texts, K, query_vectors=vectors), len(texts)) for _ in range(rounds)]
        theirs = rate(lambda: ensemble.batch(texts), len(texts))
    said("words and vectors", {}, {"ours": ours, "LangChain": [theirs]})
    return Bar("hybrid / EnsembleRetriever", tuple(each / theirs for each in ours), 40)


class KnownVectors(Embeddings):
    """Gives LangChain the existing vectors, so that no embedding is timed."""

    def __init__(self, texts: Sequence[str], vectors: NDArray[np.float32]) -> None:
        self.known = dict(zip(texts, vectors.tolist(), strict=True))

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.known[text] for text in texts]

    def embed_query(self, text: str) -> list[float]:
        known: list[float] = self.known[text]
        return known


def make_ensemble(
    store: DocumentStore, queries: Sequence[str], vectors: NDArray[np.float32], folder: str
) -> EnsembleRetriever:
    """LangChain's BM25Retriever and Chroma over our chunks, with our tokens, our vectors and equal weights."""
    tokenize = Tokenizer()
    texts = [store.options.searched_text(chunk.title, chunk.text) for chunk in store.chunks]
    known = KnownVectors([*texts, *queries], np.concatenate([store.vectors_ND, vectors]))
    words = BM25Retriever.from_texts(texts, preprocess_func=tokenize, k=K)
    chroma = Chroma("peer", known, persist_directory=folder, collection_configuration={"hnsw": {"space": "cosine"}})
    for first in range(0, len(texts), 5000):
        chroma.add_texts(texts[first : first + 5000])
    return EnsembleRetriever(retrievers=[words, chroma.as_retriever(search_kwargs={"k": K})], weights=[0.5, 0.5])


def rate(work: Callable[[], Any], count: int) -> float:
    """Queries a second."""
    return count / seconds_of(work)


def said(what: str, built: dict[str, float], rates: dict[str, list[float]]) -> None:
    for name, several in rates.items():
        index = f", index in {built[name]:.2f} s" if name in built else ""
        print(f"{what}, {name}: {float(np.median(several)):,.1f} queries/s{index}", flush=True)


if __name__ == "__main__":
    run_script(main, __doc__)
