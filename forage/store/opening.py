"""Opening: where every stage gets its store from: a folder, by the class it was built with, or a search server.

Imports nothing heavy, so that a script may read a store's card before it loads anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from forage.arguments import imported
from forage.data.records import Document
from forage.errors import UserError
from forage.manifest import file_digest
from forage.store.card import CHUNKS_FILE, StoreCard, fingerprint_of, read_card
from forage.store.options import StoreOptions, StorePlace
from forage.store.remote import RemoteStore
from forage.text import say

if TYPE_CHECKING:
    from forage.store.document_store import DocumentStore


Store: TypeAlias = "DocumentStore | RemoteStore"
"""What the agent searches: a folder, or a server of one."""


def open_store(path: Path, retriever: str = "") -> DocumentStore:
    """Open a store's folder by the class it was built with, which the caller names: a folder has no code imported."""
    read_card_of(path, retriever)
    return retriever_of(retriever).open(path)


def read_card_of(path: Path, retriever: str) -> StoreCard:
    """The card of a store's folder; refuses one that was built with another class than is named."""
    card = read_card(path)
    if card.options.retriever != retriever:
        if not card.options.retriever:
            raise UserError(f"{path} was built without --retriever; leave --retriever {retriever} out")
        raise UserError(
            f"{path} is searched by a class, {card.options.retriever!r}; if you trust it, --retriever names it"
        )
    return card


def open_place(place: StorePlace, data: Path) -> Store:
    """Open the store that is named, else that of the data folder."""
    if not place.is_server:
        return open_store(folder_of(place, data), place.retriever)
    store = remote_store(place)
    if note := store.note(data / "store" / CHUNKS_FILE):
        say(note)
    return store


def card_at(place: StorePlace, data: Path) -> tuple[StoreCard, str]:
    """The card and the fingerprint of the store that is named, without opening it."""
    if place.is_server:
        store = remote_store(place)
        return store.card, store.fingerprint
    folder = folder_of(place, data)
    card = read_card_of(folder, place.retriever)
    return card, fingerprint_of(card, file_digest(folder / CHUNKS_FILE))


def digests_of(data: Path, fingerprint: str) -> dict[str, str]:
    """Digests of the questions of both splits and of the store: where they are equal, so are the data."""
    return {name: file_digest(data / f"{name}.jsonl") for name in ("train", "eval")} | {"store": fingerprint}


def folder_of(place: StorePlace, data: Path) -> Path:
    return Path(place.store) if place.store else data / "store"


def remote_store(place: StorePlace) -> RemoteStore:
    return RemoteStore(place.store, place.store_patience, place.store_timeout)


def build_store(path: Path, documents: Iterable[Document], options: StoreOptions) -> DocumentStore:
    """Make a store, or bring it up to date, by the class that the options name."""
    return retriever_of(options.retriever).build(path, documents, options)


def retriever_of(name: str) -> type[DocumentStore]:
    from forage.store.document_store import DocumentStore

    if not name:
        return DocumentStore
    found = imported("--retriever", name)
    if not (isinstance(found, type) and issubclass(found, DocumentStore)):
        raise UserError(f"--retriever {name} must be a subclass of document_store.DocumentStore")
    return found
