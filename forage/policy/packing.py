"""Packs token sequences into batches with a bounded number of tokens, fewer of them once memory has run out.

Episodes of one prompt are packed as a tree, over which attention goes branch by branch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from forage.errors import UserError, first_line
from forage.policy.checkpoint import random_states, set_random_states

# Attention over a tree of tokens, branch by branch: a branch's own tokens attend to those on the way to them.
#
# A mask over all tokens of a batch gives the same, but costs the square of them: for four episodes of 380 tokens that
# share 110, 3.5 times as many products, and a GPU has no fast kernel for such a mask.

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
    dtype: torch.dtype | None
    """The type of masks; None on a GPU, whose kernels are causal."""
    masks: dict[int, tuple[Tensor, ...]] = field(default_factory=dict)
    """For each branch what is added to the scores of so many heads at once: 0, or minus infinity. Made once, since the
    backward pass keeps what each layer was given."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        """(1, heads, nodes, width) of queries, and of keys and values with as many heads or fewer."""
        lengths = [branch.end - branch.start for branch in self.parts]
        owns = torch.split(query, lengths, dim=2)
        ways = [(on_way(key, branch), on_way(value, branch)) for branch in self.parts]
        if self.dtype:
            if (times := query.shape[1] // key.shape[1]) not in self.masks:
                seen = [branch.seen_PQ.repeat(times, 1) for branch in self.parts]
                self.masks[times] = tuple(
                    torch.zeros(each.shape, dtype=self.dtype).masked_fill_(~each, -torch.inf) for each in seen
                )
            # Heads that share keys become queries of one head, so that keys are never repeated.
            found = [
                scaled_dot_product_attention(
                    own.reshape(1, keys.shape[1], -1, own.shape[-1]), keys, values, attn_mask=mask_PQ, scale=scale
                ).reshape(*own.shape[:3], values.shape[-1])
                for own, (keys, values), mask_PQ in zip(owns, ways, self.masks[times], strict=True)
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


# Packing

T = TypeVar("T")


class Tokens(Protocol):
    """What can be packed, for example an Episode."""

    @property
    def ids(self) -> Sequence[int]: ...
    @property
    def mask(self) -> Sequence[int]: ...


class Row(NamedTuple):
    """Tokens of which some are to be scored, where no episode has them so."""

    ids: tuple[int, ...]
    mask: tuple[int, ...]


class Movable:
    """A dataclass whose tensors move together."""

    def to(self, device: torch.device | str) -> Self:
        moved = {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]
        return type(self)(
            **{name: value.to(device) if hasattr(value, "to") else value for name, value in moved.items()}
        )


@dataclass(frozen=True)
class TokenTree(Movable):
    """Sequences as branches of trees: what they begin with in common is there once. Each token is a node.

    Example: 5 6 7 8 and 5 6 9:

        ids [5, 6, 7, 8, 9]   parents [-1, 0, 1, 2, 1]   positions [0, 1, 2, 3, 2]   node [[0, 1, 2, 3], [0, 1, 4, 0]]
        branches 0 to 4, and 4 to 5 by way of 0 to 2
        seen [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 0, 0, 1]]
    """

    ids_N: Tensor
    parents_N: Tensor
    """The node before each; -1 before a sequence's first."""
    positions_N: Tensor
    branches: tuple[Branch, ...]
    """All nodes, in order."""
    node_BT: Tensor
    """The node of each token of the batch's rows; 0 at padding."""

    @property
    def seen_NN(self) -> Tensor:
        """Whether a node (row) attends to another (column): to itself and those on the way to it."""
        seen_NN = torch.zeros(len(self.ids_N), len(self.ids_N), dtype=torch.bool)
        for branch in self.branches:
            seen_NN[branch.start : branch.end, branch.nodes] = branch.seen_PQ
        return seen_NN.to(self.ids_N.device)


