"""Sequence parallelism: P processes share every row, each with a P-th of its tokens, for episodes too long for one GPU.

Ulysses, https://arxiv.org/abs/2309.14509: all is done token by token but attention, before which processes exchange
tokens for heads, so that each has all tokens of a P-th of the heads, and after which they exchange back. DeepSpeed's
own (deepspeed.runtime.sequence_parallel.ulysses_sp) wants a fixed number of rows and no padding, and torch's ring
attention has no CPU kernel.

Example, of 2 processes and 4 heads, a row of tokens 0..5: the first process computes tokens 0 1 2 with all heads, then
heads 0 1 of all six tokens' attention, then tokens 0 1 2 again.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from forage.errors import UserError
from forage.policy.logprobs import TokenScores
from forage.policy.packing import TokenBatch

NAME = "shared_rows"  # of the attention, in transformers' register


def check_split(config: Any, size: int, world: int) -> None:
    """Refuse what cannot be shared."""
    text = config.get_text_config()
    if world % size:
        raise UserError(f"--sequence-parallel {size} does not divide the {world} processes; give a divisor")
    for kind, heads in (("attention", text.num_attention_heads), ("key-value", text.num_key_value_heads)):
        if heads % size:
            raise UserError(
                f"--sequence-parallel {size} does not divide the model's {heads} {kind} heads, which processes share; "
                "give a divisor"
            )
    others = set(getattr(text, "layer_types", None) or []) - {"full_attention"}
    if others:
        raise UserError(
            f"--sequence-parallel knows full attention only, and this model has {min(others)} too; leave it"
        )


class Shared:
    """A policy of which this process computes its tokens. Looks to forage.policy.logprobs as a policy does."""

    def __init__(self, policy: Any, group: dist.ProcessGroup) -> None:
        from transformers import AttentionInterface

        self.policy, self.group = policy, group
        self.place, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.mask: Tensor | None = None
        self.hidden_BTD: Tensor = torch.empty(0)
        # Not in transformers' register of masks, so that it makes none: it sees this process's tokens only.
        AttentionInterface.register(NAME, self.attention)
        policy.get_base_model().set_attn_implementation(NAME)

    @property
    def config(self) -> Any:
        return self.policy.config

    def get_output_embeddings(self) -> Any:
        return self.policy.get_output_embeddings()

    def get_decoder(self) -> Any:
        return self.decode

    def part(self, batch: TokenBatch) -> TokenBatch:
        """This process's columns and the one after them, which its last token predicts.

        Example, of 2 processes, columns 0..4: 0 1 2 and 3 for the first; 3 4, padding and padding for the second.
        """
        width = -(-batch.ids_BT.shape[1] // self.size)
        missing, first = width * self.size + 1 - batch.ids_BT.shape[1], self.place * width
        cut = [
            nn.functional.pad(tensor_BT, (0, missing))[:, first : first + width + 1]
            for tensor_BT in (batch.ids_BT, batch.positions_BT, batch.sampled_BT, batch.sequence_BT)
        ]
        self.mask = None if batch.attention_BT is not None else self._sequences(batch.positions_BT, missing - 1)
        return TokenBatch(*cut)

    def _sequences(self, positions_BT: Tensor, missing: int) -> Tensor:
        """(B, 1, T, T): which tokens a token sees in a row of several sequences. Padded rows are plainly causal."""
        sequence_BT = (nn.functional.pad(positions_BT, (0, missing)) == 0).cumsum(dim=1)
        seen_BTT = sequence_BT[:, :, None] == sequence_BT[:, None, :]
        return seen_BTT.tril()[:, None]

    def decode(self, *, input_ids: Tensor, position_ids: Tensor, **_: Any) -> Any:
        decoder = self.policy.get_base_model().get_decoder()
        out = decoder(input_ids=input_ids[:, :-1], position_ids=position_ids[:, :-1], use_cache=False)
        self.hidden_BTD = out.last_hidden_state
        return out

    def attention(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any
    ) -> tuple[Tensor, None]:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        del mask
        query, key, value = (self._all_tokens(part_BHTD) for part_BHTD in (query, key, value))
        seen_BTHD, _ = sdpa_attention_forward(module, query, key, value, self.mask, **options)
        return self._all_heads(seen_BTHD), None

    def _all_tokens(self, part_BHTD: Tensor) -> Tensor:
        """(B, H, T / P, D) to (B, H / P, T, D)."""
        split_BPHTD = torch.unflatten(part_BHTD, 1, (self.size, -1))
        return self._exchange(split_BPHTD.movedim(1, 0)).movedim(0, 2).flatten(2, 3)

    def _all_heads(self, part_BTHD: Tensor) -> Tensor:
        """(B, T, H / P, D) to (B, T / P, H, D)."""
        split_BPTHD = torch.unflatten(part_BTHD, 1, (self.size, -1))
        return self._exchange(split_BPTHD.movedim(1, 0)).movedim(0, 2).flatten(2, 3)

    def _exchange(self, parts: Tensor) -> Tensor:
        got: Tensor = _Exchange.apply(parts, self.group)  # type: ignore[no-untyped-call]
        return got

    def whole(self, scores: TokenScores, batch: TokenBatch) -> TokenScores:
        """Everyone's scores of everyone's tokens; through a gradient only its own are changed by this process."""
        # Also a process whose tokens predict nothing has heads whose gradients the others need.
        logprobs_BT = scores.logprobs_BT + self.hidden_BTD.sum().float() * 0
        self.hidden_BTD = torch.empty(0)
        width = logprobs_BT.shape[1] - 1  # the first column, another process's last, scores 0
        around = (self.place * width, (self.size - 1 - self.place) * width)
        length = batch.ids_BT.shape[1]
        placed = (nn.functional.pad(mine_BT, around) for mine_BT in (logprobs_BT, scores.entropy_BT))
        return TokenScores(*(_Sum.apply(mine_BT, self.group)[:, :length] for mine_BT in placed))  # type: ignore[no-untyped-call]


class _Exchange(torch.autograd.Function):
    """Part p of the first dimension to process p; its own opposite."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        got = torch.empty_like(parts, memory_format=torch.contiguous_format)
        dist.all_to_all_single(got, parts.contiguous(), group=group)
        return got

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _Exchange.forward(ctx, gradients[0], ctx.group), None


class _Sum(torch.autograd.Function):
    """Over the processes, of which each then computes the same loss: a gradient is its own part's already."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: dist.ProcessGroup) -> Tensor:
        total = part.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None
