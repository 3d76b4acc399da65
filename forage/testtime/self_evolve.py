"""Rounds of self-evolution: search, keep the best, train, and search again with the better policy; each round measured.

    python -m forage.testtime.self_evolve --data data --policy models/warm --output-dir runs/evolution

Starts the other scripts one after the other, each in a process of its own. Round r, in round_r/ of --output-dir:

    played/      evaluate.py plays training questions of this round's own with the policy of round r - 1 (in round 1:
                 --policy), by the search --first-system, later --system, which may choose by the last round's scorer
    scorer/      train_scorer.py trains the preference model on the candidates of all rounds
    kept.jsonl   of each question the best episode by the rewards, if it beats the policy's first sample (selection.py)
    policy/      sft_train.py imitates what all rounds kept
    cost.json    what the round played, kept and sampled

and measured/, where evaluate.py compares the policies of all rounds on held-out questions with the start, round_0. Each
policy plays as --policy's agent.json says. Re-run the same command to resume: a stage that is finished is not started
again, and each script goes on where it was. A larger --rounds goes on from finished rounds.

Every training begins with --policy, not with the policy of the round before, and imitates the episodes of all rounds.
So what one round learnt badly is not handed on in the weights, only in the episodes that were chosen; more rounds do
not mean more updates of one policy; and a round's policy depends on its files alone. It costs the training on old
episodes again, which is short beside the search.

Following rStar-Math, https://arxiv.org/abs/2501.04519. Left out: the start is a policy that can search already (a warm
start), not one that a larger model's solutions taught; one best episode of a question, not several; a step is not
checked by code; questions that no search solved do not come again; the paper's preference model is a language model.
Reference answers of training questions are used to choose episodes, as the paper uses the right results.

Where it doesn't help: a policy whose samples hardly differ, since the search then finds nothing better; rewards that
can be earned without answering; and many rounds on few questions, each of which narrows what the policy does. With
best_of:8:learned as --system the scorer decides nothing about what is kept, as rewards choose among the same eight
samples; it guides the search in tree:learned. The scorer knows the mistakes of the policy of the round before.
"""

from __future__ import annotations

import importlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from forage.agent.episode import read_episodes
from forage.cli import run_script
from forage.data.splits import read_held_out, read_training_questions
from forage.engines.base import Sampling
from forage.engines.options import EngineOptions
from forage.errors import UserError, check_at_least_one, check_at_least_zero, flag
from forage.evaluation.options import EvaluationOptions, is_learned, read_system
from forage.evaluation.outcomes import OutcomeLog
from forage.files import replacing
from forage.outputs import check_apart, check_folder, filling_folder
from forage.policy.adapters import adapter_path, newest_adapter
from forage.policy.card import read_policy_card
from forage.runs.run_folder import keep_options
from forage.store.opening import card_at
from forage.store.options import StorePlace

SCRIPT = "evaluate"  # whose dictionary of systems users add to
PLAYER = "policy"  # the name under which a round's policy plays training questions
FIRST = "single"  # the system that plays one sample: what a kept episode has to beat
MEASURED = ("single", "best_of:8")
# These may change between calls with one output folder: what is there stays valid, and more rounds go on from it.
FREE = (
    "rounds", "concurrency", "place.store_patience", "place.store_timeout",
    *(f"engine.{each.name}" for each in fields(EngineOptions)),
)  # fmt: skip


