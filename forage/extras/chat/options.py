"""Options of a chat with a search agent. Imports nothing heavy, for --help."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from forage.agent.options import SearchOptions
from forage.engines.base import EngineOptions, Sampling
from forage.errors import UserError
from forage.store.options import StorePlace


@dataclass(frozen=True)
class ChatOptions:
    """The chat."""

    policy: str = "models/warm"
    """The model to ask: a policy or run folder (its newest adapter), a merged model's folder, or a hub name."""
    base_url: str = ""
    """Ask a model with tool calling at this OpenAI-compatible address instead, http://HOST:PORT/v1. Its key is read
    from OPENAI_API_KEY."""
    model: str = ""
    """Name of the model at --base-url."""
    data: Path | None = None
    """Folder from data_prep.py with the store to search. Left out: the data of the run that --policy names, else
    data."""
    question: str | None = None
    """Ask this one question and exit. Left out: read questions from the terminal or from standard input."""
    engine: EngineOptions = field(default_factory=lambda: EngineOptions(patience=10.0))
    search: SearchOptions = field(default_factory=SearchOptions)
    place: StorePlace = field(default_factory=StorePlace)
    sampling: Sampling = field(default_factory=lambda: Sampling(temperature=0.0))
    seed: int = 0
    """Seed for sampling, with --temperature above 0."""

    def check(self) -> None:
        """Fail before anything is loaded."""
        self.sampling.check()
        self.place.check()
        if bool(self.base_url) != bool(self.model):
            raise UserError("--base-url and --model go together: an address, and the name of a model there")
        if self.question is not None and not self.question.strip():
            raise UserError('--question is empty; write one, as in --question "What is gout?", or leave it out')
        if self.base_url and self.search.force_search:
            raise UserError("--force-search begins a turn token by token, which --base-url can't; leave it out")
