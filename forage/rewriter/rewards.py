"""Rewards: how well a search for a written query finds the relevant documents. Users can add their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from forage.agent.prompts import final_query
from forage.arguments import users_class
from forage.errors import UserError
from forage.metrics import ndcg, recall, reciprocal_rank
from forage.rewriter.actors import text_of
from forage.rewriter.data import Row, Search
from forage.rewriter.options import RewriteOptions

MEASURES: dict[str, Callable[[Sequence[str], Sequence[str], int], float]] = {
    "recall": lambda found, relevant, k: recall(found, relevant),
    "ndcg": ndcg,
    "mrr": lambda found, relevant, k: reciprocal_rank(found, relevant),
}

Reward = Callable[[str, Sequence[str]], float]
"""Of the query that is searched for and the ids of the documents that answer it."""


class CustomRewardModel:
    """A reward that searches. Inherit it for a reward of your own, and select that with --reward module:Class.

    class Short(CustomRewardModel):
        def compute_reward(self, query, relevant_doc_ids):
            [found] = self.search([query])
            return recall(found, relevant_doc_ids) - 0.01 * len(query.split())

    `query` is the final text that is searched for.
    """

    def __init__(self, search: Search, k: int) -> None:
        self.search, self.k = search, k


def load_reward(name: str, search: Search, k: int) -> Reward:
    """A built-in reward by its name, or a user's class as module:Class: anything with a method compute_reward."""
    if name in MEASURES:
        return lambda query, relevant_doc_ids: MEASURES[name](search([query])[0], relevant_doc_ids, k)
    if not all(name.partition(":")):
        raise UserError(f"--reward {name} is unknown; choose {', '.join(MEASURES)}, or give module:Class")
    reward: Any = users_class("--reward", name)
    if not (isinstance(reward, type) and callable(getattr(reward, "compute_reward", None))):
        raise UserError(f"--reward {name} must be a class with a method compute_reward(self, query, relevant_doc_ids)")
    made: Any = reward(search, k) if issubclass(reward, CustomRewardModel) else reward()
    return cast("Reward", made.compute_reward)


@dataclass(frozen=True)
class Episode:
    """A question, what the policy wrote, the query that was searched, and its reward."""

    query: str
    written: str
    searched: str
    reward: float


class Scorer:
    """Rewards of sampled tokens; keeps the episodes of the last batch for display."""

    def __init__(self, reward: Reward, options: RewriteOptions, tokenizer: Any) -> None:
        self.reward, self.options, self.tokenizer = reward, options, tokenizer
        self.episodes: list[Episode] = []

    def __call__(self, rows: Sequence[Row], responses: Sequence[Sequence[int]]) -> list[float]:
        self.episodes = [self._episode(row, tokens) for row, tokens in zip(rows, responses, strict=True)]
        return [episode.reward for episode in self.episodes]

    def _episode(self, row: Row, tokens: Sequence[int]) -> Episode:
        written = text_of(self.tokenizer, tokens, self.tokenizer.eos_token_id)
        searched = final_query(row.query, written, self.options.rewrite, self.options.query_weight)
        reward = float(self.reward(searched, list(row.relevant_doc_ids)))
        if not math.isfinite(reward):
            raise UserError(f"the reward is {reward} for the query {searched!r}; it must be a finite number")
        return Episode(row.query, written, searched, reward)