@dataclass(frozen=True)
class EvolveOptions:
    """The rounds."""

    data: Path = Path("data")
    """Folder that data_prep.py wrote."""
    policy: Path = Path("models/warm")
    """Policy folder to start from: it plays the first round, and every round's training begins with it."""
    output_dir: Path = Path("runs/evolution")
    """Folder for all rounds."""
    rounds: int = 2
    """Number of rounds; a larger number goes on from those that are finished."""
    questions: int = 500
    """Training questions that a round plays, none of them played in another round."""
    first_system: str = "best_of:8"
    """System of evaluate.py that searches in round 1, when there is no learned scorer yet."""
    system: str = "tree:learned"
    """System that searches in later rounds, such as tree:learned or best_of:8:learned."""
    eval_questions: int = 200
    """Held-out questions that each round's policy is measured on; 0: all."""
    max_steps: int = 100
    """Updates of a round's training."""
    learning_rate: float = 5e-4
    """Learning rate of a round's training."""
    engine: EngineOptions = field(default_factory=EngineOptions)
    place: StorePlace = field(default_factory=StorePlace)
    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=0.7))
    concurrency: int = 16
    """Questions played at the same time; with --engine local also the sequences sampled in one batch."""
    seed: int = 0
    """Seed of the choice of questions, of sampling and of training."""

    def check(self) -> None:
        """Refuse what a stage would refuse hours later, and questions that are held out as well."""
        self.place.check()
        self.sampling.check()
        check_at_least_one(self, "rounds", "questions", "max_steps", "concurrency")
        check_at_least_zero(self, "eval_questions", "learning_rate")
        systems = importlib.import_module(SCRIPT).SYSTEMS
        for option, name in (("--first-system", self.first_system), ("--system", self.system)):
            read_system(name, systems, option)
        if is_learned(self.first_system):
            raise UserError(
                f"--first-system {self.first_system}: there is no learned scorer yet; give best_of:8 or tree"
            )
        check_folder("--output-dir", self.output_dir)
        check_apart("--output-dir", self.output_dir, {"--data": self.data, "--policy": self.policy})
        read_policy_card(self.policy)
        newest_adapter(self.policy)
        card_at(self.place, self.data)
        known, needed = len(read_training_questions(self.data)), self.rounds * self.questions
        if needed > known:
            raise UserError(
                f"--rounds {self.rounds} of --questions {self.questions} need {needed} training questions, and "
                f"{self.data / 'train.jsonl'} has {known} that a chunk answers; give fewer of either"
            )
        if not read_held_out(self.data):
            raise UserError(f"{self.data / 'eval.jsonl'} has no question to measure on; make it with data_prep.py")

    def round(self, number: int) -> Path:
        return self.output_dir / f"round_{number}"

    def policy_of(self, number: int) -> Path:
        """The policy after a round; that of round 0 is the start."""
        return self.round(number) / "policy" if number else self.policy

    def system_of(self, number: int) -> str:
        return self.system if number > 1 else self.first_system

    def log(self, number: int, system: str) -> OutcomeLog:
        return OutcomeLog(self.round(number) / "played", f"{PLAYER}/{system}")


@dataclass(frozen=True)
class Stage:
    """A script to be run in a process of its own; finished when `made`, which it writes last, is there."""

    title: str
    command: tuple[str, ...]
    """A module and its arguments, as after `python -m`."""
    made: Path


def main(options: EvolveOptions) -> None:
    options.check()
    with filling_folder(options.output_dir):
        keep_options(options.output_dir, options, FREE, "another --output-dir")
        for number in range(1, options.rounds + 1):
            for stage in stages_of(options, number):
                if not stage.made.exists():
                    run(stage, options.engine.api_key)
            with replacing(options.round(number) / "cost.json") as file:
                json.dump(cost_of(options, number), file, indent=1)
    print(f"all results: {options.output_dir / 'measured' / 'table.md'}, and what each round cost in its cost.json")


def run(stage: Stage, api_key: str) -> None:
    """Ends with the status of a stage that fails. A stop kills the stage, which loses nothing that its resume needs."""
    print(f"\n{stage.title}\n$ python -m {shlex.join(stage.command)}", flush=True)
    # A key is not among the flags, where others could read it.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment |= {"VLLM_API_KEY": api_key} if api_key else {}
    status = subprocess.run([sys.executable, "-m", *stage.command], env=environment, check=False).returncode  # noqa: S603
    if status:
        print(
            f"error: {stage.title}: {stage.command[0]} ended with status {status}, see above; re-run the same command "
            "to resume, or give another --output-dir for other options", file=sys.stderr,
        )  # fmt: skip
        sys.exit(status if status > 0 else 128 - status)


