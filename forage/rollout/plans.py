"""Plan: what is to be played next, as a file in the run folder that the trainer writes and every worker finds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from forage.agent.episode import Episode, read_episodes
from forage.errors import UserError
from forage.files import replacing
from forage.rollout.options import RolloutOptions
from forage.schedule import in_rounds

FORMAT = 1  # of plans and episodes: raised when trainer and workers of two versions would misread each other


@dataclass(frozen=True)
class Plan:
    """Questions to play, and how."""

    name: str
    """Folder of its episodes. Example: 000007, or 000007-eval."""
    version: int
    """The adapter it is meant for."""
    questions: tuple[str, ...]
    spare: tuple[str, ...] = ()
    """Played in this order, one for each group of which all episodes are rewarded alike."""
    split: Literal["train", "eval"] = "train"
    num_rollouts: int = 8
    temperature: float = 1.0
    seed: int = 0

    def wanted(self, groups: Mapping[str, Sequence[Episode]]) -> tuple[str, ...]:
        """What must be played, as far as is known by the groups that have been.

        Example: of questions (a, b) and spare (c, d), a is flat: (a, b, c); then c is flat too: (a, b, c, d). Whoever
        looks, and whenever, in the end comes to the same.
        """
        played = sum(is_flat(groups[name]) for name in (*self.questions, *self.spare) if name in groups)
        return (*self.questions, *self.spare[:played])


def plan_of(options: RolloutOptions, ids: Sequence[str], step: int) -> Plan:
    """A step's questions: in rounds over all of them, none twice within a step."""
    chosen = in_rounds(ids, step, options.batch_size, options.seed)
    return Plan(
        f"{step:06d}", step, tuple(dict.fromkeys(chosen)), num_rollouts=options.num_rollouts,
        temperature=options.sampling.temperature, seed=options.seed * 1_000_003 + step,
    )  # fmt: skip


def is_flat(group: Sequence[Episode]) -> bool:
    """All are rewarded alike, but for rounding: there is nothing to learn from their comparison."""
    rewards = [episode.reward for episode in group]
    return max(rewards) - min(rewards) < 1e-6


def plan_path(run_dir: Path, name: str) -> Path:
    return run_dir / "plans" / f"{name}.json"


def write_plan(run_dir: Path, plan: Plan) -> None:
    with replacing(plan_path(run_dir, plan.name)) as file:
        json.dump({"format": FORMAT} | asdict(plan), file)


def read_plan(path: Path) -> Plan:
    try:
        row = json.loads(path.read_text())
        if row.pop("format", 1) != FORMAT:
            raise ValueError("of another format")
        return Plan(**row | {"questions": tuple(row["questions"]), "spare": tuple(row["spare"])})
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is no plan ({error}); trainer and workers must be of the same version") from error


def open_plans(run_dir: Path) -> list[Plan]:
    """What is still to be played, oldest first; the trainer removes a plan when it has used its episodes."""
    plans = []
    for path in sorted((run_dir / "plans").glob("[0-9]*.json")):
        try:
            plans.append(read_plan(path))
        except FileNotFoundError:  # removed since it was listed
            continue
    return plans


class Played:
    """The episodes of a plan, read as they come."""

    def __init__(self, run_dir: Path, plan: Plan) -> None:
        self.folder, self.plan = run_dir / "episodes" / plan.name, plan
        self._read: dict[Path, tuple[int, list[Episode]]] = {}

    def groups(self) -> dict[str, list[Episode]]:
        """Whole groups by question, of one worker each, in the order of their samples.

        A group that a killed worker wrote in part, or that the engine gave up on, is played again by another, or by
        itself behind those lines.
        """
        whole: dict[str, list[Episode]] = {}
        for path in sorted(self.folder.glob("*.jsonl")):
            size = path.stat().st_size
            if self._read.get(path, (-1,))[0] != size:
                self._read[path] = size, list(read_episodes(path))
            by_question: dict[str, dict[str, Episode]] = {}
            for episode in self._read[path][1]:
                by_question.setdefault(episode.question_id, {})[episode.id] = episode
            for name, group in by_question.items():
                ended = all(episode.stop != "engine" for episode in group.values())
                if ended and len(group) == self.plan.num_rollouts and name not in whole:
                    whole[name] = sorted(group.values(), key=lambda e: int(e.id.rpartition("/")[2]))
        return whole

    def missing(self) -> list[str]:
        groups = self.groups()
        return [name for name in self.plan.wanted(groups) if name not in groups]

    def episodes(self) -> list[Episode]:
        """All that the plan wanted, in an order that does not depend on who played what when."""
        groups = self.groups()
        return [episode for name in self.plan.wanted(groups) for episode in groups[name]]
