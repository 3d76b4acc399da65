"""RolloutView: the progress of a rollout or of an evaluation, which is one."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from forage.agent.combination import names_of_rewards
from forage.agent.episode import Episode
from forage.progress import Progress


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

    def figures(self) -> Mapping[str, str]:
        count = max(1, len(self.episodes))
        shown = {
            "episodes": f"{len(self.episodes)} of {self.total}",
            "tokens/s": rates(self.episodes, max(1e-9, time.monotonic() - self.started)),
            "searches": f"{sum(len(episode.searches) for episode in self.episodes) / count:.2f}",
            "ended by": ", ".join(f"{stop} {n}" for stop, n in Counter(e.stop for e in self.episodes).most_common()),
        }
        for name in names_of_rewards(self.rewarded_episodes):
            values = [episode.rewards[name] for episode in self.rewarded_episodes if name in episode.rewards]
            shown[name] = f"{sum(values) / len(values):.3f}"
        return shown


def rates(episodes: Sequence[Episode], elapsed: float) -> str:
    """Sampled tokens per second, and of each server where there are several. Example: 240 (a:8100 120, b:8100 120)."""
    by_server: Counter[str] = Counter()
    for episode in episodes:
        by_server[episode.server] += episode.sampled
    each = ", ".join(f"{server} {tokens / elapsed:,.0f}" for server, tokens in sorted(by_server.items()))
    return f"{by_server.total() / elapsed:,.0f}" + (f" ({each})" if len(by_server) > 1 else "")
