"""Playing: questions become episodes on disk, in one process or in several that share a folder through claims.

Rollouts and evaluations both play this way: claim a question, play it, write it to a file of one's own, look again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from asyncio import FIRST_COMPLETED as FIRST
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from forage.agent.combination import names_of_rewards
from forage.agent.episode import Episode, append_episodes, is_written
from forage.heartbeat import beat
from forage.progress import Progress
from forage.rollout.claims import Claims

T = TypeVar("T")


async def play_all(
    missing: Callable[[], Sequence[str]], play: Callable[[str], Awaitable[T]], write: Callable[[str, T], None],
    claims: Claims, at_once: int, *, poll: float = 1.0,
) -> None:  # fmt: skip
    """Play what nobody else is playing, at most `at_once` questions at a time, and wait until none is missing.

    `missing` looks at the folder, so it also learns what others have written; `play` plays a question, and `write` is
    called with the result if no other process has taken the question over.
    """
    playing: dict[asyncio.Future[T], str] = {}
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
            # In the order they were begun, and what was played is written before an error ends it all.
            for task in sorted((task for task in playing if task in done), key=failed):
                name, result = playing.pop(task), task.result()
                if claims.holds(name):  # not if this process was asleep so long that another one took over
                    write(name, result)
    finally:
        ending: list[asyncio.Future[Any]] = [keeper, *playing]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)  # until none of them plays or writes any more


def failed(task: asyncio.Future[Any]) -> bool:
    return task.exception() is not None


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

    def __init__(self, folder: Path, claims: Claims, check: Callable[[], None] = lambda: None) -> None:
        self.folder, self.claims, self.check = folder, claims, check
        self.path: Path | None = None

    def __call__(self, question_id: str, episodes: Sequence[Episode]) -> None:
        self.check()
        self.path = self.path or self._new_file()
        append_episodes(self.path, [replace(episode, worker=self.claims.worker) for episode in episodes])

    def _new_file(self) -> Path:
        names = itertools.chain([self.claims.worker], (f"{self.claims.worker}~{n}" for n in itertools.count(2)))
        paths = (self.folder / f"{name}.jsonl" for name in names)
        return next(path for path in paths if not is_written(path) and self.claims.create(path, ""))


class RolloutView(Progress):
    """Counts episodes as they end."""

    def __init__(self, title: str, total: int, *, shown: bool = True) -> None:
        super().__init__(title, shown=shown)
        self.total = total
        self.episodes: list[Episode] = []
        self.rewarded_episodes: list[Episode] = []

    def played(self, episode: Episode) -> None:
        """Count a finished episode."""
        self.episodes.append(episode)
        self.changed()

    def ended(self, playing: asyncio.Future[Episode]) -> None:
        """Count an episode that has been played, unless playing it failed."""
        if not playing.cancelled() and not playing.exception():
            self.played(playing.result())

    def rewarded(self, episodes: Sequence[Episode]) -> None:
        """Add episodes with their rewards to the means."""
        self.rewarded_episodes += episodes
        self.changed()

    def complete(self) -> bool:
        """Then rewards may still come, which the last line has; more episodes are those of spare questions."""
        return len(self.episodes) == self.total

    def figures(self) -> Mapping[str, str]:
        count = max(1, len(self.episodes))
        shown = {
            "episodes": f"{len(self.episodes)} of {self.total}",
            "tokens/s": f"{sum(e.sampled for e in self.episodes) / max(1e-9, time.monotonic() - self.started):,.0f}",
            "searches": f"{sum(len(episode.searches) for episode in self.episodes) / count:.2f}",
            "ended by": ", ".join(f"{stop} {n}" for stop, n in Counter(e.stop for e in self.episodes).most_common()),
        }
        for name in names_of_rewards(self.rewarded_episodes):
            values = [episode.rewards[name] for episode in self.rewarded_episodes if name in episode.rewards]
            shown[name] = f"{sum(values) / len(values):.3f}"
        return shown
