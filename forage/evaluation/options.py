"""Options of an evaluation."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from forage.agent.options import SearchOptions
from forage.engines.base import Sampling
from forage.engines.options import EngineOptions
from forage.errors import UserError, check_at_least_one, check_at_least_zero
from forage.outputs import check_apart, check_folder
from forage.store.options import StorePlace

LEARNED = "learned_"  # begins the names of the systems that choose by --scorer

# These may change between calls with one output folder: earlier episodes stay valid. `search` is kept in agent.json.
# `scorer` is kept in scorer.json.
FREE = (
    "policy", "beside", "systems", "output_dir", "eval_questions", "skip_questions", "cutoffs", "engine", "concurrency",
    "search", "scorer", "parts",
)  # fmt: skip


@dataclass(frozen=True)
class EvaluationOptions:
    """The evaluation."""

    data: Path = Path("data")
    """Folder that data_prep.py wrote."""
    policy: tuple[str, ...] = ("models/warm",)
    """Policy or run folders, plain models' folders, or hub names; name=folder names it in the table."""
    beside: tuple[str, ...] = ()
    """More policies for the same table, such as the warm start or the base, which play only the system `single`."""
    systems: tuple[str, ...] = ("plain_rag", "no_retrieval", "hyde", "single")
    """Ways of answering, by their names in SYSTEMS (evaluate.py); all are compared with the first."""
    output_dir: Path = Path("runs/eval")
    """Folder for all results."""
    eval_questions: int = 200
    """Number of questions, chosen at random by --seed; a larger number includes the questions of a smaller. 0: all."""
    skip_questions: int = 0
    """Leave out the first N questions in that order, such as those of an earlier part."""
    parts: tuple[Path, ...] = ()
    """Output folders of the same evaluation, each of other questions, that other processes or machines played: what
    they hold is put into this one."""
    split: Literal["eval", "train"] = "eval"
    """Take the questions from eval.jsonl or from train.jsonl."""
    cutoffs: tuple[int, ...] = (3, 10)
    """The k of MRR@k, recall@k and nDCG@k."""
    engine: EngineOptions = field(default_factory=EngineOptions)
    search: SearchOptions = field(default_factory=SearchOptions)
    place: StorePlace = field(default_factory=StorePlace)
    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=0.7))
    concurrency: int = 16
    """Questions played at the same time; with --engine local also the sequences sampled in one batch."""
    templates: Path = Path("templates.jsonl")
    """Templates for the system `templates`, made by python -m forage.evaluation.strategies.thought_templates."""
    scorer: Path | None = None
    """Learned scorer for the systems learned_..., made by python -m forage.evaluation.preference.train_scorer."""
    seed: int = 0
    """Seed of the choice of questions and of sampling."""

    def check(self, systems: Collection[str]) -> None:
        """Fail before anything is loaded. `systems` are the names there are."""
        self.sampling.check()
        self.place.check()
        check_at_least_one(self, "concurrency")
        check_at_least_zero(self, "eval_questions", "skip_questions")
        if not self.cutoffs or min(self.cutoffs) < 1:
            raise UserError("--cutoffs must be one or more numbers of at least 1")
        unknown = [name for name in self.systems if name not in systems]
        if unknown or not self.systems:
            raise UserError(f"--systems {' '.join(unknown)}: choose among {', '.join(systems)}")
        if "templates" in self.systems and not self.templates.is_file():
            raise UserError(
                f"--templates {self.templates} is missing; make it with "
                "python -m forage.evaluation.strategies.thought_templates"
            )
        self.check_scorer()
        for part in self.parts:
            if not (part / "config.json").is_file():
                raise UserError(f"--parts {part} holds no config.json; name the --output-dir of another evaluate.py")
        reads = {"--data": self.data} | {f"--policy {name}": path for name, path in self.sources.items()}
        reads |= {"--scorer": self.scorer} if self.scorer else {}
        reads |= {f"--parts {part}": part for part in self.parts}
        check_folder("--output-dir", self.output_dir)
        check_apart("--output-dir", self.output_dir, reads, nested=True)
        if not self.policy or len(self.sources) < len(self.policy + self.beside):
            given = " ".join(self.policy + self.beside)
            raise UserError(f"--policy {given}: give each policy its own name, as name=folder")

    def check_scorer(self) -> None:
        """Refuse learned systems without a scorer; what is in its folder is read when they are played."""
        way_out = "make one with python -m forage.evaluation.preference.train_scorer"
        if self.learned and self.scorer is None:
            raise UserError(f"--systems {self.learned[0]} needs --scorer; {way_out}")
        if self.scorer is not None and not (self.scorer / "scorer.json").is_file():
            raise UserError(f"--scorer {self.scorer} holds no scorer.json; {way_out}")

    @property
    def learned(self) -> tuple[str, ...]:
        """The systems that choose by the learned scorer."""
        return tuple(name for name in self.systems if name.startswith(LEARNED))

    @property
    def sources(self) -> dict[str, str]:
        """Each policy's folder or hub name, by the policy's name."""
        return sources_of(self.policy) | sources_of(self.beside)

    def systems_of(self, policy: str) -> tuple[str, ...]:
        """The systems a policy plays. Example: a policy of --beside plays ("single",)."""
        return self.systems if policy in sources_of(self.policy) else ("single",)


def sources_of(policies: Sequence[str]) -> dict[str, str]:
    """Example: ("first=runs/a", "models/warm") gives {"first": "runs/a", "warm": "models/warm"}."""
    pairs = (text.partition("=") for text in policies)
    return {name if equals else Path(name).name: source if equals else name for name, equals, source in pairs}
