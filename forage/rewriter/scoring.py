"""Scoring: from sampled tokens to rewards, for our own loop and in the form that TRL expects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from forage.agent.prompts import final_query
from forage.rewriter.options import RewriteOptions
from forage.rewriter.ppo import Score
from forage.rewriter.rewards import RewardModel, checked_reward
from forage.rewriter.rewrites import Row, text_of


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


class RewardBridge(nn.Module):
    """A reward model as TRL expects it: `backbone` turns tokens into "hidden states", `score` reads the rewards.

    TRL passes ids with 0 for padding and the mask, but not the row of each sequence; and because accelerate prefetches
    batches, the order in which batches were built does not tell it either. So a row is found by its exact prompt
    tokens; an unknown prompt is an error. Whoever pads the prompts calls `set_prompt_width` first. All positions of a
    sequence hold its reward, so it does not matter which one TRL reads.
    """

    base_model_prefix = "backbone"

    def __init__(self, rows: Sequence[Row], score: Score) -> None:
        super().__init__()
        self.backbone = _RewardLookup({row.prompt: row for row in rows}, score)

    def set_prompt_width(self, width: int) -> None:
        """In the next batch, responses begin at this column."""
        self.backbone.prompt_width = width

    def score(self, hidden_BT1: Tensor) -> Tensor:
        return hidden_BT1


class _RewardLookup(nn.Module):
    def __init__(self, row_by_prompt: Mapping[tuple[int, ...], Row], score: Score) -> None:
        super().__init__()
        self.row_by_prompt, self.score, self.prompt_width = row_by_prompt, score, 0

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **_: Any) -> Any:
        width, columns = self.prompt_width, input_ids.shape[1]
        if not 0 < width < columns:
            raise ValueError(f"responses can't begin at column {width} of {columns}")
        rows, responses = [], []
        for ids, mask in zip(input_ids, attention_mask.bool(), strict=True):
            prompt = tuple(ids[:width][mask[:width]].tolist())
            if prompt not in self.row_by_prompt:
                raise ValueError(f"no row has the prompt of {len(prompt)} tokens that begins {list(prompt[:8])}")
            rows.append(self.row_by_prompt[prompt])
            responses.append(ids[width:][mask[width:]].tolist())
        rewards_B = torch.tensor(self.score(rows, responses), device=input_ids.device)
        return SimpleNamespace(hidden_states=(rewards_B[:, None, None].expand(-1, columns, 1),))
