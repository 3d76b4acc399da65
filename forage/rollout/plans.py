"""Plan: which questions to play, as a file in the run folder that the trainer writes and workers read; and claims on
its questions, by which workers share them.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from forage.agent.episode import Episode, FilePosition, episode_files, read_on
from forage.agent.options import Credit
from forage.data.splits import in_rounds
from forage.errors import UserError
from forage.files import GONE, create_once, locked, make_folder
from forage.manifest import digest, write_manifest
from forage.policy.adapters import sampled_by, version_name
from forage.rollout.options import RolloutOptions
from forage.text import from_json, typed

FORMAT = 2  # of plans and episodes; raise it when a trainer and a worker of different versions would misread each other


@dataclass(frozen=True)
class Plan:
    """Questions to play, and how."""

    name: str
    """Folder of its episodes. Example: 000007, or 000007-eval."""
    version: int
    """Version of the adapter to play with."""
    questions: tuple[str, ...]
    spare: tuple[str, ...] = ()
    """Replacements, played in this order, one for each flat group."""
    split: Literal["train", "eval"] = "train"
    num_rollouts: int = 8
    temperature: float = 1.0
    seed: int = 0
    oldest: int = 0
    """Oldest adapter whose episodes count: as old as staleness allows, and none that a rollback discarded."""
    credit: Credit = "episode"
    """Whether the words of a query have a credit of their own (forage/agent/rewards.py)."""
    word_cost: float = 0.0
    """What is subtracted from that."""

    def wanted(self, groups: Mapping[str, Sequence[Episode]]) -> tuple[str, ...]:
        """The questions to play, given the groups played so far.

        Example: of questions (a, b) and spare (c, d), a is flat: (a, b, c). Then c is flat too: (a, b, c, d). All
        workers end up with the same questions, whenever they look.
        """
        asked = (*self.questions, *self.spare)
        flat = sum(name in groups and is_flat([e.reward for e in groups[name]]) for name in asked) if self.spare else 0
        return (*self.questions, *self.spare[:flat])

    def missing(self, groups: Mapping[str, Sequence[Episode]]) -> list[str]:
        """Questions that are still to be played."""
        return [name for name in self.wanted(groups) if name not in groups]

    def gathered(self, groups: Mapping[str, Sequence[Episode]]) -> list[Episode]:
        """All episodes of a plan that is played, in an order that does not depend on who played what when."""
        return [episode for name in self.wanted(groups) for episode in groups[name]]


def is_flat(rewards: Sequence[float]) -> bool:
    """Whether a group's rewards are equal up to rounding, so that comparing its episodes teaches nothing.

    It is judged by the weighted mean, which a group has as soon as it is played, in whatever way training combines
    rewards over a whole batch.
    """
    return max(rewards) - min(rewards) < 1e-6


def plan_of(options: RolloutOptions, ids: Sequence[str], step: int) -> Plan:
    """Plan a step's questions: in rounds over all of them, none twice in a step."""
    chosen = in_rounds(ids, step, options.batch_size, options.seed)
    return Plan(
        f"{step:06d}", step, tuple(dict.fromkeys(chosen)), num_rollouts=options.num_rollouts,
        temperature=options.temperature, seed=options.seed * 1_000_003 + step,
    )  # fmt: skip


def plan_path(run_dir: Path, name: str) -> Path:
    return run_dir / "plans" / f"{name}.json"


def write_plan(run_dir: Path, plan: Plan) -> None:
    write_manifest(plan_path(run_dir, plan.name), {"format": FORMAT} | asdict(plan))


def read_plan(path: Path) -> Plan:
    try:
        row = from_json(path.read_bytes())
        if row.pop("format", None) != FORMAT:
            raise ValueError("it has another format")
        return typed(Plan, row)
    except (ValueError, AttributeError) as error:
        raise UserError(f"{path} is not a plan ({error}); trainer and workers must run the same version") from error


def open_plans(run_dir: Path) -> list[Plan]:
    """Open plans, oldest first; the trainer removes a plan once it has used its episodes."""
    plans = []
    for path in sorted((run_dir / "plans").glob("[0-9]*.json")):
        try:
            plans.append(read_plan(path))
        except OSError as error:
            if error.errno not in GONE:  # else removed since it was listed
                raise
    return plans


