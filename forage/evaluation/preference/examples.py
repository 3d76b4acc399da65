"""Examples: what the model learns from: rows of features with Q-values, and the pairs among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from forage.agent.combination import RewardFunction, reward_matrix
from forage.agent.episode import Episode
from forage.agent.protocol import Protocol
from forage.data.records import Question
from forage.evaluation.preference.features import Floats, Rows, features
from forage.evaluation.preference.model import Pairs
from forage.evaluation.preference.q_values import siblings_of
from forage.evaluation.scorers import unanswered

if TYPE_CHECKING:
    from forage.store.embedder import Embedder

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Played:
    """A training question and the episodes that answered it."""

    question: Question
    episodes: tuple[Episode, ...]


@dataclass(frozen=True, eq=False)
class Examples:
    """N candidates; those of one question and one depth were compared."""

    features_NF: Rows
    q_NR: Floats
    """Q-values by each of R rewards, NaN where there is no such reward."""
    question_N: Integers
    """Each candidate's question, by its number."""
    depth_N: Integers
    """Turns after which the candidate goes on; 0: finished."""

    def tensors(self) -> dict[str, NDArray[Any]]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def groups(self) -> list[Integers]:
        """The rows of candidates that were compared."""
        if not len(self.question_N):
            return []
        keys_N2 = np.stack([self.question_N, self.depth_N], axis=1)
        _, group_N = np.unique(keys_N2, axis=0, return_inverse=True)
        order = np.argsort(group_N.reshape(-1), kind="stable")
        bounds = np.flatnonzero(np.diff(group_N.reshape(-1)[order])) + 1
        return np.split(order, bounds)


def examples_of(
    several: Sequence[Played], embedder: Embedder, protocol: Protocol, functions: Mapping[str, RewardFunction]
) -> Examples:
    """The examples of some questions, numbered from 0. Rewards may see the reference answer, features may not."""
    rows, q_values, numbers, depths = [], [], [], []
    for number, played in enumerate(several):
        rewards_NR = reward_matrix(functions, played.episodes, [played.question] * len(played.episodes))
        for siblings in siblings_of(played.episodes, rewards_NR):
            rows.append(features(embedder, protocol, unanswered(played.question), siblings.episodes))
            q_values.append(siblings.q_NR)
            numbers += [number] * len(siblings.episodes)
            depths += [siblings.depth] * len(siblings.episodes)
    return Examples(np.concatenate(rows), np.concatenate(q_values), np.array(numbers), np.array(depths))


def joined(parts: Sequence[Examples], questions: Sequence[int]) -> Examples:
    """One after the other, the questions numbered on; `questions` is how many each part has."""
    starts = np.cumsum([0, *questions[:-1]])
    numbers = [part.question_N + start for part, start in zip(parts, starts, strict=True)]
    return Examples(
        np.concatenate([part.features_NF for part in parts]), np.concatenate([part.q_NR for part in parts]),
        np.concatenate(numbers), np.concatenate([part.depth_N for part in parts]),
    )  # fmt: skip


def chosen(examples: Examples, questions: Sequence[int]) -> Examples:
    """Those of these questions."""
    mine = np.isin(examples.question_N, questions)
    return Examples(**{name: array[mine] for name, array in examples.tensors().items()})


def combined(q_NR: Floats, weights_R: Floats) -> Floats:
    """(N,): weighted mean of the rewards that exist, NaN where none of a weight over 0 does.

    Example: (.2, .6) with weights 1 and 3 gives .5; (NaN, .6) gives .6.
    """
    held_NR = ~np.isnan(q_NR) * weights_R
    totals_N = held_NR.sum(axis=1)
    sums_N = np.where(np.isnan(q_NR), 0.0, q_NR) @ weights_R
    return np.where(totals_N > 0, sums_N / np.where(totals_N > 0, totals_N, 1.0), np.nan)


def pairs_of(examples: Examples, q_N: Floats, margin: float) -> Pairs:
    """Every two compared candidates whose Q-values are at least `margin` apart.

    Example: Q-values .9, .5 and .45 with margin .1 give the pairs (first, second) and (first, third).
    """
    better, worse = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for rows in examples.groups():
        apart_NN = q_N[rows][:, None] - q_N[rows][None, :]
        ahead, behind = np.nonzero((apart_NN >= margin) & (apart_NN > 0))  # NaN is neither
        better.append(rows[ahead])
        worse.append(rows[behind])
    better_P, worse_P = np.concatenate(better), np.concatenate(worse)
    return Pairs(better_P, worse_P, q_N[better_P] - q_N[worse_P])
