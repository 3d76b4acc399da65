"""A disk that loses power: records what code does to a folder, and makes every state that a power cut may leave.

The model is what POSIX promises, which is less than most file systems do. Until a file is synced, its content may be
what it was at the last sync, or empty, half or all of the new. Until a folder is synced, each change of its names may
have reached the disk or not, in any order; one rename or exchange happens whole or not at all.

    recording = Recording(folder)
    with recording:
        save(1)
        recording.acknowledge(1)      # from here on the user may count on it
    problems = recording.problems(check)       # check(folder, acknowledged) raises AssertionError, or UserError
"""

import os
import random
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from safetensors import SafetensorError

from forage.errors import UserError

WATCHED = ("rename", "replace", "unlink", "remove", "rmdir", "mkdir", "link", "symlink")
ROOT = 0  # the number of the recorded folder itself


@dataclass(frozen=True)
class Cut:
    """All that matters at one moment. Files and folders go by numbers, as names come and go."""

    label: str
    acknowledged: tuple
    now: dict
    """Each file's bytes, each link's target as text, each folder's {name: number}."""
    synced: dict
    """The same, as of the last sync."""
    pending: tuple
    """(folder, {name: number or None}) for each change of names that is not synced."""


class Recording:
    """Watches a folder; with `fsync` off, syncs are ignored, as by code that forgot them."""

    def __init__(self, folder, *, fsync=True):
        self.folder, self.fsync = Path(folder), fsync
        self.numbers, self.count = {}, 0  # by device and inode, of what is there now
        self.now, self.synced, self.pending, self.acknowledged, self.cuts = {}, {}, [], [], []
        self._look("start")
        self.synced, self.pending = dict(self.now), []  # what was there before is on the disk
        self.cuts.clear()

    def __enter__(self):
        self._patches = [mock.patch.object(os, name, self._watched(name)) for name in WATCHED]
        self._patches.append(mock.patch.object(os, "fsync", self._sync))
        for patch in self._patches:
            patch.start()
        return self

    def __exit__(self, *_):
        for patch in self._patches:
            patch.stop()
        self._look("end")

    def acknowledge(self, what):
        self._look(f"before {what} was acknowledged")
        self.acknowledged.append(what)
        self._look(f"{what} was acknowledged")

    def problems(self, check, workplace, draws=6):
        """Yields (moment, what was wrong) for each state in which `check` finds something wrong, each tried once."""
        seen, draw = set(), random.Random(0)
        for cut in self.cuts:
            for state in states(cut, draw, draws):
                key = hash((cut.acknowledged, tuple(sorted(state.items()))))
                if key in seen:
                    continue
                seen.add(key)
                shutil.rmtree(workplace, ignore_errors=True)
                lay_out(state, workplace)
                try:
                    check(workplace, cut.acknowledged)
                except (AssertionError, UserError, SafetensorError, OSError, ValueError, KeyError) as error:
                    yield cut.label, f"{type(error).__name__}: {error}"

    def _watched(self, name):
        real = getattr(os, name)

        def call(*args, **options):
            self._look(f"before {name} {args[0]}")
            result = real(*args, **options)
            self._look(f"{name} {args[0]}")
            return result

        return call

    def _sync(self, file):
        self._look("before a sync")
        status = os.fstat(file if isinstance(file, int) else file.fileno())
        number = self.numbers.get((status.st_dev, status.st_ino))
        if number is not None and self.fsync:
            self.synced[number] = self.now[number]
            self.pending = [(folder, names) for folder, names in self.pending if folder != number]
        self._look("a sync")

    def _look(self, label):
        """Compare the folder with what it was, and note what a power cut now could do."""
        before, self.now, there = self.now, {}, {}
        self._read(self.folder, there)
        self.numbers = there
        for number, what in self.now.items():
            if isinstance(what, dict):
                changes = changed_together(before.get(number, {}), what)
                self.pending.extend((number, names) for names in changes)
                self.synced.setdefault(number, {})
            else:
                self.synced.setdefault(number, what if isinstance(what, str) else b"")
        self.now = {**before, **self.now}  # what has no name any more may still be found by a name that was not synced
        self.cuts.append(Cut(label, tuple(self.acknowledged), dict(self.now), dict(self.synced), tuple(self.pending)))

    def _read(self, path, there):
        """The number of what is at `path`, after reading it into `now`."""
        status = path.lstat()
        key = (status.st_dev, status.st_ino)
        number = there[key] = there.get(key, self.numbers.get(key, self.count))
        self.count = max(self.count, number + 1)
        if stat.S_ISDIR(status.st_mode):
            self.now[number] = {entry.name: self._read(path / entry.name, there) for entry in os.scandir(path)}
        else:
            self.now[number] = os.readlink(path) if stat.S_ISLNK(status.st_mode) else path.read_bytes()
        return number


def changed_together(old, new):
    """The changes of a folder's names; those that one file or folder moved between are one change.

    Example: {a: 1} and {b: 1, c: 2} give [{a: None, b: 1}, {c: 2}].
    """
    changes = []
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            numbers = {old.get(name), new.get(name)} - {None}
            joined = [change for change in changes if change[0] & numbers]
            changes = [change for change in changes if not change[0] & numbers]
            names = {name: new.get(name)}
            for other_numbers, other in joined:
                numbers, names = numbers | other_numbers, names | other
            changes.append((numbers, names))
    return [names for _, names in changes]


def states(cut, draw, draws):
    """What may be on the disk: {path: bytes, text of a link, or None for a folder}."""
    every = range(len(cut.pending))
    chosen = [((), "old"), *((every, how) for how in ("new", "old", "empty", "half"))]
    chosen += [((one,), "old") for one in every] + [([n for n in every if n != one], "new") for one in every]
    chosen += [([n for n in every if draw.random() < 0.5], "any") for _ in range(draws)]
    for survived, content in chosen:
        names = {number: dict(what) for number, what in cut.synced.items() if isinstance(what, dict)}
        for n in survived:
            folder, changes = cut.pending[n]
            names[folder].update(changes)
        yield dict(paths(cut, names, ROOT, (), content, draw))


def paths(cut, names, number, path, content, draw):
    if number in names:
        yield "/".join(path), None
        for name, inside in sorted(names[number].items()):
            if inside is not None:
                yield from paths(cut, names, inside, (*path, name), content, draw)
    else:
        how = draw.choice(("old", "new", "empty", "half")) if content == "any" else content
        yield "/".join(path), content_of(cut.synced[number], cut.now[number], how)


def content_of(old, new, how):
    """What a file may hold. Example: "a", then "abc" written: half is "ab", as an append keeps what was synced."""
    if isinstance(new, str) or how == "new":
        return new
    kept = len(old) if new.startswith(old) else 0
    return {"old": old, "empty": new[:kept], "half": new[: kept + (len(new) - kept) // 2]}[how]


def lay_out(state, folder):
    folder.mkdir(parents=True)
    for path, what in state.items():
        if what is None:
            (folder / path).mkdir(exist_ok=True)
        elif isinstance(what, str):
            (folder / path).symlink_to(what)
        else:
            (folder / path).write_bytes(what)
