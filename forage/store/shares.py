"""Shares: which part of a store's chunks this process embeds, where several build one store."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from forage.data.records import Document
from forage.disk import make_folder
from forage.errors import UserError
from forage.progress import counting
from forage.store.card import NO_EMBEDDER, check_place
from forage.store.options import StoreOptions

AUTO = "auto"


@dataclass(frozen=True)
class Share:
    """The share `number` of `count`, from 1."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the groups of chunks are, of this share and of all."""

    embedded: int
    """By this process."""
    mine: int
    """Groups of this share; all of them are there now."""
    there: int
    """Groups that any process has embedded by now."""
    total: int


def share_of(text: str, environment: Mapping[str, str] = os.environ) -> Share:
    """Example: 2/8 is the second of eight; auto takes what torchrun, or a Slurm array, says of this process."""
    if text == AUTO:
        return started_share(environment)
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise UserError(f"--share {text}: give one as 2/8, from 1/8 to 8/8, or auto under torchrun or in a Slurm array")
    return Share(int(found[1]), int(found[2]))


def started_share(environment: Mapping[str, str]) -> Share:
    """Example: RANK 1 of WORLD_SIZE 8 is the share 2/8, and so is task 11 of the Slurm array 10-17."""
    try:
        if "WORLD_SIZE" in environment:
            return Share(int(environment["RANK"]) + 1, int(environment["WORLD_SIZE"]))
        first = int(environment.get("SLURM_ARRAY_TASK_MIN", "0"))
        number = int(environment["SLURM_ARRAY_TASK_ID"]) - first + 1
        count = int(environment["SLURM_ARRAY_TASK_COUNT"])
    except (KeyError, ValueError) as error:
        raise UserError(
            "--share auto needs RANK and WORLD_SIZE, which torchrun sets, or SLURM_ARRAY_TASK_ID and "
            f"SLURM_ARRAY_TASK_COUNT of a Slurm array ({error}); give the share as 2/8"
        ) from error
    if not 1 <= number <= count:
        raise UserError(f"--share auto: task {first + number - 1} is not one of {count} from {first}; number them 0-7")
    return Share(number, count)


def embed_share(path: Path, documents: Iterable[Document], options: StoreOptions, share: Share) -> Progress:
    """Embed a share of the chunks that the store at `path` lacks, for the build that takes it in."""
    from forage.store.document_store import chunks_of, groups_to_embed
    from forage.store.embedder import Embedder
    from forage.store.parts import Parts

    options.check()
    if options.embedder == NO_EMBEDDER:
        raise UserError(f"--share {share}: with --embedder none there is nothing to embed; leave it out")
    check_place(path)
    embedder = Embedder(options.embedder)
    embedder.device = own_device(embedder.device)
    options = replace(options, embedder=embedder.name)
    parts = Parts(path, options, embedder.probe())
    parts.check()
    groups, text_of = groups_to_embed(path, chunks_of(documents, options, embedder), options, embedder)
    make_folder(path)
    parts.begin()
    mine = groups[share.number - 1 :: share.count]
    missing = [keys for keys in mine if not parts.has(keys)]
    chunks = sum(map(len, mine))
    with counting(f"embedding share {share}", chunks, "chunk", chunks - sum(map(len, missing))) as bar:
        for keys in missing:
            parts.write(keys, embedder.encode_passages([text_of[key] for key in keys]))
            bar.update(len(keys))
    return Progress(len(missing), len(mine), sum(map(parts.has, groups)), len(groups))


def own_device(device: str) -> str:
    """If torchrun started several processes on a machine, each takes the GPU with its own number."""
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if device == "cuda" else device
