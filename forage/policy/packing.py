"""Packs token sequences into batches with a bounded number of tokens."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Tokens(Protocol):
    """What can be packed, for example an Episode."""

    @property
    def ids(self) -> Sequence[int]: ...
    @property
    def mask(self) -> Sequence[int]: ...


@dataclass(frozen=True)
class TokenBatch:
    """Sequences as rows padded at the end, or padding-free: one after the other in a single row.

    Example: prompt 5 6 with sampled 7 8, and prompt 5 with sampled 9:

        padded      ids [[5, 6, 7, 8], [5, 9, 0, 0]]   attention [[1, 1, 1, 1], [1, 1, 0, 0]]
                    sampled [[0, 0, 1, 1], [0, 1, 0, 0]]   sequence [[0, 0, 0, 0], [1, 1, 1, 1]]
        one row     ids [[5, 6, 7, 8, 5, 9]]   positions [[0, 1, 2, 3, 0, 1]]   no attention
                    sampled [[0, 0, 1, 1, 0, 1]]   sequence [[0, 0, 0, 0, 1, 1]]
    """

    ids_BT: Tensor
    positions_BT: Tensor
    """A token's place in its sequence; attention starts over where it returns to 0."""
    sampled_BT: Tensor
    """1 = sampled by the policy: its log-probability is wanted."""
    sequence_BT: Tensor
    """Index of the token's sequence among those given to `pack`."""
    attention_BT: Tensor | None = None
    """1 = a token, 0 = padding; None for a single row, which has no padding."""
    prefix_P: Tensor | None = None
    """Tokens that all rows begin with, left out of the rows; positions continue after them."""
    filler: bool = False
    """Only keeps a process in step with the others, which have one more: its episodes are counted elsewhere."""

    def to(self, device: torch.device | str) -> TokenBatch:
        return TokenBatch(
            self.ids_BT.to(device), self.positions_BT.to(device), self.sampled_BT.to(device),
            self.sequence_BT.to(device), None if self.attention_BT is None else self.attention_BT.to(device),
            None if self.prefix_P is None else self.prefix_P.to(device), self.filler,
        )  # fmt: skip

    @property
    def tokens(self) -> int:
        """Number of tokens that are computed, including padding."""
        return self.ids_BT.numel() + (0 if self.prefix_P is None else len(self.prefix_P))


def pack(sequences: Sequence[Tokens], budget: int, *, padding_free: bool = False) -> list[TokenBatch]:
    """Batches of at most `budget` tokens including padding; a longer sequence gets a batch of its own.

    Padded, the longest sequences come first and similar lengths share a batch, so that there is little padding, and
    memory runs out right away or never. `padding_free` needs attention that respects `positions` (flash attention, or
    transformers' sdpa and eager for models with full attention); it saves time where kernels skip masked tokens.
    """
    make = _join if padding_free else _pad
    return [make(sequences, group) for group in _groups([len(s.ids) for s in sequences], budget, padding_free)]


def pack_shared(sequences: Sequence[Tokens], prompts: Sequence[Hashable], budget: int) -> list[TokenBatch]:
    """Padded batches of sequences that share a prompt, which is computed once for all rows of a batch.

    Example: sequences (5 6 7 8) and (5 6 9), both with the prompt 5 6: prefix 5, rows (6 7 8) and (6 9). A prompt's
    last token stays in the rows, because the first sampled token is predicted from it.
    """
    numbers: dict[Hashable, list[int]] = {}
    for number, prompt in enumerate(prompts):
        numbers.setdefault(prompt, []).append(number)
    batches = []
    for members in numbers.values():
        shared = max(0, _common([sequences[n].ids[: _first_sampled(sequences[n])] for n in members]) - 1)
        rests = [len(sequences[n].ids) - shared for n in members]
        groups = _groups(rests, max(1, budget - shared), padding_free=False)
        batches += [_pad(sequences, [members[place] for place in group], shared) for group in groups]
    return batches


def _first_sampled(sequence: Tokens) -> int:
    return next((place for place, sampled in enumerate(sequence.mask) if sampled), len(sequence.mask))


def _common(rows: Sequence[Sequence[int]]) -> int:
    """Number of leading tokens that all rows share."""
    return next((n for n, ids in enumerate(zip(*rows, strict=False)) if len(set(ids)) > 1), min(map(len, rows)))


def values_like(batch: TokenBatch, rows: Sequence[Sequence[float]]) -> Tensor:
    """Per-token values of the packed sequences, laid out as the batch's tokens are; arbitrary at padding."""
    wanted = set(batch.sequence_BT.flatten().tolist())
    # Only the batch's own rows: an update asks for them batch by batch, and would copy all its values each time.
    table_NT = torch.zeros(len(rows), max(len(rows[number]) for number in wanted))
    for number in wanted:
        table_NT[number, : len(rows[number])] = torch.tensor(rows[number])
    return table_NT[batch.sequence_BT, batch.positions_BT]


def _groups(lengths: Sequence[int], budget: int, padding_free: bool) -> list[list[int]]:
    """Group the sequences' indices: longest first, each into the first group with room for it."""
    groups: list[list[int]] = []
    for number in sorted(range(len(lengths)), key=lambda number: (-lengths[number], number)):
        for group in groups:
            # The first of a group is its longest; padded, every row costs as much.
            cost = sum(lengths[n] for n in group) if padding_free else len(group) * lengths[group[0]]
            if cost + (lengths[number] if padding_free else lengths[group[0]]) <= budget:
                group.append(number)
                break
        else:
            groups.append([number])
    return groups


def _pad(sequences: Sequence[Tokens], group: Sequence[int], shared: int = 0) -> TokenBatch:
    """Padded rows without their first `shared` tokens, which are the same in all of them."""
    ids_BT = _rows([sequences[number].ids[shared:] for number in group])
    attention_BT = _rows([[1] * (len(sequences[number].ids) - shared) for number in group])
    sampled_BT = _rows([sequences[number].mask[shared:] for number in group])
    positions_BT = torch.arange(shared, shared + ids_BT.shape[1]).expand_as(ids_BT)
    sequence_BT = torch.tensor(group)[:, None].expand_as(ids_BT)
    prefix_P = torch.tensor(sequences[group[0]].ids[:shared]) if shared else None
    return TokenBatch(ids_BT, positions_BT, sampled_BT, sequence_BT, attention_BT, prefix_P)


def _join(sequences: Sequence[Tokens], group: Sequence[int]) -> TokenBatch:
    lengths = torch.tensor([len(sequences[number].ids) for number in group])
    return TokenBatch(
        torch.cat([torch.tensor(sequences[number].ids) for number in group])[None],
        torch.cat([torch.arange(length) for length in lengths.tolist()])[None],
        torch.cat([torch.tensor(sequences[number].mask) for number in group])[None],
        torch.tensor(group).repeat_interleave(lengths)[None],
    )


def _rows(rows: Sequence[Sequence[int]]) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])
