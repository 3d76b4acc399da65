"""Options of a chat with a search agent. Imports nothing heavy, for --help."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from forage.agent.options import SearchOptions
from forage.engines.base import Sampling
from forage.engines.options import EngineOptions
from forage.errors import UserError, flag
from forage.store.options import StorePlace

DEFAULT_POLICY = "models/warm"


@dataclass(frozen=True)
class ChatOptions:
    """The chat."""

    policy: str | None = None
    """Whom to ask: a policy folder (its newest adapter), a merged model's folder, or a hub name (models/warm)."""
    run_dir: Path | None = None
    """Ask the newest adapter of this training run instead, or of the run in the folder that `make demo` left."""
    compare: tuple[str, ...] = ()
    """Ask two policies or runs, BEFORE and AFTER, the same questions, and show their answers side by side."""
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
        given = [name for name in ("policy", "run_dir", "compare", "base_url") if getattr(self, name)]
        if len(given) > 1:
            raise UserError(f"{' and '.join(map(flag, given))} each say whom to ask; give one of them")
        if self.compare and len(self.compare) != 2:
            raise UserError(f"--compare {' '.join(self.compare)}: give two policies or runs, the one before first")
        if self.base_url and not self.model:
            raise UserError(f"--base-url {self.base_url} needs the name of a model there; add --model NAME")
        if self.model and not self.base_url:
            raise UserError(f"--model {self.model} is a name at --base-url; for a folder or hub name give --policy")
        if self.base_url and not self.base_url.startswith(("http://", "https://")):
            raise UserError(f"--base-url {self.base_url}: give an address as http://HOST:PORT/v1")
        if self.question is not None and not self.question.strip():
            raise UserError('--question is empty; write one, as in --question "What is gout?", or leave it out')

    @property
    def sources(self) -> tuple[str, ...]:
        """The folders or hub names of the policies to ask; none with --base-url."""
        if self.base_url:
            return ()
        if self.compare:
            return tuple(map(run_of, self.compare))
        if self.run_dir:
            return (run_of(str(self.run_dir)),)
        return (self.policy or DEFAULT_POLICY,)

    @property
    def searched(self) -> Path:
        """The folder whose store is searched, unless --store names another."""
        return data_of(self.run_dir) if self.data is None and self.run_dir else self.data or Path("data")

    def check_run(self) -> None:
        """Refuse a --run-dir that is no run: it must not be taken for the name of a model."""
        if self.run_dir and not holds_policy(Path(run_of(str(self.run_dir)))):
            raise UserError(
                f"--run-dir {self.run_dir} has no model.json, so it is no training run; name one, or --policy"
            )


def holds_policy(folder: Path) -> bool:
    return (folder / "model.json").is_file()


def data_of(run_dir: Path) -> Path:
    """The data of a demo's folder, or that a run's run.json names, if it is on this machine; else the default."""
    if not holds_policy(run_dir) and (run_dir / "data").is_dir():
        return run_dir / "data"
    path = run_dir / "run.json"
    try:
        named = Path(json.loads(path.read_text())["options"]["rollout"]["data"])
    except FileNotFoundError:
        return Path("data")
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} does not say the run's data ({type(error).__name__}: {error}); give --data") from error
    return named if named.is_dir() else Path("data")


def run_of(source: str) -> str:
    """The run that a demo's folder holds; any other source as it is. Example: runs/demo gives runs/demo/run."""
    folder = Path(source)
    return str(folder / "run") if holds_policy(folder / "run") and not holds_policy(folder) else source
