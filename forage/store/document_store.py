"""DocumentStore: build, open and search a store of chunks."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args, overload

import numpy as np
from numpy.typing import NDArray

from forage.data.chunking import Chunk, chunk_document
from forage.data.records import Document, as_document
from forage.errors import UserError
from forage.files import locked, make_folder, typed_lines, write_jsonl
from forage.manifest import file_digest
from forage.outputs import clear_half_written
from forage.progress import Counting
from forage.store.bm25 import BM25, Titles, Tokenizer
from forage.store.card import (
    BM25_FILE,
    CHUNKS_FILE,
    NO_EMBEDDER,
    SAME_MODEL,
    VECTORS,
    StoreCard,
    check_place,
    fingerprint_of,
    read_card,
    write_card,
)
from forage.store.embedder import Embedder
from forage.store.fusion import Ranking, fuse
from forage.store.hit import Hit
from forage.store.options import Fusion, Mode, StoreOptions
from forage.store.vectors import VectorCollection, exact_nearest, text_key
from forage.text import count_words, encodable, most_parts

EMBED_GROUP = 512  # chunks embedded between two writes: the most a killed build loses


class DocumentStore:
    """A searchable store on disk, made by `build` and opened by `open`."""

    def __init__(self, path: Path, card: StoreCard, chunks: list[Chunk], bm25: BM25) -> None:
        self.path = path
        self.card = card
        self.options = card.options
        self.chunks = chunks
        self.embedded = 0  # chunks that its build had to embed
        self._bm25 = bm25
        self._tokenize = Tokenizer(card.options.language)
        if self.options.bm25 == "rank_bm25":
            from rank_bm25 import BM25Okapi

            bm25.scores = BM25Okapi(list(tokenized(chunks, self.options))).get_scores  # type: ignore[method-assign]

    @cached_property
    def chunk_by_id(self) -> dict[str, Chunk]:
        return {chunk.id: chunk for chunk in self.chunks}

    @cached_property
    def embedder(self) -> Embedder:
        """The store's embedder, loaded on first use; refuses another model under the same name."""
        return embedder_of(self.card, self.path)

    @cached_property
    def fingerprint(self) -> str:
        """What a run that learns from this store must find again."""
        return fingerprint_of(self.card, self.chunks_digest)

    @cached_property
    def chunks_digest(self) -> str:
        return self.card.files.get(CHUNKS_FILE) or file_digest(self.path / CHUNKS_FILE)

    @cached_property
    def vectors_ND(self) -> NDArray[np.float32]:
        """The chunks' vectors, loaded on first use."""
        keys = [text_key(text) for text in embed_texts(self.chunks, self.options, self.embedder)]
        return _open_collection(self.path, self.card).matrix(keys, self.card.dimension)

    # Building

    @classmethod
    def build(
        cls,
        path: Path | str,
        documents: Iterable[Document | str | Mapping[str, Any]],
        options: StoreOptions | None = None,
    ) -> DocumentStore:
        """Make the store at `path`, or bring it up to date; only chunks without a vector are embedded.

        So the same call resumes a killed build, and adding a document costs only its own chunks. A document may also be
        a text, or a dictionary with "text" and maybe "id" and "title"; without an id, it has its place as one, from 0.
        """
        path, options = Path(path), options or StoreOptions()
        options.check()
        if isinstance(documents, str | Mapping):
            raise UserError("build takes a list of documents; give [document] for a single one")
        whole = [as_document(document, number) for number, document in enumerate(documents)]
        if not whole:
            raise UserError("no documents to build a store from")
        check_place(path)
        make_folder(path)
        with locked(path / ".lock", f"{path}: another process is building this store; wait until it ends or stop it"):
            clear_half_written(path)
            embedder = None if options.embedder == NO_EMBEDDER else Embedder(options.embedder)
            options = replace(options, embedder=embedder.name if embedder else NO_EMBEDDER)
            chunks = chunks_of(whole, options, embedder)
            name = _collection_name(path, options, embedder)
            card = StoreCard(False, name, options, documents=len(whole), chunks=len(chunks))
            write_card(path, card)
            bm25 = BM25.build(tokenized(chunks, options))
            store = cls(path, card, chunks, bm25)
            write_jsonl(path / CHUNKS_FILE, chunks)
            bm25.save(path / BM25_FILE)
            if embedder:
                texts = embed_texts(chunks, options, embedder)
                store.embedded = _embed_missing(_open_collection(path, card), texts, embedder)
                card = replace(card, dimension=embedder.dimension, probe=embedder.probe().tolist())
            files = {name: file_digest(path / name) for name in (CHUNKS_FILE, BM25_FILE)}
            store.card = replace(card, complete=True, files=files)
            write_card(path, store.card)
        return store

    @classmethod
    def open(cls, path: Path | str) -> DocumentStore:
        """Open a finished store; refuses one with a missing part."""
        path = Path(path)
        card = read_card(path)
        if not card.complete:
            raise UserError(f"{path}: its build did not finish; re-run the same command to resume")
        vectors_inside = card.options.embedder != NO_EMBEDDER and not card.options.chroma_url
        for part in (CHUNKS_FILE, BM25_FILE, *([VECTORS] if vectors_inside else [])):
            if not (path / part).exists():
                raise UserError(f"{path}: {part} is missing; re-run the build")
        if changed := [name for name, built in card.files.items() if file_digest(path / name) != built]:
            raise UserError(f"{path / changed[0]} was changed since the store was built; re-run the build")
        chunks = read_chunks(path / CHUNKS_FILE)
        bm25 = BM25.load(path / BM25_FILE)
        if not len(chunks) == bm25.size == card.chunks:
            counts = f"store.json counts {card.chunks} chunks, chunks.jsonl {len(chunks)}, {BM25_FILE} {bm25.size}"
            raise UserError(f"{path}: {counts}; re-run the build")
        return cls(path, card, chunks, bm25)

    # Searching

    @overload  # a text is a sequence of texts, too
    def search(  # type: ignore[overload-overlap]
        self, queries: str, k: int = 5, mode: Mode = "hybrid", *, fusion: Fusion = ...
    ) -> list[Hit]: ...
    @overload
    def search(
        self, queries: Sequence[str], k: int = 5, mode: Mode = "hybrid", *, fusion: Fusion = ...
    ) -> list[list[Hit]]: ...
    def search(
        self,
        queries: str | Sequence[str],
        k: int = 5,
        mode: Mode = "hybrid",
        *,
        fusion: Fusion = Fusion(),  # noqa: B008 it is frozen
    ) -> list[Hit] | list[list[Hit]]:
        """The k best chunks for each query, best first; none for a blank query.

        A list of queries gives a list of hits for each; a single text gives its hits.
        """
        if isinstance(queries, str):
            return self.search([queries], k, mode, fusion=fusion)[0]
        return list(map(self._hits, self.rank(queries, k, mode, fusion=fusion)))

    def rank(
        self,
        queries: Sequence[str],
        k: int,
        mode: Mode = "hybrid",
        *,
        fusion: Fusion = Fusion(),  # noqa: B008 it is frozen
        query_vectors: NDArray[np.float32] | None = None,
    ) -> list[Ranking]:
        """Like `search`, but returns chunk numbers and scores. Equal queries in a batch are ranked once.

        `query_vectors` are the queries' embeddings, if the caller has them already.
        """
        if isinstance(queries, str):
            raise UserError("rank takes a list of queries; give [query] for a single one")
        if k < 1:
            raise UserError(f"k {k} must be at least 1")
        if mode not in get_args(Mode):
            raise UserError(f"mode {mode!r} is none of {', '.join(get_args(Mode))}")
        fusion.check()
        queries = list(map(encodable, queries))
        unique = {query: row for row, query in reversed(list(enumerate(queries))) if query.strip()}
        texts = list(unique)
        if query_vectors is not None:
            query_vectors = query_vectors[list(unique.values())]
        ranking_of = dict(zip(texts, self._rank(texts, k, mode, fusion, query_vectors), strict=True))
        return [_first(ranking_of[query], k) if query in ranking_of else NO_HITS for query in queries]

    def _rank(
        self, texts: list[str], k: int, mode: Mode, fusion: Fusion, vectors_QD: NDArray[np.float32] | None
    ) -> list[Ranking]:
        words = [self._tokenize(text) for text in texts]
        if mode == "sparse" or not texts:
            return [self._bm25.rank(query_words, k) for query_words in words]
        if vectors_QD is None:
            vectors_QD = self.embed_queries(texts)
        if mode == "dense":
            return list(exact_nearest(self.vectors_ND, vectors_QD, k))
        depth = max(fusion.depth, k)
        dense = list(exact_nearest(self.vectors_ND, vectors_QD, depth))
        sparse = [self._bm25.rank(query_words, depth) for query_words in words]
        titles = [
            self._titles.rank(said, np.union1d(one.ids, other.ids), fusion.title_share)
            for said, one, other in zip(words, dense, sparse, strict=True)
        ]
        return [fuse(fusion, *three) for three in zip(dense, sparse, titles, strict=True)]

    @cached_property
    def _titles(self) -> Titles:
        return Titles.build([chunk.title for chunk in self.chunks], self._tokenize)

    def embed_queries(self, queries: Sequence[str]) -> NDArray[np.float32]:
        """(queries, dimension) vectors, for callers that search with the same queries more than once."""
        return self.embedder.encode_queries(list(map(encodable, queries)))

    def _hits(self, ranking: Ranking) -> list[Hit]:
        chunks = (self.chunks[i] for i in ranking.ids.tolist())
        return [
            Hit(chunk.id, chunk.doc_id, chunk.title, chunk.text, score, rank)
            for rank, (chunk, score) in enumerate(zip(chunks, ranking.scores.tolist(), strict=True), 1)
        ]


