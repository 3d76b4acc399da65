"""Sequence parallelism: P processes share every row, 1/P of its tokens each, for episodes too long for one GPU.

Ulysses, https://arxiv.org/abs/2309.14509: everything but attention works token by token. Before attention, processes
exchange tokens for heads, so that each has all tokens of 1/P of the heads; after it, they exchange them back.
DeepSpeed's implementation (deepspeed.runtime.sequence_parallel.ulysses_sp) needs a fixed number of rows and no padding,
and torch's ring attention has no CPU kernel.

Example: 2 processes, 4 heads, a row of tokens 0..5. The first process computes tokens 0 1 2 with all heads, then the
attention of heads 0 1 for all six tokens, then tokens 0 1 2 again.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from forage.errors import UserError
from forage.policy.logprobs import TokenScores, unsharable
from forage.policy.packing import TokenBatch

NAME = "shared_rows"  # the attention function's name in transformers' registry


def check_split(config: Any, size: int, world: int) -> None:
    """Refuse a `size` that doesn't divide the processes or the model's heads, and attention that is not full."""
    text = config.get_text_config()
    if world % size:
        raise UserError(f"--sequence-parallel {size} does not divide the {world} processes; give a divisor")
    for kind, heads in (("attention", text.num_attention_heads), ("key-value", text.num_key_value_heads)):
        if heads % size:
            raise UserError(
                f"--sequence-parallel {size} does not divide the model's {heads} {kind} heads, which processes share; "
                "give a divisor"
            )
    if why := unsharable(config):
        raise UserError(
            f"--sequence-parallel splits full attention only, and {text.model_type} has {why}; leave it out"
        )


class SequenceParallelPolicy:
    """A policy that computes this process's tokens only; forage.policy.logprobs uses it like any policy."""

    def __init__(self, policy: Any, group: dist.ProcessGroup) -> None:
        from transformers import AttentionInterface

        self.policy, self.group = policy, group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.hidden_BTD: Tensor = torch.empty(0)
        # Not in transformers' registry of masks, so that it builds none: it would mask this process's tokens only.
        AttentionInterface.register(NAME, self.attention)
        policy.get_base_model().set_attn_implementation(NAME)

    @property
    def config(self) -> Any:
        return self.policy.config

    def get_output_embeddings(self) -> Any:
        return self.policy.get_output_embeddings()

    def get_decoder(self) -> Any:
        return self.decode

    def own_columns(self, batch: TokenBatch) -> TokenBatch:
        """This process's columns, and the one after them, which its last token predicts.

        Example: of 2 processes that share columns 0..4, the first gets 0 1 2 and 3; the second 3 4, and two of padding.
        """
        width = -(-batch.ids_BT.shape[1] // self.size)
        missing, first = width * self.size + 1 - batch.ids_BT.shape[1], self.rank * width
        wholes = (batch.ids_BT, batch.positions_BT, batch.sampled_BT, batch.sequence_BT, batch.attention_BT)
        ids_BT, positions_BT, sampled_BT, sequence_BT, attention_BT = (
            nn.functional.pad(whole_BT, (0, missing))[:, first : first + width + 1] for whole_BT in wholes
        )
        return TokenBatch(ids_BT, positions_BT, sampled_BT, sequence_BT, attention_BT)

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
        query, key, value = map(self._exchanged, (query, key, value))
        seen_BTHD, _ = sdpa_attention_forward(module, query, key, value, None, **options)
        return self._exchanged(seen_BTHD), None

    def _exchanged(self, part: Tensor) -> Tensor:
        """Shares of the heads become shares of the tokens, and the other way round.

        (B, H, T / P, D) gives (B, H / P, T, D); (B, T, H / P, D) gives (B, T / P, H, D).
        """
        split = torch.unflatten(part, 1, (self.size, -1)).movedim(1, 0)
        got: Tensor = _AllToAll.apply(split, self.group)  # type: ignore[no-untyped-call]
        return got.movedim(0, 2).flatten(2, 3)

    def gather_scores(self, scores: TokenScores, batch: TokenBatch) -> TokenScores:
        """The scores of all tokens, from all processes; a gradient flows to this process's own tokens only."""
        # A process whose tokens predict nothing still computes heads whose gradients the others need.
        logprobs_BT = scores.logprobs_BT + self.hidden_BTD.sum().float() * 0
        self.hidden_BTD = torch.empty(0)
        width = logprobs_BT.shape[1] - 1  # the first column, another process's last, scores 0
        around = (self.rank * width, (self.size - 1 - self.rank) * width)
        length = batch.ids_BT.shape[1]
        placed = (nn.functional.pad(own_BT, around) for own_BT in (logprobs_BT, scores.entropy_BT))
        return TokenScores(*(_AllReduce.apply(own_BT, self.group)[:, :length] for own_BT in placed))  # type: ignore[no-untyped-call]


class _AllToAll(torch.autograd.Function):
    """Send part p of the first dimension to process p; its gradient is the same exchange."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        got = torch.empty_like(parts, memory_format=torch.contiguous_format)
        dist.all_to_all_single(got, parts.contiguous(), group=group)
        return got

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _AllToAll.forward(ctx, gradients[0], ctx.group), None


class _AllReduce(torch.autograd.Function):
    """Sum over the processes. Each then computes the same loss, so a gradient needs no summing."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: dist.ProcessGroup) -> Tensor:
        total = part.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None