@dataclass(frozen=True)
class TokenBatch(Movable):
    """Sequences as rows padded at the end.

    Example: prompt 5 6 with sampled 7 8, and prompt 5 with sampled 9:

        ids [[5, 6, 7, 8], [5, 9, 0, 0]]   attention [[1, 1, 1, 1], [1, 1, 0, 0]]
        sampled [[0, 0, 1, 1], [0, 1, 0, 0]]   sequence [[0, 0, 0, 0], [1, 1, 1, 1]]
    """

    ids_BT: Tensor
    positions_BT: Tensor
    """A token's place in its sequence."""
    sampled_BT: Tensor
    """1 = sampled by the policy: its log-probability is wanted."""
    sequence_BT: Tensor
    """Index of the token's sequence among those given to `pack`."""
    attention_BT: Tensor
    """1 = a token, 0 = padding."""
    tree: TokenTree | None = None
    """What is computed in the place of the rows, each token that several of them share once."""

    @property
    def tokens(self) -> int:
        """Number of tokens that are computed, including padding."""
        return self.ids_BT.numel() if self.tree is None else len(self.tree.ids_N)

    @property
    def predicted_BT(self) -> Tensor:
        """True at sampled tokens that have one before them, in their sequence and row, to predict them."""
        predicted_BT = (self.sampled_BT > 0) & (self.positions_BT > 0)
        predicted_BT[:, :1] = False
        return predicted_BT

    @property
    def predictions(self) -> int:
        """Number of log-probabilities that are computed."""
        if self.tree is None:
            return int(self.predicted_BT.count_nonzero())
        return len(torch.unique(self.tree.node_BT[self.predicted_BT]))


def pack(sequences: Sequence[Tokens], budget: int) -> list[TokenBatch]:
    """Batches of at most `budget` tokens including padding; a longer sequence gets a batch of its own.

    The longest sequences come first and similar lengths share a batch, so that there is little padding, and memory runs
    out right away or never.
    """
    rows, groups = [needed(sequence) for sequence in sequences], list[list[int]]()
    lengths = [len(row) for row in rows]
    for number in sorted(range(len(lengths)), key=lambda number: (-lengths[number], number)):
        for group in groups:  # into the first with room for it
            if (len(group) + 1) * lengths[group[0]] <= budget:  # the first is the longest, and every row costs as much
                group.append(number)
                break
        else:
            groups.append([number])
    return [_pad(sequences, rows, group) for group in groups]


def pack_trees(sequences: Sequence[Tokens], budget: int) -> list[TokenBatch]:
    """Batches of at most `budget` tokens, in which what sequences begin with in common is computed once.

    Sequences are taken in the order of their tokens, so that those that begin alike come together. The largest batch
    comes first.
    """
    rows = [needed(sequence) for sequence in sequences]
    order = sorted(range(len(rows)), key=lambda number: (tuple(rows[number]), number))
    groups: list[tuple[int, list[int]]] = []  # nodes, members
    for place, number in enumerate(order):
        ids = rows[number]
        # Of all earlier ones in this order, the one just before shares the most.
        shared = common_start(rows[order[place - 1]], ids) if place else 0
        if groups and groups[-1][0] + len(ids) - shared <= budget:
            nodes, members = groups.pop()
            groups.append((nodes + len(ids) - shared, [*members, number]))
        else:
            groups.append((len(ids), [number]))
    groups.sort(key=lambda group: -group[0])
    return [replace(_pad(sequences, rows, members), tree=_tree([rows[n] for n in members])) for _, members in groups]


def needed(sequence: Tokens) -> Sequence[int]:
    """Its tokens up to the last that the policy sampled, as those after it change no score; all where it has none."""
    after = next((place for place, one in enumerate(reversed(sequence.mask)) if one), 0)
    return sequence.ids[: len(sequence.ids) - after]


def common_start(held: Sequence[int], wanted: Sequence[int]) -> int:
    """Number of leading tokens that two sequences share. Example: [1, 2, 3] and [1, 2, 4, 5] share 2."""
    length = min(len(held), len(wanted))
    differ = np.flatnonzero(np.asarray(held[:length]) != np.asarray(wanted[:length]))
    return int(differ[0]) if len(differ) else length


