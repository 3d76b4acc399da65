"""Rewards of a query: what a search with it found of what is relevant. A user's own are loaded by name."""

from __future__ import annotations

import importlib
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from forage.agent.prompts import final_query
from forage.errors import UserError, first_line
from forage.metrics import ndcg, recall, reciprocal_rank
from forage.rewriter.actors import text_of
from forage.rewriter.options import RewriteOptions
from forage.rewriter.ppo import Score
from forage.rewriter.rewrites import Row

Search = Callable[[Sequence[str]], list[list[str]]]
"""Ids of the best documents for each query, best first, each once."""

# Of https://arxiv.org/abs/2503.00223 for literature search: least recall, reward.
TIERS = ((0.7, 5.0), (0.5, 4.0), (0.4, 3.0), (0.3, 1.0), (0.1, 0.5), (0.05, 0.1))
BELOW_TIERS = -3.5


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
        raise UserError(f"--reward {name} must be a class that inherits forage.rewriter.rewards.CustomRewardModel")
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


@dataclass(frozen=True)
class Rewritten:
    """An episode: a query, what the policy wrote, what was searched for, and the reward of that."""

    query: str
    written: str
    searched: str
    reward: float


class Scorer:
    """Rewards of sampled tokens; keeps the last batch's episodes to be shown."""

    def __init__(self, model: CustomRewardModel, options: RewriteOptions, tokenizer: Any) -> None:
        self.model, self.options, self.tokenizer = model, options, tokenizer
        self.episodes: list[Rewritten] = []

    def __call__(self, rows: Sequence[Row], responses: Sequence[Sequence[int]]) -> list[float]:
        self.episodes = [self._episode(row, tokens) for row, tokens in zip(rows, responses, strict=True)]
        return [episode.reward for episode in self.episodes]

    def _episode(self, row: Row, tokens: Sequence[int]) -> Rewritten:
        written = text_of(self.tokenizer, tokens, self.tokenizer.eos_token_id)
        searched = final_query(row.query, written, self.options.mode, self.options.query_weight)
        return Rewritten(row.query, written, searched, rewarded(self.model, searched, row.relevant_doc_ids))


class RewardBridge(nn.Module):
    """What TRL takes for a reward model: `backbone` sees tokens and gives "hidden states", `score` reads rewards off.

    TRL hands over ids with 0 for padding and the mask, but not which row a sequence is of: accelerate fetches batches
    ahead, so what was noted when one was put together is not what is asked about. So the row is the one that has
    just these prompt tokens, and a prompt that no row has is an error. The column where responses begin is told by
    `expect`, by whoever pads the prompts. Every place of a sequence gets its reward, so that it does not matter where
    TRL reads it.
    """

    base_model_prefix = "backbone"

    def __init__(self, rows: Sequence[Row], score: Score) -> None:
        super().__init__()
        self.backbone = _Lookup({row.prompt: row for row in rows}, score)

    def expect(self, context: int) -> None:
        """The prompts of what comes next end before this column."""
        self.backbone.context = context

    def score(self, hidden_BT1: Tensor) -> Tensor:
        return hidden_BT1


class _Lookup(nn.Module):
    def __init__(self, by_prompt: Mapping[tuple[int, ...], Row], score: Score) -> None:
        super().__init__()
        self.by_prompt, self.score, self.context = by_prompt, score, 0

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **_: Any) -> Any:
        if not 0 < self.context < input_ids.shape[1]:
            raise ValueError(f"responses were to begin at column {self.context} of {input_ids.shape[1]}")
        rows, responses = [], []
        for ids, mask in zip(input_ids, attention_mask.bool(), strict=True):
            prompt = tuple(ids[: self.context][mask[: self.context]].tolist())
            if prompt not in self.by_prompt:
                raise ValueError(f"no row has the prompt of {len(prompt)} tokens that begins {list(prompt[:8])}")
            rows.append(self.by_prompt[prompt])
            responses.append(ids[self.context :][mask[self.context :]].tolist())
        rewards_B = torch.tensor(self.score(rows, responses), device=input_ids.device)
        return SimpleNamespace(hidden_states=(rewards_B[:, None, None].expand(-1, input_ids.shape[1], 1),))
