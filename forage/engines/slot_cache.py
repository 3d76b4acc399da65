"""Keys and values of many sequences of different lengths, each in its own slot, and attention over them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.cache_utils import Cache

from forage.errors import UserError
from forage.policy.logprobs import unsharable

GROW = 256  # slots grow by this many tokens at a time
# Kinds whose layers with windows tests/policy/test_model_kinds.py has tried in slots.
WINDOWED = frozenset("exaone4 exaone_moe gemma3_text ministral3 mistral mixtral olmo3 phi3 starcoder2".split())


class SlotCache(Cache):
    """Keys and values of a fixed number of slots, each filled to its own length."""

    def __init__(self, config: Any, slots: int) -> None:
        super().__init__(layers=[])
        heads = config.num_key_value_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.shape, self.room = (config.num_hidden_layers, slots, heads, width), 0
        # One tensor per layer: (slots, heads, room, width).
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.view: Prefills | Decode = Prefills(())

    def make_room(self, tokens: int, like: Tensor) -> None:
        """Lengthen all slots to hold at least this many tokens."""
        if tokens <= self.room:
            return
        layers, slots, heads, width = self.shape
        room = -(-tokens // GROW) * GROW
        for kept in (self.keys, self.values):
            kept += [like.new_zeros(slots, heads, 0, width) for _ in range(layers - len(kept))]
            for layer in range(layers):  # one at a time, so that only one is held twice
                longer = like.new_zeros(slots, heads, room, width)
                longer[:, :, : self.room] = kept[layer][:, :, : self.room]
                kept[layer] = longer
        self.room = room

    def drop(self) -> None:
        """Give all memory back; what the slots held is lost."""
        self.keys, self.values, self.room = [], [], 0

    def copy(self, source: int, target: int, tokens: int) -> None:
        """Copy the first tokens of one slot into another."""
        for kept in (self.keys, self.values):
            for layer in kept:
                layer[target, :, :tokens] = layer[source, :, :tokens]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Store the new keys and values; return all that attention needs. transformers calls this in every layer."""
        return (
            self.view.store(self.keys[layer_idx], key_states),
            self.view.store(self.values[layer_idx], value_states),
        )


@dataclass(frozen=True)
class Prefill:
    """Tokens `start` to `end` of one slot, which attend to those of the slot up to themselves."""

    slot: int
    start: int
    end: int

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scale: float, window: int) -> Tensor:
        if query.is_cuda:
            return self.attend_on_gpu(query, keys, values, scale, window)
        seen = self.seen(window, query.device)
        return scaled_dot_product_attention(query, keys, values, attn_mask=seen, scale=scale, enable_gqa=True)

    def attend_on_gpu(self, query: Tensor, keys: Tensor, values: Tensor, scale: float, window: int) -> Tensor:
        """The same without a mask beside shared heads, for which CUDA has only a kernel that holds all scores."""
        if self.start == 0 and self.end <= window:
            return scaled_dot_product_attention(query, keys, values, is_causal=True, scale=scale, enable_gqa=True)
        repeats = query.shape[1] // keys.shape[1]
        keys, values = (kept.repeat_interleave(repeats, dim=1) for kept in (keys, values))
        seen = self.seen(window, query.device)
        return scaled_dot_product_attention(query, keys, values, attn_mask=seen, scale=scale)

    def seen(self, window: int, device: torch.device) -> Tensor:
        """Whether each token (row) attends to each of the slot (column): to the last `window` up to itself.

        Example: tokens 2 and 3, a window of 2: 0 1 1 0 and 0 0 1 1.
        """
        before = torch.ones(self.end - self.start, self.end, dtype=torch.bool, device=device).tril(self.start)
        return before.triu(self.start - window + 1) if window < self.end else before


