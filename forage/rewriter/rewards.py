"""Rewards: how well a search for a written query finds the relevant documents. Users can add their own."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from forage.agent.prompts import final_query
from forage.arguments import users_class
from forage.errors import UserError, first_line
from forage.metrics import ndcg, recall, reciprocal_rank
from forage.rewriter.actors import text_of
from forage.rewriter.data import Row, Search
from forage.rewriter.options import RewriteOptions

MEASURES: dict[str, Callable[[Sequence[str], Sequence[str], int], float]] = {
    "recall": lambda found, relevant, k: recall(found, relevant),
    "ndcg": ndcg,
    "mrr": lambda found, relevant, k: reciprocal_rank(found, relevant),
}


class RewardModel(Protocol):
    """What --reward module:Class takes: any class with this method."""

    def compute_reward(self, query: str, relevant_doc_ids: Any) -> float: ...


class CustomRewardModel(ABC):
    """A reward that searches. Inherit it for a reward of your own, and select that with --reward module:Class.

    class Short(CustomRewardModel):
        def compute_reward(self, query, relevant_doc_ids):
            [found] = self.search([query])
            return recall(found, relevant_doc_ids) - 0.01 * len(query.split())
    """

    def __init__(self, search: Search, k: int) -> None:
        self.search, self.k = search, k

    @abstractmethod
    def compute_reward(self, query: str, relevant_doc_ids: Sequence[str]) -> float:
        """The reward of searching for `query`, which is the final text sent to the store."""


class Measured(CustomRewardModel):
    """One of MEASURES among the best k, in [0, 1]."""

    def __init__(self, search: Search, k: int, name: str) -> None:
        super().__init__(search, k)
        self.name = name

    def compute_reward(self, query: str, relevant_doc_ids: Sequence[str]) -> float:
        return MEASURES[self.name](self.search([query])[0], relevant_doc_ids, self.k)


def load_reward(name: str, search: Search, k: int) -> RewardModel:
    """A built-in reward by its name, or a user's class as module:Class."""
    if name in MEASURES:
        return Measured(search, k, name)
    if not all(name.partition(":")):
        raise UserError(f"--reward {name} is unknown; choose {', '.join(MEASURES)}, or give module:Class")
    reward: Any = users_class("--reward", name)
    if not (isinstance(reward, type) and callable(getattr(reward, "compute_reward", None))):
        raise UserError(f"--reward {name} must be a class with a method compute_reward(self, query, relevant_doc_ids)")
    arguments = (search, k) if issubclass(reward, CustomRewardModel) else ()
    try:
        made: RewardModel = reward(*arguments)
    except Exception as error:  # a user's class may raise anything; it is reported, not hidden
        raise UserError(f"--reward {name} can't be created: {type(error).__name__}: {first_line(error)}") from error
    return made


def checked_reward(model: RewardModel, query: str, relevant_doc_ids: Sequence[str]) -> float:
    """The reward of a query; if a user's class fails or returns no number, the error names class and query."""
    name = type(model).__name__
    try:
        value = float(model.compute_reward(query, list(relevant_doc_ids)))
    except UserError:
        raise
    except Exception as error:  # a user's code may raise anything; it is reported, not hidden
        what = f"{type(error).__name__}: {first_line(error)}"
        raise UserError(f"reward {name} raised {what} (query {query!r})") from error
    if not math.isfinite(value):
        raise UserError(f"reward {name} returned {value} for the query {query!r}; it must be a finite number")
    return value


@dataclass(frozen=True)
class Episode:
    """A question, what the policy wrote, the query that was searched, and its reward."""

    query: str
    written: str
    searched: str
    reward: float


class Scorer:
    """Rewards of sampled tokens; keeps the episodes of the last batch for display."""

    def __init__(self, model: RewardModel, options: RewriteOptions, tokenizer: Any) -> None:
        self.model, self.options, self.tokenizer = model, options, tokenizer
        self.episodes: list[Episode] = []

    def __call__(self, rows: Sequence[Row], responses: Sequence[Sequence[int]]) -> list[float]:
        self.episodes = [self._episode(row, tokens) for row, tokens in zip(rows, responses, strict=True)]
        return [episode.reward for episode in self.episodes]

    def _episode(self, row: Row, tokens: Sequence[int]) -> Episode:
        written = text_of(self.tokenizer, tokens, self.tokenizer.eos_token_id)
        searched = final_query(row.query, written, self.options.rewrite, self.options.query_weight)
        return Episode(row.query, written, searched, checked_reward(self.model, searched, row.relevant_doc_ids))
