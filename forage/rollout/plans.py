"""Plan: which questions to play, as a file in the run folder that the trainer writes and workers read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from forage.agent.combination import Method
from forage.agent.episode import Episode, read_episodes
from forage.agent.episode_files import episode_files
from forage.agent.options import Credit
from forage.errors import UserError
from forage.files import replacing
from forage.policy.adapters import sampled_by, version_name
from forage.rollout.options import RolloutOptions
from forage.rollout.spread import is_flat
from forage.schedule import in_rounds

FORMAT = 1  # of plans and episodes; raise it when a trainer and a worker of different versions would misread each other


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
    """Oldest adapter whose episodes count. After a rollback, those of the adapters that it discarded don't."""
    combine: Method = "uniform"
    """How training combines rewards: it decides which groups are flat (forage/rollout/spread.py)."""
    weights: tuple[tuple[str, float], ...] = ()
    """Name and weight of each reward where the combination is not uniform; left out: all equal."""

    credit: Credit = "episode"
    """Whether the words of a query have a credit of their own (forage/agent/credit.py)."""
    word_cost: float = 0.0
    """What is subtracted from that."""

    def wanted(self, groups: Mapping[str, Sequence[Episode]]) -> tuple[str, ...]:
        """The questions to play, given the groups played so far.

        Example: of questions (a, b) and spare (c, d), a is flat: (a, b, c). Then c is flat too: (a, b, c, d). All
        workers end up with the same questions, whenever they look.
        """
        there = (groups[name] for name in (*self.questions, *self.spare) if name in groups)
        flat = sum(is_flat(group, self.combine, dict(self.weights)) for group in there)
        return (*self.questions, *self.spare[:flat])


def plan_of(options: RolloutOptions, ids: Sequence[str], step: int) -> Plan:
    """Plan a step's questions: in rounds over all of them, none twice in a step."""
    chosen = in_rounds(ids, step, options.batch_size, options.seed)
    return Plan(
        f"{step:06d}", step, tuple(dict.fromkeys(chosen)), num_rollouts=options.num_rollouts,
        temperature=options.sampling.temperature, seed=options.seed * 1_000_003 + step,
    )  # fmt: skip


def plan_path(run_dir: Path, name: str) -> Path:
    return run_dir / "plans" / f"{name}.json"


def write_plan(run_dir: Path, plan: Plan) -> None:
    with replacing(plan_path(run_dir, plan.name)) as file:
        json.dump({"format": FORMAT} | asdict(plan), file)


def read_plan(path: Path) -> Plan:
    try:
        row = json.loads(path.read_text())
        if row.pop("format", 1) != FORMAT:
            raise ValueError("it has another format")
        sequences = {name: tuple(row[name]) for name in ("questions", "spare") if name in row}
        weights = tuple((name, weight) for name, weight in row.pop("weights", ()))
        return Plan(**row | sequences, weights=weights)
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not a plan ({error}); trainer and workers must run the same version") from error


def open_plans(run_dir: Path) -> list[Plan]:
    """Open plans, oldest first; the trainer removes a plan once it has used its episodes."""
    plans = []
    for path in sorted((run_dir / "plans").glob("[0-9]*.json")):
        try:
            plans.append(read_plan(path))
        except FileNotFoundError:  # removed since it was listed
            continue
    return plans


class Played:
    """The episodes of a plan, read as they are written."""

    def __init__(self, run_dir: Path, plan: Plan) -> None:
        self.folder, self.plan = run_dir / "episodes" / plan.name, plan
        # What is to be played again after a rollback is free, whoever still plays it for the plan before.
        self.claims = self.folder / (f"claims-{version_name(plan.oldest)}" if plan.oldest else "claims")
        self._read: dict[Path, tuple[int, list[Episode]]] = {}

    def groups(self) -> dict[str, list[Episode]]:
        """Complete groups by question, each from one worker, in the order of their samples.

        A group that a killed worker left incomplete, or in which the engine failed, is played again: by another worker,
        or by the same one, which appends to its file.
        """
        while True:
            try:
                return self._groups()
            except FileNotFoundError:  # compressed since it was listed: the trainer has finished this step
                continue

    def _groups(self) -> dict[str, list[Episode]]:
        complete: dict[str, list[Episode]] = {}
        for path in episode_files(self.folder):
            size = path.stat().st_size
            if self._read.get(path, (-1,))[0] != size:
                self._read[path] = size, list(read_episodes(path))
            by_question: dict[str, dict[str, Episode]] = {}
            for episode in filter(self.counts, self._read[path][1]):
                by_question.setdefault(episode.question_id, {})[episode.id] = episode
            for name, group in by_question.items():
                ended = all(episode.stop != "engine" for episode in group.values())
                if ended and len(group) == self.plan.num_rollouts and name not in complete:
                    complete[name] = sorted(group.values(), key=lambda e: int(e.id.rpartition("/")[2]))
        return complete

    def counts(self, episode: Episode) -> bool:
        """Whether the plan accepts the adapter that sampled the episode."""
        return not self.plan.oldest or sampled_by(episode.adapter)[0] >= self.plan.oldest

    def missing(self) -> list[str]:
        """Questions that are still to be played."""
        groups = self.groups()
        return [name for name in self.plan.wanted(groups) if name not in groups]

    def episodes(self) -> list[Episode]:
        """All episodes of the plan, in an order that does not depend on who played what when."""
        groups = self.groups()
        return [episode for name in self.plan.wanted(groups) for episode in groups[name]]
