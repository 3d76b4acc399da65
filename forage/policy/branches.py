"""Attention over a tree of tokens, branch by branch: a branch's own tokens attend to those on the way to them.

A mask over all tokens of a batch gives the same, but costs the square of them: for four episodes of 380 tokens that
share 110, 3.5 times as many products, and a GPU has no fast kernel for such a mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

BRANCHES = "branches"  # the attention function's name in transformers' registry


@dataclass(frozen=True)
class Branch:
    """Consecutive nodes of a tree, of which each follows the one before.

    Example: in the tree of 5 6 7 8 and 5 6 9, the second branch is node 4 alone, on the way 0 to 1 and 4.
    """

    start: int
    end: int
    way: tuple[tuple[int, int], ...]
    """Ranges of nodes from the root to this branch's last node, in order; its own are the end of the last range."""

    @cached_property
    def nodes(self) -> Tensor:
        """All nodes on the way."""
        return torch.cat([torch.arange(*span) for span in self.way])

    @property
    def seen_PQ(self) -> Tensor:
        """Whether each own node (row) attends to each on the way (column): to itself and those before it."""
        own, way = self.end - self.start, sum(end - start for start, end in self.way)
        return torch.ones(own, way, dtype=torch.bool).tril(way - own)


@dataclass(frozen=True)
class Branches:
    """What attention over a tree needs in each layer. One object, since libraries that shard look into tuples."""

    parts: tuple[Branch, ...]
    unseen: tuple[Tensor, ...]
    """For each branch what is added to its scores: 0, or minus infinity. None on a GPU, whose kernels are causal."""
    masks: dict[int, tuple[Tensor, ...]] = field(default_factory=dict)
    """`unseen` for so many heads at once, made once, since the backward pass keeps what each layer was given."""

    @classmethod
    def of(cls, parts: Sequence[Branch], dtype: torch.dtype, *, on_gpu: bool = False) -> Branches:
        seen = [] if on_gpu else [branch.seen_PQ for branch in parts]
        return cls(
            tuple(parts), tuple(torch.zeros(each.shape, dtype=dtype).masked_fill_(~each, -torch.inf) for each in seen)
        )

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        """(1, heads, nodes, width) of queries, and of keys and values with as many heads or fewer."""
        lengths = [branch.end - branch.start for branch in self.parts]
        owns = torch.split(query, lengths, dim=2)
        ways = [(on_way(key, branch), on_way(value, branch)) for branch in self.parts]
        if self.unseen:
            if (times := query.shape[1] // key.shape[1]) not in self.masks:
                self.masks[times] = tuple(unseen_PQ.repeat(times, 1) for unseen_PQ in self.unseen)
            found = [
                grouped_attention(own, *way, mask, scale)
                for own, way, mask in zip(owns, ways, self.masks[times], strict=True)
            ]
        else:
            # Queries belong to the last keys. Flash attention aligns them so, and takes shared heads as they are.
            found = [
                scaled_dot_product_attention(
                    own, keys, values, attn_mask=causal_lower_right(own.shape[2], keys.shape[2]), scale=scale,
                    enable_gqa=True,
                )
                for own, (keys, values) in zip(owns, ways, strict=True)
            ]  # fmt: skip
        return torch.cat(found, dim=2)


def grouped_attention(own: Tensor, keys: Tensor, values: Tensor, mask_PQ: Tensor, scale: float | None) -> Tensor:
    """Heads that share keys become queries of one head, so that keys are never repeated."""
    shared, width = keys.shape[1], own.shape[-1]
    found = scaled_dot_product_attention(
        own.reshape(1, shared, -1, width), keys, values, attn_mask=mask_PQ, scale=scale
    )
    return found.reshape(*own.shape[:3], values.shape[-1])


def on_way(states: Tensor, branch: Branch) -> Tensor:
    """Slices rather than indices, whose gradients are slow to add."""
    return torch.cat([states[:, :, start:end] for start, end in branch.way], dim=2)


def branch_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, scaling: float | None = None,
    branches: Branches | None = None, **rest: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Attention as transformers calls it; without branches, PyTorch's as everywhere."""
    if branches is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **rest)
    return branches.attend(query, key, value, scaling).transpose(1, 2).contiguous(), None


AttentionInterface.register(BRANCHES, branch_attention)
AttentionMaskInterface.register(BRANCHES, sdpa_mask)


def attend_by_branches(model: Any) -> None:
    """Let a model that attends by PyTorch's own function attend to trees branch by branch."""
    if model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(BRANCHES)
