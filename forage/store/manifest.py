"""A store's manifest: its options and state in store.json, its fingerprint, and how an edit changes its files."""

from __future__ import annotations

import fcntl
import os
import weakref
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from forage.errors import UserError
from forage.files import OURS, in_turn, sync
from forage.manifest import digest, read_manifest_as, write_manifest
from forage.store.options import StoreOptions

# Edits: how a store's files change at one stroke, and what an open handle keeps of those that it was opened with.

NEXT = f".next{OURS}"  # the folder of an edit's files: once it is there, the edit is made
TURN = ".turn"  # held for a moment, by whoever moves files or asks Chroma
READERS = ".readers"  # shared by handles that may still ask for vectors


def finish_edit(path: Path) -> None:
    """Move the files of an edit to their places; whoever comes by does, in case its process was killed."""
    if (path / NEXT).exists():
        with in_turn(path / TURN):
            for part in (path / NEXT).glob("*"):
                part.replace(path / part.name)
            sync(path)
            with suppress(FileNotFoundError):  # another process was first
                (path / NEXT).rmdir()


class Kept:
    """A file held open, so that it stays readable when another takes its name; closed with its last owner."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)
        self.path = Path(f"/dev/fd/{self._file}")

    def share(self) -> None:
        """Let others know that it is in use."""
        with suppress(OSError):  # a file system without locks
            fcntl.flock(self._file, fcntl.LOCK_SH)

    def is_mine(self) -> bool:
        """Whether nobody else shares it; if so, nobody can until `share` is called again."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.share()  # what asks for the whole lock and fails has none
            return False
        return True


# The manifest

NO_EMBEDDER = "none"
CHUNKS_FILE, ORIGINALS_FILE, BM25_FILE, VECTORS = "chunks.jsonl", "originals.jsonl", "bm25.npz", "chroma"
PARTS = (CHUNKS_FILE, ORIGINALS_FILE, BM25_FILE, VECTORS)  # what a store holds beside store.json
SAME_MODEL = 0.999  # the least product of the probe's vectors by one model on two machines


@dataclass(frozen=True)
class StoreManifest:
    """store.json: what a store is made of."""

    complete: bool
    collection: str
    options: StoreOptions
    dimension: int = 0
    documents: int = 0
    chunks: int = 0
    probe: list[float] = field(default_factory=list)
    """The embedding of PROBE: detects another model under the same name."""
    files: dict[str, str] = field(default_factory=dict)
    """Digests of the files, once the store is complete."""
    metadata: str = ""
    """Digest of the documents' metadata; empty if none has any."""
    next_number: int = 0
    """The id of the next document without one: after all that the store has had."""
    abandoned: list[tuple[str, str]] = field(default_factory=list)
    """Collections of other embedders, and where they are, that open handles may still ask for."""


def write_store_manifest(path: Path, manifest: StoreManifest) -> None:
    write_manifest(path / "store.json", asdict(manifest))


def read_store_manifest(path: Path) -> StoreManifest:
    """The manifest of the store in folder `path`; refuses a folder without a store."""
    manifest, way_out = path / "store.json", "delete the folder and build the store again"
    finish_edit(path)
    if not manifest.exists():
        inner = (path / "store" / "store.json").exists()
        instead = f", but {path / 'store'} does; give that" if inner else "; make one with data_prep.py"
        raise UserError(f"{path} holds no document store (no store.json){instead}")
    return read_manifest_as(StoreManifest, manifest, way_out)


def fingerprint_of(manifest: StoreManifest, chunks: str) -> str:
    """Digest of what is searched and how it was built; `chunks` is the digest of chunks.jsonl."""
    built = asdict(manifest.options)
    del built["chroma_url"]  # where vectors are kept may differ between machines
    return digest(f"{chunks} {built}{manifest.metadata}".encode())


def check_address(path: Path) -> None:
    """Refuse to build in a folder where something else has the names of a store's parts."""
    there = [] if (path / "store.json").exists() else [name for name in PARTS if (path / name).exists()]
    if there:
        raise UserError(f"{path} holds {there[0]}, but no store.json, so it is no store; choose another folder for it")
