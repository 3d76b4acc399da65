"""Episode: one conversation of the policy with its tool, as the tokens that were actually sampled; and its JSONL."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from forage.errors import UserError
from forage.files import append, replacing
from forage.text import encodable, typed

Stop = Literal["answer", "search", "no_action", "turns", "tokens", "turn_tokens", "engine", "agent"]
STOPS: dict[str, str] = {
    "answer": "the policy answered",
    "search": "the policy searched, and no more was asked of it (--max-turns)",
    "no_action": "two turns in a row neither searched nor answered",
    "turns": "the last turn allowed (--max-turns) did not answer",
    "tokens": "the episode was as long as it may be (--max-tokens)",
    "turn_tokens": "a turn was as long as it may be (--max-turn-tokens)",
    "engine": "the server failed",
    "agent": "the agent of get_agent failed",
}
AS_ASKED = ("answer", "search")


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of the policy: its tokens are ids[start:end], `faults` the protocol rules it broke."""

    start: int
    end: int
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Search:
    """A search: its turn, its query, and the ids of the chunks it found, best first."""

    turn: int
    query: str
    hits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Use:
    """A call of another tool than search: its turn, its arguments, and what the policy read as its result."""

    turn: int
    tool: str
    arguments: Mapping[str, Any] = field(hash=False)
    result: str = ""


@dataclass(frozen=True, slots=True)
class Segment:
    """What an episode sampled in another conversation than its last one; an agent of get_agent can hold several."""

    ids: tuple[int, ...]
    mask: tuple[int, ...]
    logprobs: tuple[float, ...]
    turns: tuple[Turn, ...] = ()


@dataclass(frozen=True, slots=True)
class Episode:
    """One conversation. Sampled tokens are never decoded and tokenised again.

    Example, with words for tokens. The policy sampled those with mask 1; two of them end its turns:

        ids       system Q? go   call end  user found go   answer end
        mask      0      0  0    1    1    0    0     0    1      1
        logprobs  0      0  0    -.2  -.1  0    0     0    -.7    0
        turns     (3, 5), (8, 10)
    """

    id: str
    """Unique within a step: the question's id and the sample's number."""
    question_id: str
    ids: tuple[int, ...]
    mask: tuple[int, ...]
    """1 = sampled by the policy; 0 = prompt or tool result."""
    logprobs: tuple[float, ...]
    """The sampler's log-probability of each sampled token, 0 elsewhere."""
    turns: tuple[Turn, ...]
    searches: tuple[Search, ...]
    answer: str
    stop: Stop
    adapter: str
    """Name of the adapter that sampled the episode."""
    cause: str = ""
    """With stop engine: why the engine failed."""
    transcript: str = ""
    """The whole episode as text, for people to read."""
    rewards: dict[str, float] = field(default_factory=dict)
    reward: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    """Seconds spent: generate, search, total."""
    credits: tuple[float, ...] = ()
    """What each token added to the reward, where that is known (rewards.py); empty where it is not."""
    uses: tuple[Use, ...] = ()
    """Calls of other tools than search."""
    earlier: tuple[Segment, ...] = ()
    """Learnt from with this episode's advantage."""
    own_reward: float | None = None
    """What the agent of get_agent gave itself."""
    worker: str = field(default="", compare=False)
    """Who played it, where workers play."""
    server: str = field(default="", compare=False)
    """Address of the server that sampled its last turn; empty where no server samples."""

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.mask) == len(self.logprobs) == len(self.credits or self.ids):
            lengths = f"{len(self.ids)} ids, {len(self.mask)} mask, {len(self.logprobs)} logprobs"
            lengths += f", {len(self.credits)} credits" if self.credits else ""
            raise ValueError(f"episode {self.id}: {lengths}")
        if any(given and not bit for given, bit in zip(self.logprobs, self.mask, strict=True)):
            raise ValueError(f"episode {self.id}: a log-probability at a token that its mask calls not sampled")

    @property
    def all_turns(self) -> tuple[Turn, ...]:
        return tuple(turn for segment in self.segments for turn in segment.turns)

    @property
    def faults(self) -> tuple[str, ...]:
        return tuple(fault for turn in self.all_turns for fault in turn.faults)

    @property
    def well_formed(self) -> bool:
        """It searched, ended as it should, and broke no rule."""
        return self.stop in ("answer", "search") and bool(self.searches) and not self.faults

    @property
    def hits(self) -> tuple[str, ...]:
        """Chunks that its searches found, in the order the policy saw them, without repeats."""
        return tuple(dict.fromkeys(hit for search in self.searches for hit in search.hits))

    @property
    def read_searches(self) -> tuple[Search, ...]:
        """Those whose results the policy could read: the last turn's may have been too long for the episode."""
        unread = len(self.turns) - 1 if self.stop == "tokens" else None
        return tuple(search for search in self.searches if search.hits or search.turn != unread)

    @property
    def length(self) -> int:
        """Number of tokens until the policy's last turn ends: what comes after it, nobody but a reward reads."""
        return self.turns[-1].end if self.turns else len(self.ids)

    @property
    def sampled(self) -> int:
        """Number of tokens that the policy sampled."""
        return sum(sum(segment.mask) for segment in self.segments)

    @property
    def segments(self) -> tuple[Segment | Episode, ...]:
        """All that is learnt from."""
        return (*self.earlier, self)


