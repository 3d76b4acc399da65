"""Playing: questions become episodes on disk, in one process or in several that share a folder through claims.

Rollouts and evaluations both play this way: claim a question, play it, write it to a file of one's own, look again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from asyncio import FIRST_COMPLETED as FIRST
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from forage.agent.episode import Episode, append_episodes, is_written
from forage.heartbeat import beat
from forage.rollout.claims import Claims


async def play_all(
    missing: Callable[[], Sequence[str]], play: Callable[[str], Awaitable[None]], claims: Claims, at_once: int,
    *, poll: float = 1.0,
) -> None:  # fmt: skip
    """Play what nobody else is playing, at most `at_once` questions at a time, and wait until none is missing.

    `missing` looks at the folder, so it also learns what others have written; `play` plays a question and writes it.
    """
    playing: dict[asyncio.Future[None], str] = {}
    keeper = asyncio.create_task(keep_fresh(claims, playing))
    try:
        while names := missing():
            beat()
            for name in names:
                if len(playing) < at_once and name not in playing.values() and claims.take(name):
                    playing[asyncio.ensure_future(play(name))] = name
            if not playing:  # others play the rest; if one of them dies, its claims expire
                await asyncio.sleep(poll)
                continue
            done, _ = await asyncio.wait(playing, timeout=poll, return_when=FIRST)
            for task in done:
                del playing[task]
                task.result()
    finally:
        ending = [keeper, *playing]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)  # until none of them plays or writes any more


async def keep_fresh(claims: Claims, playing: Mapping[Any, str]) -> None:
    while True:
        await asyncio.sleep(claims.lease / 4)
        for name in playing.values():
            with contextlib.suppress(OSError):  # of a file server, say; there are three more tries before it expires
                claims.refresh(name)


class EpisodeWriter:
    """Appends groups to a file of its own, `<worker>.jsonl`, which no earlier life of the worker has written to.

    What an earlier one wrote on another machine may not be seen here yet, and would be overwritten: then it is
    `<worker>~2.jsonl`, and so on.
    """

    def __init__(self, folder: Path, claims: Claims) -> None:
        self.folder, self.claims = folder, claims
        self.path: Path | None = None
        self.began = time.monotonic()

    def __call__(self, question_id: str, episodes: Sequence[Episode]) -> None:
        if not self.claims.holds(question_id):  # this worker was asleep so long that another one took over
            return
        self.path = self.path or self._new_file()
        into_plan = time.monotonic() - self.began
        append_episodes(self.path, [signed(episode, self.claims.worker, into_plan) for episode in episodes])

    def _new_file(self) -> Path:
        names = itertools.chain([self.claims.worker], (f"{self.claims.worker}~{n}" for n in itertools.count(2)))
        paths = (self.folder / f"{name}.jsonl" for name in names)
        return next(path for path in paths if not is_written(path) and self.claims.create(path, ""))


def signed(episode: Episode, worker: str, into_plan: float) -> Episode:
    """The episode with who played it, and how far that worker was into the plan by then."""
    return replace(episode, worker=worker, seconds=episode.seconds | {"into_plan": into_plan})
