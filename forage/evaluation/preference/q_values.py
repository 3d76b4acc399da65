"""Q-values: how good a turn was, judged by the rewards of all episodes that went on from it.

Paper: rStar-Math, https://arxiv.org/abs/2501.04519: a step's Q-value is the mean outcome of the rollouts through it.

Episodes of a question make a tree: those that share their tokens up to where a turn's results end, share a node there.
So a tree that tree_search.py stored is found again, and independent samples make one too, which branches where they
first differ. Example: two episodes begin with the query "gout" and are rewarded .2 and .6, a third begins with "toe"
and is rewarded 1. After the first turn, "gout" has Q .4 and "toe" has Q 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from forage.agent.episode import Episode

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Siblings:
    """Episodes of one question that are compared: its finished ones, or all that go on after as many turns."""

    depth: int
    """Turns after which they go on; 0: finished."""
    episodes: tuple[Episode, ...]
    q_NR: Floats
    """Their Q-values by each of R rewards; NaN where the question does not have that reward."""


def siblings_of(episodes: Sequence[Episode], rewards_NR: Floats) -> list[Siblings]:
    """What is compared among a question's finished episodes and the turns that led to them."""
    deepest = max((len(episode.turns) for episode in episodes), default=0)
    return [
        Siblings(0, tuple(episodes), rewards_NR),
        *(siblings_at(depth, episodes, rewards_NR) for depth in range(1, deepest)),
    ]


def siblings_at(depth: int, episodes: Sequence[Episode], rewards_NR: Floats) -> Siblings:
    """The nodes after `depth` turns, each with the mean reward of the finished episodes below it."""
    below: dict[tuple[int, ...], list[int]] = {}
    for number, episode in enumerate(episodes):
        if len(episode.turns) > depth:
            below.setdefault(episode.ids[: episode.turns[depth].start], []).append(number)
    nodes = tuple(cut_after(episodes[numbers[0]], depth) for numbers in below.values())
    return Siblings(depth, nodes, np.stack([rewards_NR[numbers].mean(axis=0) for numbers in below.values()]))


def cut_after(episode: Episode, turns: int) -> Episode:
    """The episode as it was when so many turns, and their results, were there: what EpisodeBuilder.so_far gives."""
    end = episode.turns[turns].start
    return replace(
        episode, ids=episode.ids[:end], mask=episode.mask[:end], logprobs=episode.logprobs[:end],
        credits=episode.credits[:end], turns=episode.turns[:turns],
        searches=tuple(search for search in episode.searches if search.turn < turns),
        uses=tuple(use for use in episode.uses if use.turn < turns), answer="", stop="search", transcript="",
        rewards={}, reward=0.0,
    )  # fmt: skip
