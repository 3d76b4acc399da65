"""Rewards: how well a search for a written query finds the relevant documents. Users can add their own."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from forage.agent.options import DEPTH
from forage.agent.prompts import final_query
from forage.agent.rewards import rank_score
from forage.arguments import imported
from forage.errors import UserError
from forage.extras.rewriter.actors import text_of
from forage.extras.rewriter.data import Row, Search
from forage.extras.rewriter.options import GAIN, RewriteOptions
from forage.metrics import ndcg, recall, reciprocal_rank

MEASURES: dict[str, Callable[[Sequence[str], Sequence[str], int], float]] = {
    "recall": lambda found, relevant, k: recall(found[:k], relevant),
    "ndcg": ndcg,
    "mrr": lambda found, relevant, k: reciprocal_rank(found[:k], relevant),
}


def nearness(found: Sequence[str], relevant: Sequence[str]) -> float:
    """Mean `rank_score` of the relevant documents: also the step from rank 40 to 12 counts, which recall@5 can't see.

    Example: one of two found at rank 10, the other not at all: (.5 + 0) / 2 = .25.
    """
    ranks = [place for place, doc_id in enumerate(found, 1) if doc_id in set(relevant)]
    return math.fsum(rank_score(rank) for rank in ranks) / len(relevant)


Reward = Callable[[str, Sequence[str]], float]
"""From the query that is searched for and the ids of the documents that answer it."""


class CustomRewardModel:
    """A reward that searches. Inherit it for a reward of your own, and select that with --reward module:Class.

    class Short(CustomRewardModel):
        def compute_reward(self, query, relevant_doc_ids):
            [found] = self.search([query])
            return recall(found, relevant_doc_ids) - 0.01 * len(query.split())

    `query` is the final text that is searched for.
    """

    def __init__(self, search: Search, k: int) -> None:
        self.search: Search = lambda queries: [found[:k] for found in search(queries)]
        self.k = k


def load_reward(name: str, search: Search, k: int) -> Reward:
    """A built-in reward by its name, or a user's class as module:Class: anything with a method compute_reward."""
    if name in MEASURES:
        return lambda query, relevant_doc_ids: MEASURES[name](search([query])[0], relevant_doc_ids, k)
    if name == GAIN:  # over the question's own, which the scorer subtracts
        return lambda query, relevant_doc_ids: nearness(search([query])[0][:DEPTH], relevant_doc_ids)
    if not all(name.partition(":")):
        raise UserError(f"--reward {name} is unknown; choose {', '.join([*MEASURES, GAIN])}, or give module:Class")
    reward: Any = imported("--reward", name)
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

    def __init__(self, reward: Reward, options: RewriteOptions, tokenizer: Any, over_question: bool = False) -> None:
        self.reward, self.options, self.tokenizer, self.over_question = reward, options, tokenizer, over_question
        self.episodes: list[Episode] = []

    def __call__(self, rows: Sequence[Row], responses: Sequence[Sequence[int]]) -> list[float]:
        self.episodes = [self._episode(row, tokens) for row, tokens in zip(rows, responses, strict=True)]
        return [episode.reward for episode in self.episodes]

    def _episode(self, row: Row, tokens: Sequence[int]) -> Episode:
        written = text_of(self.tokenizer, tokens, self.tokenizer.eos_token_id)
        searched = final_query(row.query, written, self.options.rewrite, self.options.query_weight)
        reward = float(self.reward(searched, list(row.relevant_doc_ids)))
        if self.over_question:
            reward -= self.reward(row.query, row.relevant_doc_ids)
        if not math.isfinite(reward):
            raise UserError(f"the reward is {reward} for the query {searched!r}; it must be a finite number")
        return Episode(row.query, written, searched, reward)
