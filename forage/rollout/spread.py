"""Spread: how far apart the rewards of a group are, in the combination that training uses. Pure functions.

Training combines rewards over a whole batch, but a group is judged alone: flat or not as soon as it is played, and its
question's place in the pool until it comes up again. So each way to combine needs a definition for one group:

uniform   the episodes' weighted means
l2        the lengths of their weighted vectors
std, pca, each reward by itself, since the weights depend on the other groups of the batch (std, pca) or each reward is
gdpo      compared by itself (gdpo): flat if no reward with a weight varies; the spread is the root of the weighted mean
          of the rewards' variances
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from forage.agent.combination import Floats, Method, combine_rewards
from forage.agent.episode import Episode

EQUAL: Mapping[str, float] = {}  # all rewards count the same


def is_flat(group: Sequence[Episode], combine: Method = "uniform", weights: Mapping[str, float] = EQUAL) -> bool:
    """Whether all rewards are equal up to rounding, so that comparing the episodes teaches nothing."""
    values_NC, _ = compared(group, combine, weights)
    return bool((values_NC.max(axis=0) - values_NC.min(axis=0) < 1e-6).all())


def spread(group: Sequence[Episode], combine: Method = "uniform", weights: Mapping[str, float] = EQUAL) -> float:
    """Standard deviation of what is compared.

    Example: rewards (0, 1) and (1, 0): the means are equal, so 0 by uniform; each varies by .5, so .5 by std.
    """
    values_NC, weights_C = compared(group, combine, weights)
    if values_NC.shape[1] == 1:
        return float(np.std(values_NC[:, 0]))
    return float(np.sqrt(np.average(values_NC.var(axis=0), weights=weights_C)))


def compared(group: Sequence[Episode], combine: Method, weights: Mapping[str, float]) -> tuple[Floats, Floats]:
    """(N, C) values that are compared between the episodes, and the weight of each column.

    Only of the rewards that exist for the group's question.
    """
    if combine == "uniform":
        return np.array([[episode.reward] for episode in group]), np.ones(1)
    names = list(group[0].rewards)
    rewards_NR = np.array([[episode.rewards[name] for name in names] for episode in group])
    weights_R = np.array([weights.get(name, 1.0) for name in names])
    if combine == "l2":
        return combine_rewards(rewards_NR, "l2", weights_R.tolist())[:, None], np.ones(1)
    return rewards_NR[:, weights_R > 0], weights_R[weights_R > 0]
