"""Options of a chat with a search agent. Imports nothing heavy, for --help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from forage.agent.options import SearchOptions
from forage.engines.base import EngineOptions, Sampling
from forage.errors import UserError
from forage.store.options import StoreAddress


@dataclass(frozen=True)
class ChatOptions:
    """The chat."""

    policy: str = "models/warm"
    """The model to ask: a policy or run folder (its newest adapter), a merged model's folder, or a hub name."""
    data: Path | None = None
    """Folder from data_prep.py with the store to search. Left out: the data of the run that --policy names, else
    data."""
    question: str | None = None
    """Ask this one question and exit. Left out: read questions from the terminal or from standard input."""
    web: int | None = None
    """Ask in a browser instead, at this port of this machine; 0: any free one."""
    engine: EngineOptions = EngineOptions(patience=10.0)
    search: SearchOptions = SearchOptions()
    address: StoreAddress = StoreAddress()
    sampling: Sampling = Sampling(temperature=0.0)
    seed: int = 0
    """Seed for sampling, with --temperature above 0."""

    def check(self) -> None:
        """Fail before anything is loaded."""
        self.address.check()
        if self.question is not None and not self.question.strip():
            raise UserError('--question is empty; write one, as in --question "What is gout?", or leave it out')
        if self.question is not None and self.web is not None:
            raise UserError("--question and --web: give one of the two")
