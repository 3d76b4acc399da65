"""Options of an evaluation, and how a system is named."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from forage.agent.options import SearchOptions
from forage.engines.base import EngineOptions, Sampling
from forage.errors import UserError, check_at_least_one
from forage.files import check_apart, check_folder
from forage.store.options import StoreAddress

Systems = Mapping[str, Callable[..., Any]]  # by name: makes a Strategy of a Setting and parameters
MANIFEST = "evaluation.json"  # what all episodes of an output folder have in common
LEARNED = "learned"  # the parameter of systems that choose by --scorer

# These may change between calls with one output folder: earlier episodes stay valid. `search` is kept in agent.json,
# `scorer` by its digest.
FREE = (
    "policy", "beside", "systems", "lab", "output_dir", "eval_questions", "skip_questions", "cutoffs", "engine",
    "concurrency", "search", "scorer",
)  # fmt: skip


@dataclass(frozen=True)
class EvaluationOptions:
    """The evaluation."""

    data: Path = Path("data")
    """Folder that data_prep.py wrote."""
    policy: tuple[str, ...] = ("models/warm",)
    """Policy or run folders, plain models' folders, or hub names. name=folder sets the name in the table."""
    beside: tuple[str, ...] = ()
    """More policies for the same table, such as the warm start or the base. They play only the system `single`."""
    systems: tuple[str, ...] = ("plain_rag", "no_retrieval", "hyde", "single")
    """Ways of answering: names from SYSTEMS (evaluate.py), with parameters as in best_of:8, tpo:4x3 or tree:8:learned.
    All are compared with the first."""
    lab: bool = False
    """Test whether the policy searches or answers from memory: play it on altered stores too, beside plain RAG and no
    retrieval, and write lab.md. Replaces --systems."""
    output_dir: Path = Path("runs/eval")
    """Folder for all results."""
    eval_questions: int = 200
    """Number of questions, drawn by --seed; a larger number includes those of a smaller one. 0: all."""
    skip_questions: int = 0
    """Skip the first N questions drawn, as rounds of self-evolution do."""
    split: Literal["eval", "train"] = "eval"
    """Take the questions from eval.jsonl or from train.jsonl."""
    cutoffs: tuple[int, ...] = (3, 10)
    """Values of k for MRR@k, recall@k and nDCG@k."""
    engine: EngineOptions = EngineOptions()
    search: SearchOptions = SearchOptions()
    address: StoreAddress = StoreAddress()
    sampling: Sampling = Sampling(temperature=0.7)
    concurrency: int = 16
    """Questions played at once. With --engine local also the number of sequences sampled in one batch."""
    scorer: Path | None = None
    """Learned scorer for systems such as best_of:8:learned, from python -m forage.extras.testtime.train_scorer."""
    seed: int = 0
    """Seed for drawing questions and for sampling."""

    def check(self, systems: Systems) -> None:
        """Fail before anything is loaded."""
        self.address.check()
        check_at_least_one(self, "concurrency")
        if not self.cutoffs or min(self.cutoffs) < 1:
            raise UserError("--cutoffs must be one or more numbers of at least 1")
        if not self.systems:
            raise UserError(f"--systems: choose among {', '.join(systems)}")
        for name in self.systems:
            read_system(name, systems)
        way_out = "make one with python -m forage.extras.testtime.train_scorer"
        if self.learned and self.scorer is None:
            raise UserError(f"--systems {self.learned[0]} needs --scorer; {way_out}")
        if self.scorer is not None and not (self.scorer / "scorer.json").is_file():
            raise UserError(f"--scorer {self.scorer} holds no scorer.json; {way_out}")
        reads = {"--data": self.data} | {f"--policy {name}": path for name, path in self.sources.items()}
        reads |= {"--scorer": self.scorer} if self.scorer else {}
        check_folder("--output-dir", self.output_dir)
        check_apart("--output-dir", self.output_dir, reads, nested=True)
        if not self.policy or len(self.sources) < len(self.policy + self.beside):
            given = " ".join(self.policy + self.beside)
            raise UserError(f"--policy {given}: give each policy its own name, as name=folder")

    @property
    def learned(self) -> tuple[str, ...]:
        """The systems that choose by the learned scorer."""
        return tuple(name for name in self.systems if is_learned(name))

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


def is_learned(system: str) -> bool:
    return LEARNED in system.split(":")[1:]


def read_system(text: str, systems: Systems, option: str = "--systems") -> Callable[[Any], Any]:
    """What makes the strategy of a setting.

    Numbers are parameters in their order, a word is one that becomes true. Example: tpo:4x3:learned is
    systems["tpo"](setting, 4, 3, learned=True).
    """
    name, *given = text.split(":")
    if name not in systems:
        raise UserError(f"{option} {text}: choose among {', '.join(systems)}")
    words = {word: True for word in given if word.isidentifier()}
    try:
        numbers = [int(number) for part in given if part not in words for number in part.split("x")]
        inspect.signature(systems[name]).bind(None, *numbers, **words)
    except (ValueError, TypeError) as error:
        usage = str(inspect.signature(systems[name]))
        raise UserError(f"{option} {text}: {name} takes {usage} after the setting, as in tpo:4x3:learned") from error
    return lambda setting: systems[name](setting, *numbers, **words)
