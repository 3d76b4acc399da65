"""Engines: what samples tokens. One small interface, and what every engine must keep to."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from forage.errors import UserError


class EngineError(Exception):
    """An engine gave up on a request: the episode ends with that cause, and others go on."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """From which distribution tokens are drawn."""

    temperature: float = 1.0
    """Divides the logits; 0 takes the likeliest token each time."""
    top_p: float = 1.0
    """Draw from the likeliest tokens of this much probability only."""
    top_k: int = 0
    """Draw from so many likeliest tokens only; 0 for all."""
    allow_truncated: bool = False
    """Accept top_p and top_k in training all the same. The trainer's ratios are then wrong: it computes each token's
    probability among all tokens, where it was drawn among a few."""

    def check(self) -> None:
        if self.temperature < 0 or not 0 < self.top_p <= 1 or self.top_k < 0:
            raise UserError("--temperature and --top-k must be at least 0, --top-p over 0 and at most 1")
        if (self.top_p < 1 or self.top_k) and not self.allow_truncated:
            raise UserError("--top-p and --top-k make the log-probabilities wrong; leave them, or --allow-truncated")


@dataclass(frozen=True, slots=True)
class Request:
    """Tokens to go on from."""

    ids: tuple[int, ...]
    max_tokens: int
    stop_ids: tuple[int, ...]
    """Sampling one of these ends it; it is part of what was sampled."""
    seed: int = 0
    sampling: Sampling = field(default_factory=Sampling)
    episode: str = ""
    """Requests of one episode go to where its earlier tokens are held already."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What was sampled: tokens, and of each its log-probability under the distribution it was drawn from."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Literal["stop", "length"]


class Engine(Protocol):
    """Samples for many requests at once: callers await their own, the engine makes batches of what is waiting."""

    @property
    def adapter(self) -> str:
        """Name of the adapter that samples now; 'base' without one."""

    async def generate(self, request: Request) -> Sample: ...

    async def load_adapter(self, name: str, folder: Path) -> None:
        """From here on sample with this adapter, given as a PEFT folder."""

    def release(self, episode: str) -> None:
        """An episode is over; what is held for it can go."""
