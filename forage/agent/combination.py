"""Combination: an episode's named rewards become one. Pure functions of arrays.

Shapes: N episodes, R rewards. A reward that does not exist for an episode's question (there is no reference answer to
compare with) is NaN in the arrays and absent from `Episode.rewards`: it counts neither for nor against the episode.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from forage.agent.episode import Episode
from forage.data.records import Question
from forage.errors import UserError

if TYPE_CHECKING:
    from forage.agent.searcher import Searcher
    from forage.store.embedder import Embedder

Floats = NDArray[np.float64]
RewardFunction = Callable[[Sequence[Episode], Sequence[Question]], Sequence[float | None]]
ROUNDING = 1e-6  # a mean of ones may come out a little over 1
Method = Literal["uniform", "std", "pca", "l2"]


class MakeRewards(Protocol):
    """Returns the reward functions by name, as grpo_rollout.get_reward_functions does.

    One without the parameter `searcher` is taken too (`rewards_of`).
    """

    def __call__(self, embedder: Embedder, searcher: Searcher) -> Mapping[str, RewardFunction]: ...


def rewards_of(make: MakeRewards, embedder: Embedder, searcher: Searcher) -> Mapping[str, RewardFunction]:
    """The reward functions by name; those of a `make` that needs no searcher are made without."""
    more: dict[str, Any] = {"searcher": searcher} if "searcher" in inspect.signature(make).parameters else {}
    return make(embedder, **more)


def reward_matrix(
    functions: Mapping[str, RewardFunction], episodes: Sequence[Episode], questions: Sequence[Question]
) -> Floats:
    """(N, R): each function's value for each episode, NaN where it gave None.

    A function that fails stops the run with its name, as does a value that is no number from 0 to 1.
    """
    columns = [_column(name, function, episodes, questions) for name, function in functions.items()]
    return np.stack(columns, axis=1)


def _column(name: str, function: RewardFunction, episodes: Sequence[Episode], questions: Sequence[Question]) -> Floats:
    try:
        given = function(episodes, questions)
        column: Any = np.asarray(given, dtype=np.float64)  # None becomes NaN
    except UserError as error:
        raise UserError(f"reward {name!r}: {error}") from error
    except Exception as error:  # a user's code may raise anything; it is reported, not hidden
        raise UserError(f"reward {name!r} raised {type(error).__name__}: {error}") from error
    if column.shape != (len(episodes),):
        raise UserError(f"reward {name!r} gave {column.shape} values for {len(episodes)} episodes")
    absent = np.array([value is None for value in given], dtype=bool)
    wrong = ~absent & ~((column >= -ROUNDING) & (column <= 1 + ROUNDING))
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        raise UserError(
            f"reward {name!r} gave {column[first]} for episode {episodes[first].id}; scale it to lie between 0 and 1, "
            "and return None where it does not exist"
        )
    exists = {episode.question_id: not missing for episode, missing in zip(episodes, absent, strict=True)}
    for episode, missing in zip(episodes, absent, strict=True):
        if exists[episode.question_id] == missing:
            raise UserError(
                f"reward {name!r} gave None for some episodes of question {episode.question_id} only, which can't be "
                "compared with the others; whether a reward exists must depend on the question alone"
            )
    return np.asarray(column.clip(0, 1))


def weights_by_name(names: Iterable[str], given: Sequence[float]) -> dict[str, float]:
    """The weight of each reward, from --weights; 1 each if none is given."""
    names = list(names)
    weights = dict(zip(names, map(float, given or [1.0] * len(names)), strict=False))
    if len(given or names) != len(names) or min(weights.values()) < 0 or not sum(weights.values()):
        raise UserError(
            f"--weights {' '.join(f'{weight:g}' for weight in given)} must be {len(names)} numbers of at least 0, not "
            f"all 0: the weights of {', '.join(names)}"
        )
    return weights


def names_of_rewards(episodes: Iterable[Episode]) -> list[str]:
    """The rewards that any of the episodes has."""
    return list(dict.fromkeys(name for episode in episodes for name in episode.rewards))


def combine_rewards(rewards_NR: Floats, method: Method = "uniform", weights_R: Sequence[float] | None = None) -> Floats:
    """(N,): one reward per episode. `weights_R` multiply the method's own weights; by default all are 1.

    An episode that lacks a reward is combined from the others: that reward's weight is 0 for it.

    uniform   weighted mean. [[1, 0], [0, 0]] with weights 3 and 1 gives .75 and 0.
    std       mean weighted by each reward's standard deviation over the batch: a reward on which all episodes agree
              can't tell them apart and has weight 0. If none varies, same as uniform.
    pca       mean weighted by each reward's absolute loading in the first principal component of the standardised
              rewards (what they have in common); rewards that don't vary have weight 0. If fewer than two vary, same
              as uniform. A missing reward counts as its column's mean.
    l2        length of the weighted vector divided by that of all ones: one high reward counts more than the same sum
              spread over several. [[1, 0]] gives .707.

    An episode whose existing rewards have no weight by std or pca is combined by uniform.
    """
    count = rewards_NR.shape[1]
    weights = np.ones(count) if weights_R is None else np.asarray(weights_R, np.float64)
    if weights.shape != (count,) or (weights < 0).any() or weights.sum() == 0:
        given = " ".join(f"{weight:g}" for weight in weights)
        raise UserError(f"reward weights {given} must be {count} numbers of at least 0, not all 0 (--weights)")
    exists_NR = ~np.isnan(rewards_NR)
    if not (exists_NR @ weights).all():
        raise UserError(
            "an episode's question has no reward of a weight over 0; give such a weight to a reward that every "
            "question has, or leave out the questions without a reference answer"
        )
    given_NR = np.where(exists_NR, rewards_NR, 0.0)
    if method == "l2":
        lengths_N = [np.linalg.norm(weights[exists_R]) for exists_R in exists_NR]
        return np.asarray(np.linalg.norm(given_NR * weights, axis=1) / np.array(lengths_N))
    uniform_N = given_NR @ weights / _totals(exists_NR, weights)
    if method == "uniform":
        return np.asarray(uniform_N)
    if method not in ("std", "pca"):
        raise UserError(f"unknown way {method!r} to combine rewards; choose uniform, std, pca or l2")
    found = _deviations(rewards_NR) if method == "std" else first_component(rewards_NR)
    weights = weights * _or_ones(found, weights)
    totals_N = _totals(exists_NR, weights)
    return np.where(totals_N > 0, given_NR @ weights / np.where(totals_N > 0, totals_N, 1.0), uniform_N)


def first_component(rewards_NR: Floats) -> Floats:
    """(R,) absolute loadings of the standardised rewards' first principal component; zeros if fewer than two vary.

    A component's sign is arbitrary, and a reward must never count against itself, so loadings are made positive.
    Example: two equal columns have equal loadings: [[0, 0], [1, 1]] gives .707 and .707.
    """
    varying = _deviations(rewards_NR) > 0
    rewards_NR = _filled(rewards_NR)
    if varying.sum() < 2:
        return np.zeros(rewards_NR.shape[1])
    loadings = np.zeros(rewards_NR.shape[1])
    chosen_NR = rewards_NR[:, varying]
    standardised_NR = (chosen_NR - chosen_NR.mean(axis=0)) / _deviations(chosen_NR)
    _, _, components = np.linalg.svd(standardised_NR, full_matrices=False)
    loadings[varying] = np.abs(components[0])
    return loadings


def scored(episodes: Sequence[Episode], names: Sequence[str], rewards_NR: Floats, combined_N: Floats) -> list[Episode]:
    """The episodes with their combined reward and, by name, those rewards that exist."""
    return [
        replace(
            episode,
            rewards={name: float(value) for name, value in zip(names, row, strict=True) if not np.isnan(value)},
            reward=float(total),
        )
        for episode, row, total in zip(episodes, rewards_NR, combined_N, strict=True)
    ]


def _deviations(values_NR: Floats) -> Floats:
    """Standard deviations, exactly 0 where all values are equal, whatever rounding does to their mean.

    Of a column with NaN, that of its other values.
    """
    if np.isnan(values_NR).any():
        return np.concatenate([_deviations(column[~np.isnan(column)][:, None]) for column in values_NR.T])
    varies = values_NR.max(axis=0, initial=-np.inf) > values_NR.min(axis=0, initial=np.inf)
    return np.where(varies, values_NR.std(axis=0) if len(values_NR) else 0.0, 0.0)


def _filled(values_NR: Floats) -> Floats:
    """The values with each NaN replaced by the mean of its column's others, which changes no mean."""
    counts_R = np.maximum((~np.isnan(values_NR)).sum(axis=0), 1)
    return np.where(np.isnan(values_NR), np.nansum(values_NR, axis=0) / counts_R, values_NR)


def _totals(exists_NR: NDArray[np.bool_], weights: Floats) -> Floats:
    """(N,): the weight of each episode's rewards."""
    return np.where(exists_NR.all(axis=1), weights.sum(), exists_NR @ weights)


def _or_ones(found: Floats, weights: Floats) -> Floats:
    """The weights that a method found, or equal ones if those would weigh every reward by 0."""
    return found if (found * weights).sum() > 0 else np.ones_like(found)