class Played:
    """The episodes of a plan, read as they are written.

    What was read once stays read: on a shared file system a finished step's file may seem to be gone before its
    compressed form appears.
    """

    def __init__(self, run_dir: Path, plan: Plan) -> None:
        self.folder, self.plan = run_dir / "episodes" / plan.name, plan
        # What is to be played again after a rollback is free, whoever still plays it for the plan before.
        self.claims = self.folder / f"claims-{version_name(plan.oldest)}"
        self._sizes: dict[Path, int] = {}  # of files that were read to their end
        self._places: dict[str, FilePosition] = {}  # by file
        self._parts: dict[tuple[str, str, str], dict[str, Episode]] = {}  # by file, question and adapter
        self._groups: dict[str, list[Episode]] = {}
        self._from: dict[str, str] = {}  # by question, the file of its group

    def groups(self) -> dict[str, list[Episode]]:
        """Complete groups by question, each from one worker and one adapter, in the order of their samples.

        A group that a killed worker left incomplete, or in which the engine failed, is played again: by another worker,
        or by the same one, which appends to its file. Of a group that was played twice, the first file's counts, for
        whoever looks: all come to agree, in whatever order they see files.
        """
        for path in episode_files(self.folder):
            self._read_on(path)
        return self._groups

    def _read_on(self, path: Path) -> None:
        """Take in what a file holds that was not read yet."""
        file = path.name.removesuffix(".gz")
        for there in (path, path.with_name(f"{file}.gz")):  # compressed since it was listed
            try:
                size = there.stat().st_size
                if self._sizes.get(there) == size:
                    return
                episodes, place = read_on(there, self._places.get(file, FilePosition()))
                break
            except OSError as error:
                if error.errno not in GONE:
                    raise
        else:
            return
        self._places[file] = place
        if there.suffix == ".gz" or place.end == size:
            self._sizes[there] = size
        for episode in filter(self.counts, episodes):
            self._take_in(file, episode)

    def _take_in(self, file: str, episode: Episode) -> None:
        question, key = episode.question_id, (file, episode.question_id, episode.adapter)
        part = self._parts.setdefault(key, {})
        part[episode.id] = episode
        if len(part) == self.plan.num_rollouts:
            group = sorted(self._parts.pop(key).values(), key=lambda e: int(e.id.rpartition("/")[2]))
            if question not in self._from or file < self._from[question]:
                self._groups[question], self._from[question] = group, file

    def counts(self, episode: Episode) -> bool:
        """Whether the episode was played to its end, with an adapter that the plan accepts."""
        oldest = self.plan.oldest
        return episode.stop != "engine" and (not oldest or sampled_by(episode.adapter)[0] >= oldest)

    def missing(self) -> list[str]:
        """Questions that are still to be played."""
        return self.plan.missing(self.groups())

    def gathered(self) -> list[Episode] | None:
        """All episodes of the plan, as a single look finds them; None until all are there."""
        groups = self.groups()
        return None if self.plan.missing(groups) else self.plan.gathered(groups)


# Claims: several workers share a step's questions through files alone, and no question is played twice.
#
# A worker claims a question by creating its claim file, which the file system lets only one of them do, and refreshes
# it while it plays. A claim that is no longer refreshed belongs to a worker that died. Another worker takes the
# question over by creating the next claim, `<question>~1`, then `~2`: the last one counts. Claims are never removed or
# rewritten, so that a slow worker that saw an expired claim can't undo a faster one's takeover.
#
# No two clocks are ever compared: machines disagree about the time, and a clock may be set while a run goes on. A
# refresh counts the file's time up by a second, and whoever waits for a claim to expire measures, by a stopwatch of its
# own, for how long that time has stayed the same. What one machine does may be seen on another later: a claim counts
# from when it is seen, and the file system itself says whether a new one is the first, not what can be seen of the
# folder.

LEASE = 120.0  # seconds; NFS shows a refresh after at most 60 (acregmax), and there is one every 30
LONGEST_NAME = 240  # of the 255 bytes that file systems take; a claim's number and a temporary file's name add to it
LOOKS = 8  # at another's claim, in the time of a lease


