"""Opening: where every stage gets its store from: a folder, by the class it was built with, or a search server.

Imports nothing heavy, so that a script may read a store's manifest before it loads anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from forage.arguments import imported_class
from forage.data.records import Document
from forage.errors import UserError
from forage.manifest import file_digest
from forage.store.manifest import CHUNKS_FILE, StoreManifest, fingerprint_of, read_store_manifest
from forage.store.options import StoreAddress, StoreOptions
from forage.store.remote import RemoteStore
from forage.text import say

if TYPE_CHECKING:
    from forage.store.document_store import DocumentStore


Store: TypeAlias = "DocumentStore | RemoteStore"
"""What the agent searches: a folder, or a server of one."""


def open_store(path: Path, retriever: str = "") -> DocumentStore:
    """Open a store's folder by the class it was built with, which the caller names: a folder has no code imported."""
    read_manifest_of(path, retriever)
    return retriever_of(retriever).open(path)


def read_manifest_of(path: Path, retriever: str) -> StoreManifest:
    """The manifest of a store's folder; refuses one that was built with another class than is named."""
    manifest = read_store_manifest(path)
    if manifest.options.retriever != retriever:
        if not manifest.options.retriever:
            raise UserError(f"{path} was built without --retriever; leave --retriever {retriever} out")
        raise UserError(
            f"{path} is searched by a class, {manifest.options.retriever!r}; if you trust it, --retriever names it"
        )
    return manifest


def open_address(address: StoreAddress, data: Path) -> Store:
    """Open the store that is named, else that of the data folder."""
    if not address.is_server:
        return open_store(folder_of(address, data), address.retriever)
    store = RemoteStore(address.store, address.store_patience)
    if note := store.note(data / "store" / CHUNKS_FILE):
        say(note)
    return store


def manifest_at(address: StoreAddress, data: Path) -> tuple[StoreManifest, str]:
    """The manifest and the fingerprint of the store that is named, without opening it."""
    if address.is_server:
        store = RemoteStore(address.store, address.store_patience)
        return store.manifest, store.fingerprint
    folder = folder_of(address, data)
    manifest = read_manifest_of(folder, address.retriever)
    return manifest, fingerprint_of(manifest, file_digest(folder / CHUNKS_FILE))


def digests_of(data: Path, fingerprint: str) -> dict[str, str]:
    """Digests of the questions of both splits and of the store: where they are equal, so are the data."""
    return {name: file_digest(data / f"{name}.jsonl") for name in ("train", "eval")} | {"store": fingerprint}


def folder_of(address: StoreAddress, data: Path) -> Path:
    return Path(address.store) if address.store else data / "store"


def build_store(path: Path, documents: Iterable[Document], options: StoreOptions) -> DocumentStore:
    """Make a store, or bring it up to date, by the class that the options name."""
    return retriever_of(options.retriever).build(path, documents, options)


def retriever_of(name: str) -> type[DocumentStore]:
    from forage.store.document_store import DocumentStore

    if not name:
        return DocumentStore
    return imported_class("--retriever", name, DocumentStore, "document_store.DocumentStore")
