"""Scripts that die at a chosen moment, forked from a process that has loaded the libraries, which saves seconds.

A moment is a number: the n-th change that the script makes to a file or folder below its arena (a file opened for
writing, bytes written to it, a rename, a removal, a new folder). So a test kills at the same place on any machine. A
write that is killed leaves half of its bytes behind.
"""

import builtins
import io
import mmap
import multiprocessing
import os
import runpy
import signal
import struct
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests import ROOT
from tests.ports import free_port

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["tests.kills_preload"])
CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Board:
    """The number of changes so far and the name of the last one, in a file that a killed process leaves readable."""

    def __init__(self, path):
        if not path.exists():
            path.write_bytes(bytes(512))
        with path.open("r+b") as file:
            self.memory = mmap.mmap(file.fileno(), 512)

    def note(self, count, name):
        text = name.encode()[-500:]
        self.memory[:] = struct.pack("<QH", count, len(text)) + text.ljust(502, b"\0")

    def read(self):
        count, length = struct.unpack("<QH", self.memory[:10])
        return count, self.memory[10 : 10 + length].decode(errors="replace")


class Changes:
    """Counts the changes below a folder, and sends this process a signal at the chosen ones."""

    def __init__(self, arena, board, signals):
        self.arena, self.board, self.signals, self.count = f"{arena}/", board, signals, 0

    def below(self, path):
        return isinstance(path, str | bytes | os.PathLike) and os.path.abspath(os.fsdecode(path)).startswith(self.arena)

    def happened(self, name, path, before_death=None):
        """Count a change that is about to be made; a process that dies here makes half of it first, if it can."""
        self.count += 1
        self.board.note(self.count, f"{name} {os.fsdecode(path).removeprefix(self.arena)}")
        sent = self.signals.get(self.count)
        if sent is None:
            return
        if sent == signal.SIGKILL and before_death:
            before_death()
        group = sent == "group"
        (os.killpg if group else os.kill)(0 if group else os.getpid(), signal.SIGKILL if group else sent)

    def audit(self, event, args):
        if event == "open":
            path, _, flags = args
            if isinstance(flags, int) and flags & WRITING and self.below(path):
                self.happened("open", path)
        elif event in CHANGES:
            # Removals of a tree name a file beside an open folder, whose path is not told.
            inside_tree = event in ("os.remove", "os.rmdir") and args[-1] != -1
            if inside_tree or self.below(args[0]):
                self.happened(event, args[0])

    def install(self):
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job is started to ignore it
        sys.addaudithook(self.audit)
        self._count_writes()
        self._count_tensors()

    def _count_writes(self):
        """Count each write to a file as Python makes it: a buffer's worth of bytes."""
        changes, real_open = self, io.open

        class Raw(io.FileIO):
            def __init__(self, path, *args):
                super().__init__(path, *args)
                self.path = path  # `tempfile` names a nameless file by its descriptor

            def write(self, data):
                changes.happened("write", self.path, lambda: super(Raw, self).write(bytes(data)[: len(data) // 2]))
                return super().write(data)

        def counted(file, mode="r", buffering=-1, encoding=None, errors=None, newline=None, closefd=True, opener=None):
            if not set(mode) & set("wax+") or not changes.below(file):
                return real_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
            raw = Raw(file, mode.replace("b", "").replace("t", ""), closefd, opener)
            if buffering == 0:
                return raw
            buffered = (io.BufferedRandom if "+" in mode else io.BufferedWriter)(raw)
            return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline, buffering == 1)

        builtins.open = io.open = sys.modules["_io"].open = counted

    def _count_tensors(self):
        """Count files of tensors, which safetensors writes itself."""
        import safetensors.torch as library

        changes, real = self, library.serialize_file

        def counted(tensors, path, *args, **more):
            def half():
                real(tensors, path, *args, **more)
                os.truncate(path, os.path.getsize(path) // 2)

            if changes.below(path):
                changes.happened("tensors", path, half)
            return real(tensors, path, *args, **more)

        library.serialize_file = counted


def perform(command, arena, log, board, signals, environment, group):
    """Run a script in this process, which was forked for it: command is [script.py or -m, module, arguments]."""
    if group is not None:
        os.setpgid(0, group)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout, sys.stderr = (io.TextIOWrapper(os.fdopen(number, "wb", 0), write_through=True) for number in (1, 2))
    os.environ.update(environment)
    os.chdir(arena)
    os.fsync = lambda file: None  # as in tests/conftest.py
    tempfile.tempdir = f"{arena}/tmp"
    os.makedirs(tempfile.tempdir, exist_ok=True)
    draw_nothing()
    Changes(arena, Board(Path(board)), signals).install()
    module = command[0] == "-m"
    sys.argv = [str(part) for part in command[module:]]
    if module:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv[0] = str(ROOT / sys.argv[0])
        runpy.run_path(sys.argv[0], run_name="__main__")


def draw_nothing():
    """Plots become files of a few bytes: drawing takes longer than all else that a tiny model does."""
    from forage.extras.rewriter import training
    from forage.grpo import reporting

    reporting.COMMAND = ("true",)
    training.draw_metrics = lambda rows, path: path.write_bytes(b"drawn")


@dataclass
class Started:
    """A script in a process of its own."""

    process: object
    board: Board
    log: Path
    began: float = field(default_factory=time.perf_counter)

    @property
    def pid(self):
        return self.process.pid

    @property
    def changes(self):
        return self.board.read()[0]

    @property
    def last(self):
        """The change at which it died."""
        return self.board.read()[1]

    def wait(self, seconds=250):
        """Its exit status, negative for a signal."""
        self.process.join(seconds)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
            raise TimeoutError(f"still running after {seconds} s:\n{self.said[-3000:]}")
        return self.process.exitcode

    @property
    def said(self):
        return self.log.read_text() if self.log.exists() else ""


def start(command, arena, signals=None, environment=None, group=None):
    """Start a script; `signals` maps numbers of changes to the signals it gets there."""
    folder = Path(tempfile.mkdtemp(dir=arena.parent))
    board, written = Board(folder / "board"), folder / "log"
    where = (str(arena), str(written), str(folder / "board"))
    process = FORKS.Process(
        target=perform, args=(list(map(str, command)), *where, signals or {}, environment or {}, group)
    )
    process.start()
    return Started(process, board, written)


def start_ranks(command, arena, signals=None, *, second=None, environment=None):
    """Two trainers as torchrun starts them, in one process group; the first gets the signals, or the `second` those."""
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    shared |= environment or {}
    lead = start(command, arena, signals, shared | {"RANK": "0", "LOCAL_RANK": "0"}, group=0)
    while os.getpgid(lead.pid) != lead.pid:
        time.sleep(0.01)
    return lead, start(command, arena, second, shared | {"RANK": "1", "LOCAL_RANK": "1"}, group=lead.pid)
