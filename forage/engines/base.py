"""The interface of an engine, which samples tokens: requests in, samples out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from forage.arguments import TRUST, fixed
from forage.policy.manifest import PolicyManifest


class EngineError(Exception):
    """An engine gave up on a request: its episode ends with this cause, and the others continue."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are sampled."""

    temperature: float = 1.0
    """Sampling temperature; 0 always takes the likeliest token."""


def played_at(temperature: float) -> str:
    """In words."""
    return f"sampled at T {temperature:g}" if temperature else "answered greedily (T 0)"


@dataclass(frozen=True, slots=True)
class Request:
    """Tokens to continue, and how."""

    ids: tuple[int, ...]
    max_tokens: int
    stop_ids: tuple[int, ...]
    """Sampling one of these ends the sample, which includes it."""
    seed: int = 0
    sampling: Sampling = Sampling()
    episode: str = ""
    """Requests of the same episode go to where its earlier tokens are cached."""
    adapter: str = ""
    """The adapter that the episode began with: no other samples it. Empty: the one in use."""
    on_token: Callable[[int], None] | None = field(default=None, compare=False)
    """Is given each token as it is sampled, by engines that sample one after the other; others leave it alone."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The sampled tokens, each with its log-probability under the distribution it was drawn from."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Literal["stop", "length"]
    server: str = field(default="", compare=False)
    """Address of the server that sampled them, if one did."""


@dataclass(frozen=True)
class Job:
    """What an engine is opened for."""

    manifest: PolicyManifest
    """The policy whose base samples."""
    slots: int
    """Episodes that are played at once."""
    tokens: int
    """Most tokens of an episode."""
    sleeps: bool = False
    """Whether the caller lets the engine sleep between what it plays."""


class Engine:
    """Samples for many callers at once: each awaits its own request, and the engine batches what is waiting.

    Only `generate` must be written; the rest does nothing where an engine has no use for it.
    """

    adapter = "base"
    """Name of the adapter in use; 'base' without one."""
    exact = False
    """Equal seeds give bit-equal samples. Such an engine runs in this thread, so searches may, too."""

    @classmethod
    @asynccontextmanager
    async def open(cls, options: EngineOptions, job: Job) -> AsyncIterator[Engine]:
        """An engine for this job, which is closed when that is over. Override it where it needs a model or a server."""
        yield cls()

    async def generate(self, request: Request) -> Sample:
        raise NotImplementedError

    async def load_adapter(self, name: str, folder: Path) -> None:
        """Sample with this adapter, a PEFT folder, from now on. Episodes are signed with its name."""
        self.adapter = name

    def release(self, episode: str) -> None:
        """The episode is over: free what is cached for it."""

    async def sleep(self) -> None:
        """Nothing is played until `wake`: leave the GPU to a trainer."""

    async def wake(self) -> None:
        """Be ready to sample again."""


@dataclass(frozen=True)
class EngineOptions:
    """The sampling engine."""

    engine: Annotated[Literal["auto", "vllm", "local"] | str, TRUST] = "auto"
    """Sample from vLLM servers (vllm) or in this process (local). auto: from the servers if one answers, else in this
    process. module:name: by a subclass of forage.engines.base.Engine."""
    urls: Annotated[tuple[str, ...], TRUST] = ("http://127.0.0.1:8100",)
    """Addresses of the vLLM servers. All episodes of a question go to the same one. Their key is read from
    VLLM_API_KEY."""
    patience: float = fixed(300.0)
    """Seconds to keep retrying while no server answers, before the script stops."""
    timeout: float = fixed(300.0)
    """Seconds one request may take."""