def stages_of(options: EvolveOptions, number: int) -> Iterator[Stage]:
    """What a round does, in its order."""
    here, numbers = options.round(number), range(1, number + 1)
    system, title = options.system_of(number), f"round {number}"
    data, policy = ("--data", str(options.data)), ("--policy", str(options.policy))
    place, seed = as_flags(options.place, StorePlace()), ("--seed", str(options.seed))
    played = [str(options.log(earlier, options.system_of(earlier)).episodes) for earlier in numbers]
    scorer = ("--scorer", str(options.round(number - 1) / "scorer")) if is_learned(system) else ()
    playing = (
        *as_flags(options, EvaluationOptions(), "concurrency", "seed"), *place,
        *as_flags(options.sampling, EvaluationOptions().sampling),
        *as_flags(options.engine, EngineOptions(), "engine", "urls", "patience", "timeout"),
    )  # fmt: skip
    yield Stage(f"{title}, playing training questions", (
        "evaluate", *data, "--policy", f"{PLAYER}={options.policy_of(number - 1)}", "--systems",
        *dict.fromkeys((FIRST, system)), "--split", "train", "--eval-questions", str(options.questions),
        "--skip-questions", str((number - 1) * options.questions), "--output-dir", str(here / "played"), *scorer,
        *playing,
    ), here / "played" / "eval.json")  # fmt: skip
    yield Stage(f"{title}, training the scorer", (
        "forage.testtime.train_scorer", *played, *data, *policy, "--out", str(here / "scorer"), *seed, *place,
    ), here / "scorer" / "scorer.json")  # fmt: skip
    yield Stage(f"{title}, choosing the episodes to learn from", (
        "forage.testtime.selection", played[-1], "--beat", str(options.log(number, FIRST).episodes), *data, *policy,
        "--out", str(here / "kept.jsonl"), *place,
    ), here / "kept.jsonl")  # fmt: skip
    # From the start, whatever the round, by all of its updates: the loss of what a policy played itself hardly falls.
    yield Stage(f"{title}, training the policy", (
        "sft_train", *data, *policy, "--output-dir", str(here / "policy"), "--num-demonstrations", "0",
        "--demonstrations", *(str(options.round(earlier) / "kept.jsonl") for earlier in numbers), "--keep", "last",
        "--max-steps", str(options.max_steps), "--learning-rate", str(options.learning_rate),
        *seed, *place,
    ), adapter_path(here / "policy", 0))  # fmt: skip
    yield Stage(f"{title}, measuring on held-out questions", (
        "evaluate", *data, "--policy", *(f"round_{each}={options.policy_of(each)}" for each in (0, *numbers)),
        "--systems", *MEASURED, "--eval-questions", str(options.eval_questions),
        "--output-dir", str(options.output_dir / "measured"), *playing,
    ), here / "cost.json")  # fmt: skip


def cost_of(options: EvolveOptions, number: int) -> dict[str, Any]:
    """What a round played, kept and sampled."""
    first, search = options.log(number, FIRST), options.log(number, options.system_of(number))
    results, tried = search.results(), search.candidates()
    tokens = sum(result.cost.sampled for result in results.values())
    # A search whose candidates begin with the first sample has paid for it already.
    tokens += sum(
        result.cost.sampled
        for name, result in first.results().items()
        if all(episode.ids != result.episode.ids for episode in tried[name])
    )
    kept = sum(1 for _ in read_episodes(options.round(number) / "kept.jsonl"))
    return {"system": options.system_of(number), "played": len(results), "kept": kept, "search_tokens": tokens}


def as_flags(options: Any, default: Any, *names: str) -> list[str]:
    """The flags of fields that differ from a script's default; all fields unless some are named.

    Example: Sampling(temperature=1.0, top_k=5) gives ["--temperature", "1.0", "--top-k", "5"].
    """
    arguments: list[str] = []
    for name in names or [each.name for each in fields(options)]:
        value = getattr(options, name)
        if value != getattr(default, name):
            arguments += [flag(name), *map(str, value if isinstance(value, tuple) else (value,))]
    return arguments


TOP = (
    "data", "policy", "output-dir", "rounds", "questions", "first-system", "system", "eval-questions", "engine", "urls",
    "temperature", "seed",
)  # fmt: skip

if __name__ == "__main__":
    run_script(main, __doc__, top=TOP)
