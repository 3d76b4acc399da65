"""Plan: which questions to play, as a file in the run folder that the trainer writes and workers read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from forage.agent.episode import Episode, Place, episode_files, read_on
from forage.agent.options import Credit
from forage.data.splits import in_rounds
from forage.errors import UserError
from forage.files import GONE, replacing
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
    """Whether the words of a query have a credit of their own (forage/agent/credit.py)."""
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
    with replacing(plan_path(run_dir, plan.name)) as file:
        json.dump({"format": FORMAT} | asdict(plan), file)


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
        self._places: dict[str, Place] = {}  # by file
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
                episodes, place = read_on(there, self._places.get(file, Place()))
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
        groups = self.groups()
        return [name for name in self.plan.wanted(groups) if name not in groups]

    def gathered(self) -> list[Episode] | None:
        """All episodes of the plan, in an order that does not depend on who played what when; None until all are there.

        They are those of a single look: what the next one finds may be more.
        """
        groups = self.groups()
        wanted = self.plan.wanted(groups)
        if any(name not in groups for name in wanted):
            return None
        return [episode for name in wanted for episode in groups[name]]

    def episodes(self) -> list[Episode]:
        """All episodes of a plan that is played."""
        gathered = self.gathered()
        if gathered is None:
            raise UserError(f"{self.folder} lacks episodes that were there; re-run the same command to play them again")
        return gathered