def to_json(episode: Episode) -> str:
    """One line."""
    row = {item.name: getattr(episode, item.name) for item in fields(Episode)}
    for name in ("turns", "searches", "uses", "earlier"):
        row[name] = [asdict(part) for part in row[name]]
    for name in ("credits", "uses", "earlier", "worker", "server", "own_reward"):
        if row[name] in ((), [], "", None):
            del row[name]
    return encodable(json.dumps(row, ensure_ascii=False))


def from_json(line: str | bytes) -> Episode:
    return typed(Episode, json.loads(line))


def write_episodes(path: Path, episodes: Iterable[Episode]) -> None:
    with replacing(path) as file:
        file.writelines(f"{to_json(episode)}\n" for episode in episodes)


def replace_episodes(folder: Path, episodes: Iterable[Episode]) -> None:
    """Put these into the folder's files, in the place of the same ones with other rewards."""
    new = {(each.id, each.adapter, each.worker): each for each in episodes}
    for path in folder.glob("[!.]*.jsonl"):
        write_episodes(path, [new.get((each.id, each.adapter, each.worker), each) for each in read_episodes(path)])


def append_episodes(path: Path, episodes: Iterable[Episode]) -> None:
    """Append lines, and wait until they are on the disk. A line that a dying writer cut off is not read."""
    append(path, b"".join(to_json(episode).encode() + b"\n" for episode in episodes))


def read_episodes(path: Path) -> Iterator[Episode]:
    """Episodes of a .jsonl or .jsonl.gz; the name of a .jsonl that was compressed since will do.

    A cut-off last line is skipped; a broken line before it is an error, as is a hole of zeros that a power cut left.
    """
    packed = path.with_name(f"{path.name}.gz")
    yield from read_on(packed if packed.exists() else path, FilePosition(), growing=False)[0]


@dataclass(frozen=True)
class FilePosition:
    """How far a file was read."""

    end: int = 0
    """Bytes, without those of a compressed file's coding."""
    lines: int = 0


def read_on(path: Path, place: FilePosition, *, growing: bool = True) -> tuple[list[Episode], FilePosition]:
    """The episodes after a place in a .jsonl or .jsonl.gz, and the place after them.

    Ends before a line that is not all there: one that was cut off, or, in a file that is growing, whose bytes another
    machine has not sent yet, where some file systems show zeros.
    """
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        file.seek(place.end)
        episodes, end, number = [], place.end, place.lines
        try:
            for line in file:
                if not line.endswith(b"\n") or (growing and b"\0" in line):
                    break
                end, number = end + len(line), number + 1
                try:
                    episodes.append(from_json(line))
                except ValueError as error:
                    raise UserError(f"{path}:{number}: not an episode ({error}); delete that line") from error
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise UserError(f"{path} is damaged ({error}); delete it, or put a copy in its place") from error
    return episodes, FilePosition(end, number)


# Files of a folder: plain while they are written, compressed once their step is finished


def episode_files(folder: Path) -> list[Path]:
    """The .jsonl and .jsonl.gz files; only the compressed one of a pair, which a killed process leaves."""
    packed = set(folder.glob("[!.]*.jsonl.gz"))
    return sorted(
        packed | {path for path in folder.glob("[!.]*.jsonl") if path.with_name(f"{path.name}.gz") not in packed}
    )


def episodes_in(folder: Path) -> Iterator[Episode]:
    """The episodes of all files in a folder."""
    for path in episode_files(folder):
        yield from read_episodes(path)


def compress(path: Path) -> None:
    """Replace a .jsonl by a .jsonl.gz that was read back and holds the same. At no moment is neither there."""
    whole, packed = path.read_bytes(), path.with_name(f"{path.name}.gz")
    if not packed.exists():
        with replacing(packed) as file:
            file.buffer.write(gzip.compress(whole, 6, mtime=0))
    if gzip.decompress(packed.read_bytes()) == whole:  # not if a late worker wrote more
        path.unlink()


def is_written(path: Path) -> bool:
    """Whether read_episodes finds the file, under its own name or compressed."""
    return path.is_file() or path.with_name(f"{path.name}.gz").is_file()
