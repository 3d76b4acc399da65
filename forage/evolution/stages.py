"""Stages: the commands that a round consists of, in their order, and what each has written when it is finished."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from forage.agent.options import SearchOptions
from forage.engines.options import EngineOptions
from forage.errors import flag
from forage.evaluation.options import LEARNED, EvaluationOptions
from forage.evaluation.outcomes import OutcomeLog
from forage.evolution.options import EvolveOptions
from forage.optimizer import MemoryOptions
from forage.policy.adapters import adapter_path
from forage.sft.options import SFTOptions
from forage.store.options import StorePlace

PLAYER = "policy"  # the name under which a round's policy plays training questions
FIRST = "single"  # the system that plays one sample: what a kept episode has to beat
MEASURED = ("single", "best_of_8")
MEASURED_LEARNED = "learned_8"  # measured too, once there is a scorer
IMITATION = "imitation"


@dataclass(frozen=True)
class Stage:
    """A script to be run in a process of its own."""

    title: str
    """Example: round 1, training the policy."""
    command: tuple[str, ...]
    """A module and its arguments, as after `python -m`."""
    made: Path
    """What it writes last: the stage is finished when that is there."""

    @property
    def finished(self) -> bool:
        return self.made.exists()


@dataclass(frozen=True)
class Place:
    """Where a round keeps what its stages write. Round 0 is the start, which is only measured."""

    folder: Path

    @classmethod
    def of(cls, output_dir: Path, number: int) -> Place:
        return cls(output_dir / f"round_{number}")

    @property
    def played(self) -> Path:
        return self.folder / "played"

    @property
    def scorer(self) -> Path:
        return self.folder / "scorer"

    @property
    def kept(self) -> Path:
        return self.folder / "kept.jsonl"

    @property
    def policy(self) -> Path:
        return self.folder / "policy"

    @property
    def measured(self) -> Path:
        return self.folder / "measured"

    @property
    def name(self) -> str:
        """The name of its policy in the table."""
        return self.folder.name


def start_stage(options: EvolveOptions) -> Stage:
    return measure("the start", options, Place.of(options.output_dir, 0), options.policy, None)


def round_stages(options: EvolveOptions, number: int) -> Iterator[Stage]:
    """What a round does, in its order."""
    place, title = Place.of(options.output_dir, number), f"round {number}"
    yield play(options, number)
    yield Stage(f"{title}, training the scorer", train_scorer(options, number), place.scorer / "scorer.json")
    yield Stage(f"{title}, choosing the episodes to learn from", choose(options, number), place.kept)
    files = [Place.of(options.output_dir, earlier).kept for earlier in range(1, number + 1)]
    learn = ("--num-demonstrations", "0", "--demonstrations", *map(str, files))
    yield train(f"{title}, training the policy", options, place, learn)
    yield measure(title, options, place, place.policy, place.scorer)


def imitation_stages(options: EvolveOptions, demonstrations: int) -> Iterator[Stage]:
    """The teacher in the place of the search: as many demonstrations, imitated by the same training."""
    place = imitation_place(options)
    learn = ("--num-demonstrations", str(demonstrations))
    yield train(f"{IMITATION}, training the policy", options, place, learn)
    yield measure(IMITATION, options, place, place.policy, None)


def imitation_place(options: EvolveOptions) -> Place:
    """A folder for each number of rounds: with more of them it has more demonstrations."""
    return Place(options.output_dir / f"{IMITATION}_{options.rounds}")


# The commands


def play(options: EvolveOptions, number: int) -> Stage:
    """Training questions of this round alone, by the system that searches and once without a search."""
    place, before = Place.of(options.output_dir, number), Place.of(options.output_dir, number - 1)
    system = system_of(options, number)
    command = (
        "evaluate", "--data", str(options.data), "--policy", f"{PLAYER}={player(options, number)}",
        "--systems", *dict.fromkeys((FIRST, system)), "--split", "train", "--eval-questions", str(options.questions),
        "--skip-questions", str((number - 1) * options.questions), "--output-dir", str(place.played),
        *(("--scorer", str(before.scorer)) if system.startswith(LEARNED) else ()), *playing(options),
    )  # fmt: skip
    return Stage(f"round {number}, playing training questions", command, whole_evaluation(place.played))


def train_scorer(options: EvolveOptions, number: int) -> tuple[str, ...]:
    """From the candidates of this and all earlier rounds."""
    numbers = range(1, number + 1)
    files = [played_by(options, earlier, system_of(options, earlier)).episodes for earlier in numbers]
    return (
        "forage.evaluation.preference.train_scorer", *map(str, files), "--data", str(options.data),
        "--policy", str(options.policy), "--out", str(Place.of(options.output_dir, number).scorer),
        "--seed", str(options.seed), *searching(options),
    )  # fmt: skip


def choose(options: EvolveOptions, number: int) -> tuple[str, ...]:
    place = Place.of(options.output_dir, number)
    return (
        "forage.evolution.selection", "--data", str(options.data), "--policy", str(options.policy),
        "--played", str(place.played), "--system", system_of(options, number), "--out", str(place.kept),
        *as_flags(options, EvolveOptions(), "weights"), *searching(options),
    )  # fmt: skip


def train(title: str, options: EvolveOptions, place: Place, learn: tuple[str, ...]) -> Stage:
    """From the start, whatever the round, by all of its updates: the loss of what a policy played itself hardly falls.

    Its probes are left out, as the policy is measured afterwards.
    """
    command = (
        "sft_train", "--data", str(options.data), "--policy", str(options.policy), "--output-dir", str(place.policy),
        *learn, "--keep", "last", "--eval-questions", "0", "--seed", str(options.seed),
        *as_flags(options, SFTOptions(), "max_steps", "batch_size"),
        *as_flags(options.optimizer, SFTOptions().optimizer), *as_flags(options.memory, MemoryOptions()),
        *searching(options),
    )  # fmt: skip
    return Stage(title, command, adapter_path(place.policy, 0))


def measure(title: str, options: EvolveOptions, place: Place, policy: Path, scorer: Path | None) -> Stage:
    systems = (*MEASURED, MEASURED_LEARNED) if scorer else MEASURED
    command = (
        "evaluate", "--data", str(options.data), "--policy", f"{place.name}={policy}", "--systems", *systems,
        "--eval-questions", str(options.eval_questions), "--output-dir", str(place.measured),
        *(("--scorer", str(scorer)) if scorer else ()), *playing(options),
    )  # fmt: skip
    return Stage(f"{title}, measuring on held-out questions", command, whole_evaluation(place.measured))


def player(options: EvolveOptions, number: int) -> Path:
    """The policy that plays a round: that of the round before it."""
    return Place.of(options.output_dir, number - 1).policy if number > 1 else options.policy


def system_of(options: EvolveOptions, number: int) -> str:
    """The system by which a round searches."""
    return options.system if number > 1 else options.first_system


def played_by(options: EvolveOptions, number: int, system: str) -> OutcomeLog:
    return OutcomeLog(Place.of(options.output_dir, number).played, f"{PLAYER}/{system}")


def whole_evaluation(folder: Path) -> Path:
    """The last file that evaluate.py writes (forage/evaluation/report.py)."""
    return folder / "eval.png"


# Options that are handed on


def playing(options: EvolveOptions) -> list[str]:
    """How evaluate.py plays. A key is not among its flags, where others could read it (processes.py)."""
    return [
        *as_flags(options, EvaluationOptions(), "concurrency", "seed"),
        *as_flags(options.sampling, EvaluationOptions().sampling),
        *as_flags(options.engine, EngineOptions(), "engine", "urls", "patience", "timeout"), *searching(options),
    ]  # fmt: skip


def searching(options: EvolveOptions) -> list[str]:
    return [*as_flags(options.search, SearchOptions()), *as_flags(options.place, StorePlace())]


def as_flags(options: Any, default: Any, *names: str) -> list[str]:
    """The flags of fields that differ from a script's default; all fields unless some are named.

    Example: SearchOptions(k=5, force_search=True, title_share=False) gives
    ["--k", "5", "--force-search", "--no-title-share"].
    """
    arguments: list[str] = []
    for name in names or [field.name for field in fields(options)]:
        value = getattr(options, name)
        if value == getattr(default, name):
            continue
        if isinstance(value, bool):
            arguments.append(flag(name) if value else flag(name).replace("--", "--no-", 1))
        else:
            arguments += [flag(name), *map(str, value if isinstance(value, tuple) else (value,))]
    return arguments
