"""Options of a chat with a search agent. Imports nothing heavy, for --help."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from forage.agent.options import SearchOptions
from forage.engines.base import Sampling
from forage.engines.options import EngineOptions
from forage.errors import UserError
from forage.store.options import StorePlace


@dataclass(frozen=True)
class ChatOptions:
    """The chat."""

    policy: tuple[str, ...] = ("models/warm",)
    """Whom to ask: a policy or run folder (its newest adapter), the folder that `make demo` left, a merged model's
    folder, or a hub name. Two of them answer the same questions side by side."""
    base_url: str = ""
    """Ask a model with tool calling behind this OpenAI-compatible address instead, http://HOST:PORT/v1; its key is read
    from the environment, OPENAI_API_KEY."""
    model: str = ""
    """The model's name at --base-url."""
    data: Path | None = None
    """Folder with the store that is searched, as data_prep.py wrote it (data; of a run, the one it learns from)."""
    question: str | None = None
    """Ask this one question and exit. Without it, questions are read from the terminal, or from standard input."""
    engine: EngineOptions = field(default_factory=lambda: EngineOptions(patience=10.0))
    search: SearchOptions = field(default_factory=SearchOptions)
    place: StorePlace = field(default_factory=StorePlace)
    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=0.0))
    seed: int = 0
    """Seed of sampling, with --temperature over 0."""

    def check(self) -> None:
        """Fail before anything is loaded."""
        self.sampling.check()
        self.place.check()
        if len(self.policy) not in (1, 2):
            raise UserError(f"--policy {' '.join(self.policy)}: give one policy, or two to compare")
        if bool(self.base_url) != bool(self.model):
            raise UserError("--base-url and --model go together: an address, and the name of a model there")
        if self.base_url and not self.base_url.startswith(("http://", "https://")):
            raise UserError(f"--base-url {self.base_url}: give an address as http://HOST:PORT/v1")
        if self.question is not None and not self.question.strip():
            raise UserError('--question is empty; write one, as in --question "What is gout?", or leave it out')

    @property
    def sources(self) -> tuple[str, ...]:
        """The folders or hub names of the policies to ask; none with --base-url."""
        return () if self.base_url else tuple(map(run_of, self.policy))

    @property
    def searched(self) -> Path:
        """The folder whose store is searched, unless --store names another."""
        return self.data or data_of(Path(self.policy[0]))


def run_of(source: str) -> str:
    """The run that a demo's folder holds; any other source as it is. Example: runs/demo gives runs/demo/run."""
    folder = Path(source)
    return str(folder / "run") if (folder / "run" / "model.json").is_file() else source


def data_of(folder: Path) -> Path:
    """The data of a demo's folder, or that a run learns from, if it is on this machine; else the default."""
    from forage.rollout.agreement import read_run

    if (folder / "run" / "model.json").is_file() and (folder / "data").is_dir():
        return folder / "data"
    run = read_run(folder)
    named = Path(run.options["rollout"]["data"]) if run else Path("data")
    return named if named.is_dir() else Path("data")