def _tree(rows: Sequence[Sequence[int]]) -> TokenTree:
    """The tree of sequences in the order of their tokens."""
    ids: list[int] = []
    parents: list[int] = []
    positions: list[int] = []
    ways: list[list[int]] = []
    branches: list[Branch] = []
    for row in rows:
        before = ways[-1] if ways else []
        shared = common_start([ids[node] for node in before], row)
        ways.append(before[:shared] + list(range(len(ids), len(ids) + len(row) - shared)))
        if shared < len(row):
            branches.append(Branch(len(ids), len(ids) + len(row) - shared, _ranges(ways[-1])))
        parents += [-1, *ways[-1]][shared : len(row)]
        positions += range(shared, len(row))
        ids += row[shared:]
    return TokenTree(torch.tensor(ids), torch.tensor(parents), torch.tensor(positions), tuple(branches), _rows(ways))


def _ranges(numbers: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Runs of consecutive numbers. Example: 0 1 2 5 6 gives (0, 3), (5, 7)."""
    ends = [place + 1 for place in range(len(numbers) - 1) if numbers[place + 1] != numbers[place] + 1]
    return tuple((numbers[first], numbers[last - 1] + 1) for first, last in pairwise((0, *ends, len(numbers))))


def values_like(batch: TokenBatch, rows: Sequence[Sequence[float]]) -> Tensor:
    """Per-token values of the packed sequences, laid out as the batch's tokens are; arbitrary at padding."""
    wanted = set(batch.sequence_BT.flatten().tolist())
    # Only the batch's own rows: an update asks for them batch by batch, and would copy all its values each time.
    table_NT = torch.zeros(len(rows), max(len(rows[number]) for number in wanted))
    for number in wanted:
        table_NT[number, : len(rows[number])] = torch.tensor(rows[number])
    return table_NT[batch.sequence_BT, batch.positions_BT]


def _pad(sequences: Sequence[Tokens], rows: Sequence[Sequence[int]], group: Sequence[int]) -> TokenBatch:
    ids_BT = _rows([rows[number] for number in group])
    return TokenBatch(
        ids_BT,
        torch.arange(ids_BT.shape[1]).expand_as(ids_BT),
        _rows([sequences[number].mask[: len(rows[number])] for number in group]),
        torch.tensor(group)[:, None].expand_as(ids_BT),
        _rows([[1] * len(rows[number]) for number in group]),
    )


def _rows(rows: Sequence[Sequence[int]]) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])


# Out of memory


@dataclass
class Budget:
    """The most tokens of a micro-batch."""

    tokens: int

    def within_memory(
        self, attempt: Callable[[int], T], longest: int, drop_gradients: Callable[[], None], *,
        can_start_over: bool = True,
    ) -> T:  # fmt: skip
        """What `attempt` returns, which adds up the gradients of micro-batches of so many tokens.

        When memory runs out, it starts over with half of them, down to the `longest` sequence, and later calls begin
        with what fitted. The gradient is a sum over sequences, so it stays what it was.
        """
        states = random_states()
        while True:
            try:
                return attempt(self.tokens)
            except torch.OutOfMemoryError as error:
                lower = max(self.tokens // 2, longest)
                fewer = lower < self.tokens
                if not (fewer and can_start_over):
                    less = f"--token-budget {lower}, " if fewer else ""
                    raise UserError(
                        f"out of memory with micro-batches of {self.tokens} tokens ({first_line(error)}); give {less}"
                        "--gradient-checkpointing, or shorter episodes (--max-tokens), and re-run to resume (in .env: "
                        "TRAIN_ARGS)"
                    ) from error
            drop_gradients()
            torch.cuda.empty_cache()
            set_random_states(states)  # the passes draw the dropout they would have drawn
            self.tokens = lower
            print(f"out of memory: continuing with micro-batches of {lower} tokens, in later steps too", flush=True)
