"""DocumentStore: build, open, edit and search a store of chunks."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeAlias, get_args, overload

import numpy as np
from numpy.typing import NDArray

from forage.data.chunking import Chunk, chunk_document
from forage.data.records import Document, as_document
from forage.data.relevance import by_document
from forage.errors import UserError
from forage.files import filling_folder, in_turn, replacing_folder, typed_lines, write_jsonl
from forage.manifest import digest, file_digest
from forage.progress import Counting, counted
from forage.store.bm25 import BM25, Titles, Tokenizer
from forage.store.embedder import Embedder
from forage.store.fusion import Hit, Ids, Ranking, fuse, hit_of
from forage.store.manifest import (
    BM25_FILE,
    CHUNKS_FILE,
    NEXT,
    NO_EMBEDDER,
    ORIGINALS_FILE,
    READERS,
    SAME_MODEL,
    TURN,
    VECTORS,
    Kept,
    StoreManifest,
    check_address,
    fingerprint_of,
    finish_edit,
    read_store_manifest,
    write_store_manifest,
)
from forage.store.options import Fusion, Mode, StoreOptions
from forage.store.vectors import VectorCollection, exact_nearest, text_key
from forage.store.where import Where, condition
from forage.text import count_words, encodable, encodable_values, most_parts, typed

LONGEST_NUMBER = 19  # digits
EMBED_GROUP = 512  # chunks embedded between two writes: the most a killed build loses
Given: TypeAlias = Document | str | Mapping[str, Any]
"""A document, as `build` and `add` take it."""


class DocumentStore:
    """A searchable store on disk, made by `build` and opened by `open`.

    An open one stays as it was opened, whoever edits or rebuilds the store; but it sees edits of its own. Its length is
    the number of its documents, which iterating gives in order.
    """

    def __init__(self, path: Path, manifest: StoreManifest, chunks: list[Chunk], bm25: BM25) -> None:
        self.path = path
        self.manifest = manifest
        self.options = manifest.options
        self.chunks = chunks
        self.embedded = 0  # chunks that its build had to embed
        self._bm25 = bm25
        self._originals: Kept | None = Kept(path / ORIGINALS_FILE)
        self._lease = Kept(path / READERS) if (path / READERS).exists() else None  # a copy may lack hidden files
        if self._lease:
            self._lease.share()
        self._tokenize = Tokenizer(manifest.options.language)
        if self.options.bm25 == "rank_bm25" and bm25.terms:  # of texts without words it can't take the mean
            from rank_bm25 import BM25Okapi

            bm25.scores = BM25Okapi(list(tokenized(chunks, self.options))).get_scores  # type: ignore[method-assign]

    def __len__(self) -> int:
        return self.manifest.documents

    def __iter__(self) -> Iterator[Document]:
        return iter(self.documents.values())

    def __contains__(self, doc_id: str) -> bool:
        return doc_id in self.documents

    def get(self, doc_id: str) -> Document | None:
        """The document of an id, whole; None if there is none."""
        return self.documents.get(doc_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the files; the next edit may remove what only this handle could ask for."""
        self._originals = self._lease = None

    @cached_property
    def documents(self) -> dict[str, Document]:
        """The documents by id, read on first use."""
        if self._originals is None:
            raise UserError(f"{self.path} is closed; open it again")
        rows = typed_lines(Document, self._originals.path, "a document", "re-run the build")
        return {document.id: document for document in rows}

    @cached_property
    def chunk_by_id(self) -> dict[str, Chunk]:
        return {chunk.id: chunk for chunk in self.chunks}

    @cached_property
    def embedder(self) -> Embedder:
        """The store's embedder, loaded on first use; refuses another model under the same name."""
        return embedder_of(self.manifest, self.path)

    @cached_property
    def fingerprint(self) -> str:
        """What a run that learns from this store must find again."""
        return fingerprint_of(self.manifest, self.chunks_digest)

    @cached_property
    def chunks_digest(self) -> str:
        return self.manifest.files[CHUNKS_FILE]

    @cached_property
    def vector_keys(self) -> list[str]:
        return [text_key(text) for text in embed_texts(self.chunks, self.options, self.embedder)]

    @cached_property
    def vectors_ND(self) -> NDArray[np.float32]:
        """The chunks' vectors, loaded on first use."""
        keys = self.vector_keys
        with _collection(self.path, self.manifest.collection, self.options.chroma_url) as collection:
            vectors_ND = collection.matrix(keys, self.manifest.dimension)
        self._lease = None
        return vectors_ND

    # Building and editing

    @classmethod
    def build(
        cls,
        path: Path | str,
        documents: Iterable[Given],
        options: StoreOptions | None = None,
    ) -> Self:
        """Make the store at `path`, or bring it up to date; only chunks without a vector are embedded.

        So the same call resumes a killed build, and adding a document costs only its own chunks. A document may also be
        a text, or a dictionary with "text" and maybe "id", "title" and "metadata"; without an id, it has its place as
        one, from 0.
        """
        path, options = Path(path), options or StoreOptions()
        options.check()
        whole = _by_id(documents)
        check_address(path)
        with _writing(path):
            embedder = None if options.embedder == NO_EMBEDDER else Embedder(options.embedder)
            options = replace(options, embedder=embedder.name if embedder else NO_EMBEDDER)
            store = cls._write(path, whole, options, embedder, {})
            store._remove_unused()
        return store

    def add(self, documents: Iterable[Given]) -> None:
        """Add documents to the store on disk; one of a known id takes the other's place. Only what is new is embedded.

        What has no id gets the number after the highest one that the store has had.
        """

        def added(now: Self) -> dict[str, Document]:
            return {**now.documents, **_by_id(documents, _next_number(now.documents, now.manifest.next_number))}

        self._edit(added)

    def delete(self, ids: Iterable[str]) -> None:
        """Remove documents from the store on disk. A store keeps at least one."""
        going = {ids} if isinstance(ids, str) else set(ids)

        def left(now: Self) -> dict[str, Document]:
            if unknown := sorted(going - now.documents.keys()):
                alike = [doc_id for doc_id in now.documents if doc_id.startswith(unknown[0])]
                meant = f"; {alike[0]!r} is there" if alike else ""
                raise UserError(f"{self.path} has no document {unknown[0]!r} to delete{meant}")
            return {doc_id: document for doc_id, document in now.documents.items() if doc_id not in going}

        self._edit(left)

    def _edit(self, change: Callable[[Self], dict[str, Document]]) -> None:
        with _writing(self.path):
            now = (
                self if read_store_manifest(self.path) == self.manifest else self.open(self.path)
            )  # another process edits it, too
            documents = change(now)
            same = {doc_id for doc_id, document in documents.items() if now.documents.get(doc_id) == document}
            known = {doc_id: chunks for doc_id, chunks in by_document(now.chunks).items() if doc_id in same}
            embedder = None if now.options.embedder == NO_EMBEDDER else now.embedder
            made = self._write(self.path, documents, now.options, embedder, known)
            vars(self).clear()
            vars(self).update(vars(made))
            self._remove_unused()

    @classmethod
    def _write(
        cls, path: Path, documents: dict[str, Document], options: StoreOptions, embedder: Embedder | None,
        known: Mapping[str, list[Chunk]],
    ) -> Self:  # fmt: skip
        """Add the vectors that are missing, write all files beside the old ones, and change to them at one stroke.

        `known` are the chunks of documents that have not changed.
        """
        if not documents:
            raise UserError("no documents to build a store from")
        before = read_store_manifest(path) if (path / "store.json").exists() else None
        chunks = chunks_of(documents.values(), options, embedder, known)
        name = _collection_name(path, before, options, embedder)
        number = _next_number(documents, before.next_number if before else 0)
        manifest = StoreManifest(False, name, options, documents=len(documents), chunks=len(chunks), next_number=number)
        if before:
            manifest.abandoned.extend(before.abandoned)
        if metadata := [(document.id, document.metadata) for document in documents.values() if document.metadata]:
            manifest = replace(manifest, metadata=digest(json.dumps(metadata, sort_keys=True).encode()))
        if before and before.collection != name and before.options.embedder != NO_EMBEDDER:
            manifest.abandoned.append((before.collection, before.options.chroma_url))
        if before is None or before.collection != name:
            write_store_manifest(path, manifest)
        keys, embedded = [], 0
        if embedder:
            texts = embed_texts(chunks, options, embedder)
            keys = list(map(text_key, texts))
            embedded = _embed_missing(path, manifest, dict(zip(keys, texts, strict=True)), embedder)
            manifest = replace(manifest, dimension=embedder.dimension, probe=embedder.probe().tolist())
        bm25 = BM25.build(tokenized(counted("indexing words", chunks), options))
        with replacing_folder(path / NEXT) as parts:
            write_jsonl(parts / CHUNKS_FILE, chunks)
            write_jsonl(parts / ORIGINALS_FILE, (document.row() for document in documents.values()))
            bm25.save(parts / BM25_FILE)
            files = {file: file_digest(parts / file) for file in (CHUNKS_FILE, ORIGINALS_FILE, BM25_FILE)}
            manifest = replace(manifest, complete=True, files=files)
            write_store_manifest(parts, manifest)
        finish_edit(path)
        store = cls(path, manifest, chunks, bm25)
        store.documents, store.vector_keys, store.embedded = documents, keys, embedded
        if embedder:
            store.embedder = embedder
        return store

    def _remove_unused(self) -> None:
        """Remove the vectors that no chunk has, unless another handle may ask for some: then a later edit does."""
        if self._lease and self._lease.is_mine():
            for name, url in self.manifest.abandoned:
                if _is_own(self.path, name, url):
                    with _collection(self.path, name, url) as collection:
                        collection.drop()
            if self.options.embedder != NO_EMBEDDER:
                with _collection(self.path, self.manifest.collection, self.options.chroma_url) as collection:
                    collection.remove(sorted(collection.keys().difference(self.vector_keys)))
            if self.manifest.abandoned:
                self.manifest = replace(self.manifest, abandoned=[])
                write_store_manifest(self.path, self.manifest)
            self._lease.share()

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Open a finished store; refuses one with a missing part."""
        path = Path(path)
        while True:
            manifest = read_store_manifest(path)
            try:
                store = cls._load(path, manifest)
            except UserError:
                if read_store_manifest(path) == manifest:
                    raise
            else:
                if read_store_manifest(path) == manifest:  # else it was edited just now
                    return store

    @classmethod
    def _load(cls, path: Path, manifest: StoreManifest) -> Self:
        if not manifest.complete:
            raise UserError(f"{path}: its build did not finish; re-run the same command to resume")
        vectors_inside = manifest.options.embedder != NO_EMBEDDER and not manifest.options.chroma_url
        for part in (CHUNKS_FILE, ORIGINALS_FILE, BM25_FILE, *([VECTORS] if vectors_inside else [])):
            if not (path / part).exists():
                raise UserError(f"{path}: {part} is missing; re-run the build")
        if changed := [name for name, built in manifest.files.items() if file_digest(path / name) != built]:
            raise UserError(f"{path / changed[0]} was changed since the store was built; re-run the build")
        chunks = read_chunks(path / CHUNKS_FILE)
        bm25 = BM25.load(path / BM25_FILE)
        if not len(chunks) == bm25.size == manifest.chunks:
            counts = f"store.json counts {manifest.chunks} chunks, chunks.jsonl {len(chunks)}, {BM25_FILE} {bm25.size}"
            raise UserError(f"{path}: {counts}; re-run the build")
        return cls(path, manifest, chunks, bm25)

    # Searching

    @overload  # a text is a sequence of texts, too
    def search(  # type: ignore[overload-overlap]
        self, queries: str, k: int = 5, mode: Mode = "hybrid", *, fusion: Fusion = ..., where: Where | None = ...
    ) -> list[Hit]: ...
    @overload
    def search(
        self, queries: Sequence[str], k: int = 5, mode: Mode = "hybrid", *, fusion: Fusion = ...,
        where: Where | None = ...,
    ) -> list[list[Hit]]: ...  # fmt: skip
    def search(
        self,
        queries: str | Sequence[str],
        k: int = 5,
        mode: Mode = "hybrid",
        *,
        fusion: Fusion = Fusion(),
        where: Where | None = None,
    ) -> list[Hit] | list[list[Hit]]:
        """The k best chunks for each query, best first; none for a blank query.

        A list of queries gives a list of hits for each; a single text gives its hits. Only documents are searched whose
        metadata fit `where`, which is said as in Chroma: {"year": {"$gte": 2020}}.
        """
        if isinstance(queries, str):
            return self.search([queries], k, mode, fusion=fusion, where=where)[0]
        limits: dict[str, Any] = {} if where is None else {"where": where}
        return list(map(self._hits, self.rank(queries, k, mode, fusion=fusion, **limits)))

    def rank(
        self,
        queries: Sequence[str],
        k: int,
        mode: Mode = "hybrid",
        *,
        fusion: Fusion = Fusion(),
        query_vectors: NDArray[np.float32] | None = None,
        where: Where | None = None,
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
        only = None if where is None else self._fitting(where)
        queries = list(map(encodable, queries))
        unique = {query: row for row, query in reversed(list(enumerate(queries))) if query.strip()}
        texts = list(unique)
        if query_vectors is not None:
            query_vectors = query_vectors[list(unique.values())]
        ranking_of = dict(zip(texts, self._rank(texts, k, mode, fusion, query_vectors, only), strict=True))
        rankings = (ranking_of.get(query, NO_HITS) for query in queries)
        return [Ranking(ranking.ids[:k], ranking.scores[:k]) for ranking in rankings]

    def _rank(
        self, texts: list[str], k: int, mode: Mode, fusion: Fusion, vectors_QD: NDArray[np.float32] | None,
        only: Ids | None,
    ) -> list[Ranking]:  # fmt: skip
        words = [self._tokenize(text) for text in texts]
        if mode == "sparse" or not texts:
            return [self._bm25.rank(query_words, k, only) for query_words in words]
        if vectors_QD is None:
            vectors_QD = self.embed_queries(texts)
        if mode == "dense":
            return list(exact_nearest(self.vectors_ND, vectors_QD, k, only))
        depth = max(fusion.depth, k)
        dense = list(exact_nearest(self.vectors_ND, vectors_QD, depth, only))
        sparse = [self._bm25.rank(query_words, depth, only) for query_words in words]
        titles = [
            self._titles.rank(said, np.union1d(one.ids, other.ids), fusion.title_share)
            for said, one, other in zip(words, dense, sparse, strict=True)
        ]
        return [fuse(fusion, *three) for three in zip(dense, sparse, titles, strict=True)]

    def _fitting(self, where: Where) -> Ids:
        """The numbers of the chunks whose documents' metadata fit."""
        try:
            fits = condition(where)
            ids = {document.id for document in self if fits(document.metadata)}
        except RecursionError as error:
            raise UserError("where has too many conditions within each other") from error
        return np.flatnonzero([chunk.doc_id in ids for chunk in self.chunks])

    @cached_property
    def _titles(self) -> Titles:
        return Titles.build([chunk.title for chunk in self.chunks], self._tokenize)

    def embed_queries(self, queries: Sequence[str]) -> NDArray[np.float32]:
        """(queries, dimension) vectors, for callers that search with the same queries more than once."""
        return self.embedder.encode_queries(list(map(encodable, queries)))

    def _hits(self, ranking: Ranking) -> list[Hit]:
        chunks = (self.chunks[i] for i in ranking.ids.tolist())
        return [
            hit_of(chunk, score, rank)
            for rank, (chunk, score) in enumerate(zip(chunks, ranking.scores.tolist(), strict=True), 1)
        ]


