"""Vectors: a store's embeddings in ChromaDB, under the hash of the embedded text, and nearest neighbours.

ChromaDB keeps the vectors, on disk or on a server. A search is one matrix product over all of them: exact and
repeatable, which Chroma's HNSW graph is not, and on MedQuAD's chunks as fast.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import chromadb
import numpy as np
from chromadb.config import Settings
from chromadb.errors import ChromaError, NotFoundError
from numpy.typing import NDArray

from forage.errors import UserError, first_line
from forage.metrics import grouped
from forage.store.fusion import Ids, Ranking, kth_bound

PAGE = 2000  # ids in one request to Chroma
QUERY_BLOCK = 64  # queries per matrix product, so that scores stay in the processor's cache
# The last bits of 32-bit products depend on the shape of the batch. Candidates are taken with this margin and rescored
# one by one in 64 bits, so that a ranking does not depend on what else is in the batch.
MARGIN = 1e-5


def text_key(text: str) -> str:
    """The id of a text's vector: equal texts are embedded once, changed ones again."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class VectorCollection:
    """One Chroma collection, in a folder or, if a URL is given, on a server."""

    def __init__(self, name: str, folder: Path, url: str = "") -> None:
        self.where = url or str(folder)
        with self._readable():
            self._client: Any = _server(url) if url else chromadb.PersistentClient(str(folder), settings=_settings())
            # No embedding function: Chroma would load its default one.
            self._collection: Any = self._client.get_or_create_collection(
                name, embedding_function=None, configuration={"hnsw": {"space": "cosine"}}
            )

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            # What Chroma raises for a damaged file is no Exception, and no module of it has the name.
            if not isinstance(error, ChromaError | ValueError | OSError) and type(error).__name__ != "PanicException":
                raise
            raise UserError(
                f"can't read the vectors in Chroma at {self.where} ({first_line(error)}); check the folder or "
                "--chroma-url"
            ) from error

    def keys(self) -> set[str]:
        return set(self._collection.get(include=[])["ids"])

    def add(self, keys: Sequence[str], vectors_ND: NDArray[np.float32]) -> None:
        for part in _pages(len(keys)):
            try:
                self._collection.upsert(ids=list(keys[part]), embeddings=vectors_ND[part])
            except ChromaError as error:
                raise UserError(  # of a full disk, Chroma may say no more than that something internal failed
                    f"Chroma at {self.where} could not keep the vectors ({first_line(error)}); see that its disk has "
                    "room, then re-run the same command to resume"
                ) from error

    def remove(self, keys: Sequence[str]) -> None:
        for part in _pages(len(keys)):
            self._collection.delete(ids=list(keys[part]))

    def close(self) -> None:
        """Let go of what Chroma remembers of the folder: it takes no notice of what other processes change there."""
        self._client.close()

    def drop(self) -> None:
        """Delete the collection if it exists."""
        with suppress(NotFoundError):
            self._client.delete_collection(self._collection.name)

    def matrix(self, keys: Sequence[str], dimension: int) -> NDArray[np.float32]:
        """(keys, dimension) vectors in the order of the keys."""
        vectors_ND = np.zeros((len(keys), dimension), np.float32)
        rows = grouped((key, row) for row, key in enumerate(keys))
        wanted = list(rows)
        found = 0
        for part in _pages(len(wanted)):
            with self._readable():
                page = self._collection.get(ids=wanted[part], include=["embeddings"])
            found += len(page["ids"])
            if found and np.shape(page["embeddings"])[1] != dimension:
                raise UserError(f"Chroma at {self.where} holds vectors of another length; re-run the build")
            for key, vector in zip(page["ids"], page["embeddings"], strict=True):
                vectors_ND[rows[key]] = vector
        if found < len(wanted):
            raise UserError(
                f"Chroma at {self.where} lacks {len(wanted) - found} of {len(wanted)} vectors; open the store again if "
                "it was edited meanwhile, else re-run the same build"
            )
        return vectors_ND


def exact_nearest(
    matrix_ND: NDArray[np.float32], queries_QD: NDArray[np.float32], k: int, only: Ids | None = None
) -> Iterator[Ranking]:
    """For each query the k rows with the highest inner product, ties by row; the same in any batch.

    `only` among some rows, if they are given, in order.
    """
    if only is not None:
        yield from (Ranking(only[found.ids], found.scores) for found in exact_nearest(matrix_ND[only], queries_QD, k))
        return
    for first in range(0, len(queries_QD), QUERY_BLOCK):
        block_BD = queries_QD[first : first + QUERY_BLOCK]
        for query_D, scores_N in zip(block_BD, block_BD @ matrix_ND.T, strict=True):
            bound = kth_bound(scores_N, k) - MARGIN if k < len(scores_N) else -np.inf
            ids = np.flatnonzero(scores_N >= bound)
            exact = (matrix_ND[ids].astype(np.float64) * query_D).sum(axis=1)
            order = np.lexsort((ids, -exact))[:k]
            yield Ranking(ids[order], exact[order])


def _pages(count: int) -> Iterator[slice]:
    for first in range(0, count, PAGE):
        yield slice(first, min(first + PAGE, count))


def _settings() -> Settings:
    """New ones each time, as Chroma's client writes into them."""
    return Settings(anonymized_telemetry=False)


def _server(url: str) -> Any:
    parts = urlparse(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError(f"--chroma-url {url!r} must be http://host:port")
    port = parts.port or (443 if parts.scheme == "https" else 8000)
    return chromadb.HttpClient(parts.hostname, port, ssl=parts.scheme == "https", settings=_settings())
