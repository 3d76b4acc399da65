"""Combination: an episode's named rewards become one. Pure functions of arrays.

Shapes: N episodes, R rewards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from forage.agent.episode import Episode
from forage.data.records import Question
from forage.errors import UserError

if TYPE_CHECKING:
    from forage.store.embedder import Embedder

Floats = NDArray[np.float64]
RewardFunction = Callable[[Sequence[Episode], Sequence[Question]], Sequence[float]]
Method = Literal["uniform", "std", "pca", "l2", "gdpo"]

# Added to a deviation before dividing by it, as in TRL: rewards that differ by rounding alone must not become
# advantages of 1 and -1.
DEVIATION_FLOOR = 1e-4


class MakeRewards(Protocol):
    """Returns the reward functions by name, as grpo_rollout.get_reward_functions does."""

    def __call__(self, embedder: Embedder) -> Mapping[str, RewardFunction]: ...


def reward_matrix(
    functions: Mapping[str, RewardFunction], episodes: Sequence[Episode], questions: Sequence[Question]
) -> Floats:
    """(N, R): each function's value for each episode; a function that fails stops the run with its name."""
    columns = []
    for name, function in functions.items():
        try:
            column: Any = np.asarray(function(episodes, questions), dtype=np.float64)
        except Exception as error:  # a user's code may raise anything; it is reported, not hidden
            raise UserError(f"reward {name!r} raised {type(error).__name__}: {error}") from error
        if column.shape != (len(episodes),):
            raise UserError(f"reward {name!r} gave {column.shape} values for {len(episodes)} episodes")
        if not np.isfinite(column).all():
            bad = episodes[int(np.flatnonzero(~np.isfinite(column))[0])].id
            raise UserError(f"reward {name!r} gave {column[~np.isfinite(column)][0]} for episode {bad}")
        columns.append(column)
    return np.stack(columns, axis=1)


def combine_rewards(
    rewards_NR: Floats, method: Method = "uniform", weights_R: Sequence[float] | None = None,
    groups_N: Sequence[Any] | None = None,
) -> Floats:  # fmt: skip
    """(N,): one reward per episode. `weights_R` multiply the method's own weights; by default all are 1.

    uniform   weighted mean. [[1, 0], [0, 0]] with weights 3 and 1 gives .75 and 0.
    std       mean weighted by each reward's standard deviation over the batch: a reward on which all episodes agree
              can't tell them apart and has weight 0. If none varies, same as uniform.
    pca       mean weighted by each reward's absolute loading in the first principal component of the standardised
              rewards (what they have in common); rewards that don't vary have weight 0. If fewer than two vary, same
              as uniform.
    l2        length of the weighted vector divided by that of all ones: one high reward counts more than the same sum
              spread over several. [[1, 0]] gives .707.
    gdpo      each reward normalised to mean 0 and deviation 1 within its group, then their weighted sum, normalised
              over the batch, https://arxiv.org/abs/2601.05242. Needs `groups_N`; the result is an advantage rather than
              a reward.
    """
    count = rewards_NR.shape[1]
    weights = np.ones(count) if weights_R is None else np.asarray(weights_R, np.float64)
    if weights.shape != (count,) or (weights < 0).any() or weights.sum() == 0:
        raise UserError(f"reward weights {list(weights)} must be {count} numbers of at least 0, not all 0")
    if method == "l2":
        return np.asarray(np.linalg.norm(rewards_NR * weights, axis=1) / np.linalg.norm(weights))
    if method == "gdpo":
        if groups_N is None:
            raise UserError("combining rewards by gdpo needs each episode's group")
        sums_N1 = (_within_groups(rewards_NR, groups_N) * weights).sum(axis=1, keepdims=True)
        return _standardised(sums_N1, DEVIATION_FLOOR)[:, 0]
    if method == "std":
        weights = weights * _or_ones(_deviations(rewards_NR), weights)
    elif method == "pca":
        weights = weights * _or_ones(first_component(rewards_NR), weights)
    elif method != "uniform":
        raise UserError(f"unknown way {method!r} to combine rewards; choose uniform, std, pca, l2 or gdpo")
    return np.asarray(rewards_NR @ weights / weights.sum())


def first_component(rewards_NR: Floats) -> Floats:
    """(R,) absolute loadings of the standardised rewards' first principal component; zeros if fewer than two vary.

    A component's sign is arbitrary, and a reward must never count against itself, so loadings are made positive.
    Example: two equal columns have equal loadings: [[0, 0], [1, 1]] gives .707 and .707.
    """
    varying = _deviations(rewards_NR) > 0
    if varying.sum() < 2:
        return np.zeros(rewards_NR.shape[1])
    loadings = np.zeros(rewards_NR.shape[1])
    _, _, components = np.linalg.svd(_standardised(rewards_NR[:, varying]), full_matrices=False)
    loadings[varying] = np.abs(components[0])
    return loadings


def scored(episodes: Sequence[Episode], names: Sequence[str], rewards_NR: Floats, combined_N: Floats) -> list[Episode]:
    """The episodes with their rewards by name and their combined reward."""
    return [
        replace(episode, rewards=dict(zip(names, map(float, row), strict=True)), reward=float(total))
        for episode, row, total in zip(episodes, rewards_NR, combined_N, strict=True)
    ]


def _deviations(values_NR: Floats) -> Floats:
    """Standard deviations, exactly 0 where all values are equal, whatever rounding does to their mean."""
    varies = values_NR.max(axis=0, initial=-np.inf) > values_NR.min(axis=0, initial=np.inf)
    return np.where(varies, values_NR.std(axis=0) if len(values_NR) else 0.0, 0.0)


def _standardised(values_NR: Floats, floor: float = 0.0) -> Floats:
    """Each column with mean 0 and deviation 1, or less where the deviation is near the floor; zeros where it is 0."""
    deviations = _deviations(values_NR)
    divisors = np.where(deviations > 0, deviations + floor, 1)
    return np.asarray(np.where(deviations > 0, (values_NR - values_NR.mean(axis=0)) / divisors, 0))


def _within_groups(values_NR: Floats, groups_N: Sequence[Any]) -> Floats:
    groups = np.unique(np.asarray(groups_N), return_inverse=True)[1]
    result = np.zeros_like(values_NR)
    for group in range(groups.max(initial=-1) + 1):
        result[groups == group] = _standardised(values_NR[groups == group], DEVIATION_FLOOR)
    return result


def _or_ones(found: Floats, weights: Floats) -> Floats:
    """The weights that a method found, or equal ones if those would weigh every reward by 0."""
    return found if (found * weights).sum() > 0 else np.ones_like(found)
