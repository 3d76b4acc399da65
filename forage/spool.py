"""Spool: a list that lies in a file, for what would fill the memory; and grouping by digests instead of texts.

A data set of ten million rows has gigabytes of text, of which each step needs a row at a time. So rows lie in a file
without a name, which is gone when the process is, however it ends; in memory is where each begins, 16 bytes.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np

from forage.disk import naming

Row = TypeVar("Row")


class Spool(Sequence[Row]):
    """A list of any objects, in a file in the folder `near`, or in the first of its parents that exists."""

    def __init__(self, near: Path) -> None:
        self.folder = next(path for path in (near.absolute(), *near.absolute().parents) if path.is_dir())
        with naming(self.folder):
            self.file = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115 it is read for as long as the spool is
        self.starts, self.sizes, self.end = array("q"), array("q"), 0

    def append(self, row: Row) -> None:
        data = pickle.dumps(row)
        with naming(self.folder):
            self.file.write(data)
        self.starts.append(self.end)
        self.sizes.append(len(data))
        self.end += len(data)

    def part(self, numbers: Iterable[int]) -> Spool[Row]:
        """The rows of these numbers, without a copy; nothing can be appended to them."""
        part: Spool[Row] = object.__new__(Spool)
        part.folder, part.file, part.end = self.folder, self.file, -1
        part.starts, part.sizes = array("q"), array("q")
        for number in numbers:
            part.starts.append(self.starts[number])
            part.sizes.append(self.sizes[number])
        return part

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, number: int) -> Row: ...
    @overload
    def __getitem__(self, number: slice) -> list[Row]: ...
    def __getitem__(self, number: int | slice) -> Row | list[Row]:
        if isinstance(number, slice):
            return [self[each] for each in range(*number.indices(len(self)))]
        start, size = self.starts[number], self.sizes[number]
        with naming(self.folder):
            self.file.flush()
            data = os.pread(self.file.fileno(), size, start)
        row: Row = pickle.loads(data)  # noqa: S301 this process wrote it, into a file without a name
        return row

    def __iter__(self) -> Iterator[Row]:
        return map(self.__getitem__, range(len(self)))


def new_rows(near: Path | None) -> list[Any] | Spool[Any]:
    """A list, for few rows; with a folder, a spool near it."""
    return [] if near is None else Spool(near)


def part(rows: Sequence[Row], numbers: Iterable[int]) -> Sequence[Row]:
    """The rows of these numbers: of a spool a spool, else a list."""
    return rows.part(numbers) if isinstance(rows, Spool) else [rows[number] for number in numbers]


def grouped(keys: Iterable[str]) -> Iterator[list[int]]:
    """The places of each key, keys in the order of their first. Example: a, b, a gives [0, 2], [1].

    While keys are read, memory holds a digest of each distinct one; afterwards two numbers for each place.
    """
    number_of: dict[bytes, int] = {}
    groups = np.array(array("q", (number_of.setdefault(digest(key), len(number_of)) for key in keys)))
    number_of.clear()
    order = np.argsort(groups, kind="stable")
    for _, places in groupby(order, key=groups.__getitem__):
        yield [int(place) for place in places]


def digest(text: str) -> bytes:
    """16 bytes that stand for a text; no two of 10 billion texts are expected to share them."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