@dataclass(frozen=True)
class Prefills:
    """A forward pass over new tokens of several slots, one slot's after another's in a single row, without padding."""

    parts: tuple[Prefill, ...]

    def store(self, kept: Tensor, new: Tensor) -> Tensor:
        for part, tokens in self.split(new):
            kept[part.slot, :, part.start : part.end] = tokens[0]
        return kept

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scale: float, window: int) -> Tensor:
        held = [(keys[part.slot, :, : part.end][None], values[part.slot, :, : part.end][None]) for part in self.parts]
        attended = [
            part.attend(tokens, *kept, scale, window)
            for (part, tokens), kept in zip(self.split(query), held, strict=True)
        ]
        return torch.cat(attended, dim=2)

    def split(self, row: Tensor) -> Iterator[tuple[Prefill, Tensor]]:
        """Each part with its own tokens of (1, heads, tokens, width)."""
        tokens = torch.split(row, [part.end - part.start for part in self.parts], dim=2)
        return zip(self.parts, tokens, strict=True)


@dataclass(frozen=True)
class Decode:
    """A forward pass over the next few tokens of several slots, in a single row without padding.

    For attention they are put into a rectangle: of S slots, up to the last one with tokens, with Q tokens each, as many
    as any has. Attention reads the keys of S slots once, whatever Q is.

    Example: two tokens of slot 0, one of slot 2: slots 0 0 2, numbers 0 1 0; S = 3, Q = 2.
    """

    slots_R: Tensor
    """Each token's slot."""
    numbers_R: Tensor
    """Each token's number among those of its slot."""
    places_R: Tensor
    """Each token's place in its slot."""
    seen_SQL: Tensor
    """Whether a token attends to a place; what stands for no token attends to the first."""

    @classmethod
    def of(cls, tokens: Sequence[tuple[int, int, int]], longest: int, device: torch.device) -> Decode:
        """The view for tokens given as (slot, number, place); `longest` places of each slot are read."""
        slots, numbers, _ = (1 + max(each) for each in zip(*tokens, strict=True))
        slots_R, numbers_R, places_R = torch.tensor(tokens, device=device).T
        places_SQ = torch.zeros(slots, numbers, dtype=torch.long, device=device)
        places_SQ[slots_R, numbers_R] = places_R
        return cls(slots_R, numbers_R, places_R, torch.arange(longest, device=device) <= places_SQ[..., None])

    def store(self, kept: Tensor, new: Tensor) -> Tensor:
        slots, _, longest = self.seen_SQL.shape
        kept[self.slots_R, :, self.places_R] = new[0].transpose(0, 1)
        return kept[:slots, :, :longest]

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scale: float, window: int) -> Tensor:
        slots, tokens, longest = self.seen_SQL.shape
        padded = query.new_zeros(slots, query.shape[1], tokens, query.shape[3])
        padded[self.slots_R, :, self.numbers_R] = query[0].transpose(0, 1)
        # Heads that share keys become queries of one head, so that keys are read once and never repeated.
        shared = query.shape[1] // keys.shape[1]
        grouped = padded.view(slots, keys.shape[1], shared * tokens, query.shape[3])
        seen_SQL = self.seen_SQL
        if window < longest:
            seen_SQL = seen_SQL & (seen_SQL.sum(2, keepdim=True) - window <= torch.arange(longest, device=query.device))
        mask = seen_SQL[:, None].repeat(1, 1, shared, 1)
        attended = scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=scale).view(padded.shape)
        return attended[self.slots_R, :, self.numbers_R].transpose(0, 1)[None]


def slot_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, scaling: float | None = None,
    view: Prefills | Decode | None = None, sliding_window: int | None = None, **_: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Attention over slots, as transformers calls it; the view makes its own mask."""
    assert view is not None
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    return view.attend(query, key, value, scale, sliding_window or sys.maxsize).transpose(1, 2), None


ATTENTION = "slots"
AttentionInterface.register(ATTENTION, slot_attention)


def check_attention(model: Any) -> None:
    """Refuse models of which slots may not hold what attention needs."""
    text, why = model.config.get_text_config(), unsharable(model.config)
    others = set(getattr(text, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    if why and (others or text.model_type not in WINDOWED):
        raise UserError(f"{text.model_type} has {why}, which only vLLM can sample; start a server")