@dataclass(frozen=True)
class Claims:
    """The claims of one step, in their own folder."""

    folder: Path
    worker: str
    lease: float = LEASE
    """Seconds after which a claim expires unless it is refreshed, from when this worker first saw it."""
    clock: Callable[[], float] = time.monotonic
    create: Callable[[Path, str], bool] = create_once
    """Creates a file unless any machine has."""
    watched: dict[Path, tuple[int, float]] = field(default_factory=dict)
    """Others' claims: the file's time, and since when on this worker's clock it has been that."""
    next_look: dict[str, float] = field(default_factory=dict)
    """When to look again at a question that another worker holds: there may be thousands."""

    def take(self, question_id: str) -> bool:
        """Claim a question. True if this worker holds it now, or already held it before a restart."""
        now = self.clock()
        if now < self.next_look.get(question_id, now):
            return False
        self.folder.mkdir(parents=True, exist_ok=True)
        last, following = self._last(question_id)
        if last and owner(last) == self.worker:
            count_up(last)
            return True
        if (last and not self._expired(last)) or not self.create(following, self.worker):
            self.next_look[question_id] = now + self.lease / LOOKS
            return False
        return True

    def refresh(self, question_id: str) -> None:
        """Show that the question is still being played. A claim that another worker took over is left alone."""
        last, _ = self._last(question_id)
        if last and owner(last) == self.worker:
            count_up(last)

    def holds(self, question_id: str) -> bool:
        """Whether the question is still this worker's."""
        last, _ = self._last(question_id)
        return last is not None and owner(last) == self.worker

    def _expired(self, claim: Path) -> bool:
        """Whether its owner has not refreshed it for the length of a lease."""
        now, time_ns = self.clock(), claim.stat().st_mtime_ns
        if self.watched.get(claim, (-1,))[0] != time_ns:
            self.watched[claim] = time_ns, now
        return now - self.watched[claim][1] > self.lease

    def _last(self, question_id: str) -> tuple[Path | None, Path]:
        """(the claim that counts if there is one, the path of the next one)"""
        name = file_name(question_id)
        last, following, number = None, self.folder / name, 0
        while following.exists():
            number += 1
            last, following = following, self.folder / f"{name}~{number}"
        return last, following


def file_name(question_id: str) -> str:
    """A question's id as a file's name; of one that would be too long, the beginning and a digest.

    Examples: "q/1" gives q%2F1, ".." gives %2E., none gives %, and 300 times "a" a hundred times "a" and =, which no
    other name has, and 16 digits.
    """
    name = urllib.parse.quote(question_id, safe="").replace("~", "%7E")  # quote leaves a ~ as it is, and a dot
    name = re.sub(r"^\.", "%2E", name) or "%"
    return name if len(name) <= LONGEST_NAME else f"{name[:100]}={digest(question_id.encode())}"


def owner(claim: Path) -> str:
    """Whose claim it is; empty where that can't be read yet."""
    try:
        return claim.read_text()
    except OSError as error:
        if error.errno not in GONE:
            raise
        return ""


def count_up(claim: Path) -> None:
    """Set the file's time a second later than it was: a counter that no clock can turn back."""
    next_ns = claim.stat().st_mtime_ns + 1_000_000_000
    os.utime(claim, ns=(next_ns, next_ns))


# Names: no two workers write one file or hold one claim

TRAINER = "trainer"  # grpo_train.py plays under this name; the run folder's own lock keeps it single


@contextmanager
def named_worker(run_dir: Path, wanted: str = "") -> Iterator[str]:
    """Hold a worker's name: the wanted one, or the first free one of host, host-2, host-3.

    A worker that is started again gets the name of the one that died, and with it its claims.
    """
    if wanted == TRAINER or (wanted and not re.fullmatch(r"\w[\w.-]*", wanted)):
        raise UserError(f"--worker {wanted} can't be used; take letters, digits, - and _, and not {TRAINER!r}")
    locks = run_dir / "workers"
    make_folder(locks)
    if wanted:
        taken = f"worker {wanted} is playing in {run_dir} already; give this one another --worker, or none"
        with locked(locks / f"{wanted}.lock", taken):
            yield wanted
        return
    with ExitStack() as stack:
        yield next(name for name in host_names() if _is_free(stack, locks / f"{name}.lock"))


def host_names() -> Iterator[str]:
    """Example: here, here-2, here-3 and so on."""
    host = socket.gethostname()
    yield host
    yield from (f"{host}-{number}" for number in itertools.count(2))


def _is_free(stack: ExitStack, path: Path) -> bool:
    """Take the lock if nobody holds it."""
    try:
        stack.enter_context(locked(path, f"{path} is held"))
    except UserError:
        return False
    return True