def embedder_of(card: StoreCard, where: Path | str) -> Embedder:
    """The embedder of the store at `where`; refuses another model under the same name."""
    if card.options.embedder == NO_EMBEDDER:
        raise UserError(
            f"{where} has no vectors (embedder none); search it with --mode sparse (a policy that learnt another mode: "
            "--override-agent too), or rebuild it with one"
        )
    embedder = Embedder(card.options.embedder)
    if not _probe_fits(card, embedder):
        raise UserError(f"{where}: embedder {embedder.name!r} is not the model it was built with; rebuild it")
    return embedder


def read_chunks(path: Path) -> list[Chunk]:
    return list(typed_lines(Chunk, path, "a chunk", "re-run the build"))


NO_HITS = Ranking(np.zeros(0, np.int64), np.zeros(0))


def embed_texts(chunks: Sequence[Chunk], options: StoreOptions, embedder: Embedder) -> list[str]:
    """The text of each chunk that is embedded: the searched one, its title cut short so that the chunk never is."""
    room = embedder.max_tokens - options.chunk_tokens
    titles = sorted({chunk.title for chunk in chunks if options.title_in_chunk})
    short = {title: _cut(title, room, embedder) for title in titles}
    return [f"{short[c.title]}\n{c.text}".strip() if short.get(c.title) else c.text.strip() for c in chunks]