def embedder_of(manifest: StoreManifest, where: Path | str) -> Embedder:
    """The embedder of the store at `where`; refuses another model under the same name."""
    if manifest.options.embedder == NO_EMBEDDER:
        raise UserError(
            f"{where} has no vectors (embedder none); search it with --mode sparse (a policy that learnt another mode: "
            "--override-agent too), or rebuild it with one"
        )
    embedder = Embedder(manifest.options.embedder)
    if not _probe_fits(manifest, embedder):
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


def chunks_of(
    documents: Collection[Document], options: StoreOptions, embedder: Embedder | None, known: Mapping[str, list[Chunk]]
) -> list[Chunk]:
    """All chunks, but for documents whose chunks are known; without an embedder, a token is a word."""
    if embedder and options.chunk_tokens > embedder.max_tokens:
        raise UserError(
            f"--chunk-tokens {options.chunk_tokens} is over the {embedder.max_tokens} tokens that {embedder.name} reads"
        )
    words = (lambda text: len(text.split())) if options.language == "english" else count_words
    count = embedder.count_tokens if embedder else lambda texts: list(map(words, texts))
    return [
        chunk
        for document in counted("cutting documents", documents)
        for chunk in known.get(document.id)
        or chunk_document(document, count, options.chunk_tokens, options.chunk_overlap)
    ]


