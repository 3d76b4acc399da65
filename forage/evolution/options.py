"""Options of rounds of self-evolution."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, fields
from pathlib import Path

from forage.agent.options import SearchOptions
from forage.engines.base import Sampling
from forage.engines.options import EngineOptions
from forage.errors import UserError, check_at_least_one, check_at_least_zero
from forage.evaluation.options import LEARNED
from forage.optimizer import MemoryOptions, OptimizerOptions
from forage.outputs import check_apart, check_folder
from forage.store.options import StorePlace

# These may change between calls with one output folder: what is there stays valid, and more rounds go on from it.
FREE = (
    "rounds", "imitation", "concurrency", "place.store_patience", "place.store_timeout",
    *(f"engine.{field.name}" for field in fields(EngineOptions)),
)  # fmt: skip
# Systems that don't search: they play one episode of a question.
ONE_EPISODE = ("plain_rag", "no_retrieval", "hyde", "rewrite", "single", "budget_forcing", "templates")
ONE_EPISODE_EACH = ("forced_", "capped_")


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
    first_system: str = "best_of_8"
    """System of evaluate.py that searches in round 1, when there is no learned scorer yet."""
    system: str = "learned_tree"
    """System that searches in later rounds, such as learned_tree or learned_8."""
    eval_questions: int = 200
    """Held-out questions that each round's policy is measured on; 0: all."""
    imitation: bool = False
    """Train a policy on as many of the teacher's demonstrations too, by as many updates, and measure it beside."""
    weights: tuple[float, ...] = ()
    """Weight of each reward by which episodes are chosen, in the order of get_reward_functions (all equal)."""
    max_steps: int = 100
    """Updates of a round's training."""
    batch_size: int = 4
    """Episodes per update."""
    optimizer: OptimizerOptions = field(default_factory=lambda: OptimizerOptions(learning_rate=5e-4))
    memory: MemoryOptions = field(default_factory=MemoryOptions)
    engine: EngineOptions = field(default_factory=EngineOptions)
    search: SearchOptions = field(default_factory=SearchOptions)
    place: StorePlace = field(default_factory=StorePlace)
    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=0.7))
    concurrency: int = 16
    """Questions played at the same time; with --engine local also the sequences sampled in one batch."""
    seed: int = 0
    """Seed of the choice of questions, of sampling and of training."""

    def check(self, systems: Collection[str]) -> None:
        """Fail before anything is started. `systems` are the names there are."""
        for part in (self.optimizer, self.memory, self.place, self.sampling):
            part.check()
        check_at_least_one(self, "rounds", "questions", "max_steps", "batch_size", "concurrency")
        check_at_least_zero(self, "eval_questions")
        for option, name in (("--first-system", self.first_system), ("--system", self.system)):
            if name not in systems:
                raise UserError(f"{option} {name} is unknown; choose among {', '.join(systems)}")
            if name in ONE_EPISODE or name.startswith(ONE_EPISODE_EACH):
                raise UserError(f"{option} {name} plays one episode of a question, so there is none to choose")
        if self.first_system.startswith(LEARNED):
            raise UserError(
                f"--first-system {self.first_system} chooses by a learned scorer, and round 1 has none yet; give "
                "best_of_8 or tree_search"
            )
        check_folder("--output-dir", self.output_dir)
        check_apart("--output-dir", self.output_dir, {"--data": self.data, "--policy": self.policy})
