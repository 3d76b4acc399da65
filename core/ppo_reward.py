"""RewardBridge: rewards of rewrites, as the module of scores per token that TRL's PPO asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from core.ppo import Score
from core.ppo_models import text_of
from core.query_rewards import CustomRewardModel, rewarded
from core.rewriter import RewriteOptions, Row, final_query


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