def _by_id(documents: Iterable[Given], first: int = 0) -> dict[str, Document]:
    """Documents of every kind that is given, as they will be read again; those without an id are numbered."""
    if isinstance(documents, str | Mapping | Document):
        raise UserError("documents come in a list; give [document] for a single one")
    whole: dict[str, Document] = {}
    for number, given in enumerate(documents, first):
        document = as_document(given, number)
        try:
            values = asdict(typed(Document, asdict(document)))
        except ValueError as error:
            raise UserError(f"document {document.id!r} can't be kept ({error})") from error
        document = Document(**encodable_values(values))  # type: ignore[arg-type]
        if document.id in whole:
            raise UserError(f"document id {document.id!r} occurs twice; ids must be unique")
        whole[document.id] = document
    return whole


def _next_number(ids: Iterable[str], least: int) -> int:
    """The number after those of the ids; one of 5,000 digits is a name, and none to count on from."""
    return max([least, *(int(doc_id) + 1 for doc_id in ids if doc_id.isdecimal() and len(doc_id) < LONGEST_NUMBER)])


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Hold a store's folder, for one process at a time."""
    with filling_folder(path, way_out="folder"):
        (path / READERS).touch()
        yield


def tokenized(chunks: Iterable[Chunk], options: StoreOptions) -> Iterator[list[str]]:
    return (Tokenizer(options.language)(options.searched_text(chunk.title, chunk.text)) for chunk in chunks)


