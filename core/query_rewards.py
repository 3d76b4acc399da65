"""Rewards of a query: what a search with it found of what is relevant. A user's own are loaded by name."""

from __future__ import annotations

import importlib
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from core.errors import UserError, first_line

Search = Callable[[Sequence[str]], list[list[str]]]
"""Ids of the best documents for each query, best first, each once."""

# Of https://arxiv.org/abs/2503.00223 for literature search: least recall, reward.
TIERS = ((0.7, 5.0), (0.5, 4.0), (0.4, 3.0), (0.3, 1.0), (0.1, 0.5), (0.05, 0.1))
BELOW_TIERS = -3.5


def recall(found: Sequence[str], relevant: Sequence[str]) -> float:
    """Share of what is relevant that was found. Example: ([a, b], [b, c]) gives .5."""
    return len(set(found) & set(relevant)) / len(set(relevant)) if relevant else 0.0


def reciprocal_rank(found: Sequence[str], relevant: Sequence[str]) -> float:
    """One over the place of the first relevant one. Example: ([a, b], [b, c]) gives .5; none found, 0."""
    wanted = set(relevant)
    return next((1 / place for place, doc_id in enumerate(found, 1) if doc_id in wanted), 0.0)


def ndcg(found: Sequence[str], relevant: Sequence[str], k: int) -> float:
    """Gain 1 for each relevant one, discounted by log2(place + 1), over what the best order of k would have.

    Example: ([a, b], [b, c], 2) gives (1 / log2 3) / (1 + 1 / log2 3) = .387.
    """
    wanted = set(relevant)
    gained = math.fsum(1 / math.log2(place + 1) for place, doc_id in enumerate(found[:k], 1) if doc_id in wanted)
    best = math.fsum(1 / math.log2(place + 1) for place in range(1, min(k, len(wanted)) + 1))
    return gained / best if wanted else 0.0


def tier(value: float) -> float:
    """The reward of a recall in DeepRetrieval's steps. Example: .45 gives 3, .01 gives -3.5."""
    return next((reward for least, reward in TIERS if value >= least), BELOW_TIERS)


class CustomRewardModel(ABC):
    """What a reward is made by. A user's class inherits this, and is named by --reward module:Class.

    class Short(CustomRewardModel):
        def compute_reward(self, query, relevant_doc_ids):
            [found] = self.search([query])
            return recall(found, relevant_doc_ids) - 0.01 * len(query.split())
    """

    def __init__(self, search: Search, k: int) -> None:
        self.search, self.k = search, k

    @abstractmethod
    def compute_reward(self, query: str, relevant_doc_ids: Sequence[str]) -> float:
        """The reward of searching for `query`, which is what the store is asked, rewriting and all."""


class Recall(CustomRewardModel):
    """Recall among the best k, in [0, 1]."""

    def compute_reward(self, query: str, relevant_doc_ids: Sequence[str]) -> float:
        return recall(self.search([query])[0], relevant_doc_ids)


class NDCG(CustomRewardModel):
    """nDCG of the best k, in [0, 1]."""

    def compute_reward(self, query: str, relevant_doc_ids: Sequence[str]) -> float:
        return ndcg(self.search([query])[0], relevant_doc_ids, self.k)


class MRR(CustomRewardModel):
    """One over the place of the first relevant document, in [0, 1]."""

    def compute_reward(self, query: str, relevant_doc_ids: Sequence[str]) -> float:
        return reciprocal_rank(self.search([query])[0], relevant_doc_ids)


class Tiers(CustomRewardModel):
    """DeepRetrieval's steps of recall, in [-3.5, 5]; meant for a k of hundreds."""

    def compute_reward(self, query: str, relevant_doc_ids: Sequence[str]) -> float:
        return tier(recall(self.search([query])[0], relevant_doc_ids))


BUILT_IN: dict[str, type[CustomRewardModel]] = {"recall": Recall, "ndcg": NDCG, "mrr": MRR, "tiers": Tiers}


def load_reward(name: str, search: Search, k: int) -> CustomRewardModel:
    """A built-in reward by its name, or a class of the user's as module:Class."""
    if name in BUILT_IN:
        return BUILT_IN[name](search, k)
    module_name, _, class_name = name.partition(":")
    if not (module_name and class_name):
        raise UserError(f"--reward {name} is not known; choose {', '.join(BUILT_IN)}, or give module:Class")
    if "" not in sys.path:  # as for `python -m`: the user's module lies where the command is given
        sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except Exception as error:  # a user's module may raise anything; it is told on, not hidden
        raise UserError(f"--reward {name} can't be loaded: {type(error).__name__}: {first_line(error)}") from error
    if not (isinstance(found, type) and issubclass(found, CustomRewardModel)):
        raise UserError(f"--reward {name} must be a class that inherits core.query_rewards.CustomRewardModel")
    try:
        return found(search, k)
    except Exception as error:  # as above
        raise UserError(f"--reward {name} can't be made: {type(error).__name__}: {first_line(error)}") from error


def rewarded(model: CustomRewardModel, query: str, relevant_doc_ids: Sequence[str]) -> float:
    """The reward of one query; what a user's code raises, or gives that is no number, is told by its class."""
    name = type(model).__name__
    try:
        value = float(model.compute_reward(query, relevant_doc_ids))
    except UserError:
        raise
    except Exception as error:  # a user's code may raise anything; it is told on, not hidden
        what = f"{type(error).__name__}: {first_line(error)}"
        raise UserError(f"reward {name} raised {what} (query {query!r})") from error
    if not math.isfinite(value):
        raise UserError(f"reward {name} gave {value} for the query {query!r}; it must be a number")
    return value
