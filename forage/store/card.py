"""The card of a store: its options and state in store.json, and the lock held while it is built."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from forage.errors import UserError
from forage.files import locked, replacing
from forage.store.options import StoreOptions

FORMAT = 1
NO_EMBEDDER = "none"
PARTS = ("chunks.jsonl", "bm25.npz", "chroma")  # what a store holds beside store.json


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
    """The embedding of PROBE: detects another model under the same name."""


def write_card(path: Path, card: StoreCard) -> None:
    with replacing(path / "store.json") as file:
        json.dump(asdict(card), file, indent=1)


def read_card(path: Path) -> StoreCard:
    """The card of the store in folder `path`; refuses a folder without a store, and a format newer than this code."""
    card = path / "store.json"
    if not card.exists():
        if (path / "store" / "store.json").exists():
            raise UserError(f"{path} holds no document store (no store.json), but {path / 'store'} does; give that")
        raise UserError(f"{path} holds no document store (no store.json); make one with data_prep.py")
    try:
        values = json.loads(card.read_text(encoding="utf-8"))
        number = int(values["format"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{card} is damaged ({error}); delete the folder and build the store again") from error
    if number > FORMAT:
        raise UserError(
            f"{path} has store format {number}, this code reads up to {FORMAT}; update the code or rebuild the store"
        )
    known = {f.name for f in fields(StoreOptions)}
    values["options"] = StoreOptions(**{name: value for name, value in values["options"].items() if name in known})
    return StoreCard(**{f.name: values[f.name] for f in fields(StoreCard) if f.name in values})


def check_place(path: Path) -> None:
    """Refuse to build in a folder where something else has the names of a store's parts."""
    there = [] if (path / "store.json").exists() else [name for name in PARTS if (path / name).exists()]
    if there:
        raise UserError(f"{path} holds {there[0]}, but no store.json, so it is no store; choose another folder for it")


def build_lock(path: Path) -> AbstractContextManager[None]:
    """Held while a store is built, so that a second builder gets an error instead of mixing its files in."""
    return locked(path / ".lock", f"{path}: another process is building this store; wait until it ends or stop it")