def _is_own(path: Path, name: str, url: str) -> bool:
    """Whether a collection is this folder's, and not of one that it was copied from: on a server its name says that."""
    return not url or name.endswith(f"-of-{path.stat().st_ino}")


def _collection_name(path: Path, before: StoreManifest | None, options: StoreOptions, embedder: Embedder | None) -> str:
    """The collection to build in: the store's current one if the same model filled it for this folder, else another."""
    if before and _is_own(path, before.collection, options.chroma_url):
        same_place = (before.options.embedder, before.options.chroma_url) == (options.embedder, options.chroma_url)
        # An unfinished build has no probe yet.
        if same_place and (not before.probe or embedder is None or _probe_fits(before, embedder)):
            return before.collection
    return f"chunks-{uuid.uuid4().hex[:12]}-of-{path.stat().st_ino}"


def _probe_fits(manifest: StoreManifest, embedder: Embedder) -> bool:
    """Whether the embedder gives the probe sentence the vector it had when the store was built."""
    then_D, now_D = np.array(manifest.probe), embedder.probe()
    return then_D.shape == now_D.shape and float(then_D @ now_D) >= SAME_MODEL


@contextmanager
def _collection(path: Path, name: str, url: str) -> Iterator[VectorCollection]:
    """A store's collection; if it is in the store's folder, for one process at a time."""
    with nullcontext() if url else in_turn(path / TURN):
        collection = VectorCollection(name, path / VECTORS, url)
        try:
            yield collection
        finally:
            collection.close()


def _embed_missing(path: Path, manifest: StoreManifest, text_of: Mapping[str, str], embedder: Embedder) -> int:
    """Add the vectors that the collection lacks, by the keys of their texts, and count them."""
    with _collection(path, manifest.collection, manifest.options.chroma_url) as collection:
        lacking = text_of.keys() - collection.keys()
    # Longest first: batches of similar lengths need little padding, and if memory runs out, it does so at the start.
    missing = sorted(lacking, key=lambda key: (-len(text_of[key]), key))
    with Counting("embedding", len(text_of) if missing else 0, len(text_of) - len(missing)) as bar:
        for first in range(0, len(missing), EMBED_GROUP):
            keys = missing[first : first + EMBED_GROUP]
            vectors_ND = embedder.encode_passages([text_of[key] for key in keys])
            with _collection(path, manifest.collection, manifest.options.chroma_url) as collection:
                collection.add(keys, vectors_ND)
            bar.update(len(keys))
    return len(missing)