def _cut(title: str, room: int, embedder: Embedder) -> str:
    """As many of the title's first words as fit in `room` tokens."""
    words = title.split()
    return " ".join(words[: most_parts(words, lambda text: embedder.count_tokens([text])[0], room)])


def chunks_of(documents: Iterable[Document], options: StoreOptions, embedder: Embedder | None) -> list[Chunk]:
    """All chunks; without an embedder, a token is a word."""
    if embedder and options.chunk_tokens > embedder.max_tokens:
        raise UserError(
            f"--chunk-tokens {options.chunk_tokens} is over the {embedder.max_tokens} tokens that {embedder.name} reads"
        )
    words = (lambda text: len(text.split())) if options.language == "english" else count_words
    count = embedder.count_tokens if embedder else lambda texts: list(map(words, texts))
    return [
        chunk
        for document in _with_unique_ids(documents)
        for chunk in chunk_document(
            replace(document, title=encodable(document.title), text=encodable(document.text)),
            count,
            options.chunk_tokens,
            options.chunk_overlap,
        )
    ]


def _with_unique_ids(documents: Iterable[Document]) -> Iterator[Document]:
    seen: set[str] = set()
    for document in documents:
        if document.id in seen:
            raise UserError(f"document id {document.id!r} occurs twice; ids must be unique")
        seen.add(document.id)
        yield document


def tokenized(chunks: Iterable[Chunk], options: StoreOptions) -> Iterator[list[str]]:
    return (Tokenizer(options.language)(options.searched_text(chunk.title, chunk.text)) for chunk in chunks)


def _collection_name(path: Path, options: StoreOptions, embedder: Embedder | None) -> str:
    """The collection to build in: the store's current one if the same model filled it, else a new one."""
    if (path / "store.json").exists():
        card = read_card(path)
        same_place = (card.options.embedder, card.options.chroma_url) == (options.embedder, options.chroma_url)
        # An unfinished build has no probe yet.
        if same_place and (not card.probe or embedder is None or _probe_fits(card, embedder)):
            return card.collection
        if card.options.embedder != NO_EMBEDDER:
            _open_collection(path, card).drop()
    return f"chunks-{uuid.uuid4().hex[:12]}"


def _probe_fits(card: StoreCard, embedder: Embedder) -> bool:
    """Whether the embedder gives the probe sentence the vector it had when the store was built."""
    then_D, now_D = np.array(card.probe), embedder.probe()
    return then_D.shape == now_D.shape and float(then_D @ now_D) >= SAME_MODEL


def _open_collection(path: Path, card: StoreCard) -> VectorCollection:
    return VectorCollection(card.collection, path / VECTORS, card.options.chroma_url)


def _embed_missing(collection: VectorCollection, texts: Sequence[str], embedder: Embedder) -> int:
    """Make the collection hold exactly these texts' vectors: add the new ones, which are counted, remove the unused."""
    text_of = {text_key(text): text for text in texts}
    present = collection.keys()
    # Longest first: batches of similar lengths need little padding, and if memory runs out, it does so at the start.
    missing = sorted(text_of.keys() - present, key=lambda key: (-len(text_of[key]), key))
    with Counting("embedding", len(text_of) if missing else 0, len(text_of) - len(missing)) as bar:
        for first in range(0, len(missing), EMBED_GROUP):
            keys = missing[first : first + EMBED_GROUP]
            collection.add(keys, embedder.encode_passages([text_of[key] for key in keys]))
            bar.update(len(keys))
    collection.remove(sorted(present - text_of.keys()))
    return len(missing)


def _first(ranking: Ranking, k: int) -> Ranking:
    return Ranking(ranking.ids[:k], ranking.scores[:k])
