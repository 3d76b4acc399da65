"""LocalEngine: samples in this process with transformers, for machines without a vLLM server.

Four things make it several times as fast as `model.generate` on a PEFT model:

- what the adapter adds to a layer is two small products, without PEFT's layers around them;
- all episodes are decoded in one batch, which requests join and leave at any token; those that join at the same time
  have their new tokens computed in one pass;
- an episode's keys and values stay in its slot, so a turn computes only its new tokens, and a beginning that prompts
  share is computed once and copied;
- an agent copies much of what it says from what it has read: where its last tokens stand earlier in the episode, those
  that followed them there are computed beside the next one, and kept as far as they are what is sampled. The draws are
  those of each token's number, so without it samples differ by rounding at most.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.hooks import RemovableHandle
from transformers import AttentionInterface
from transformers.cache_utils import Cache

from forage.engines.base import Engine, EngineError, EngineOptions, Job, Request, Sample
from forage.errors import UserError, first_line
from forage.policy.logprobs import decoder_and_head, unsharable
from forage.policy.packing import common_start
from forage.policy.policy import load_base
from forage.policy.precision import fp32_logits, with_adapter

# Keys and values of many sequences of different lengths, each in its own slot, and attention over them.

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
        """Without a mask beside shared heads, for which CUDA has only a kernel that holds all scores."""
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


# The engine

SLOTS = 64  # most sequences at a time
KEYS_STEP = 64  # divides GROW, so that the slots are as long
LAST, GUESSES = 3, 3  # tokens that must have stood there before, and tokens that are then guessed
LOGIT_BYTES = 8 * (1 + GUESSES)  # of each token that may come next: a logit and a weight in fp32, for each one drawn
START_TOKENS = 2048  # of the requests that start in one pass; more would gain nothing and take memory


class Spoken:
    """Tokens, and where those that followed the last few of them before are."""

    def __init__(self, ids: Sequence[int] = ()) -> None:
        self.ids: list[int] = []
        self.next: dict[tuple[int, ...], int] = {}
        for token in ids:
            self.add(token)

    def add(self, token: int) -> None:
        self.next[tuple(self.ids[-LAST:])] = len(self.ids)
        self.ids.append(token)

    def guess(self, most: int) -> list[int]:
        """Example: after 5 6 7 8 9 5 6 7, 8 9 5 if three at most."""
        place = self.next.get(tuple(self.ids[-LAST:]), len(self.ids))
        return self.ids[place : place + most]


@dataclass(eq=False)
class Slot:
    """The tokens in one slot of the cache."""

    number: int
    ids: list[int] = field(default_factory=list)
    """Tokens whose keys and values are in the slot."""
    episode: str = ""
    """The episode that the slot is kept for; empty: it is free to take."""
    last_use: int = 0


@dataclass(eq=False)
class Active:
    """A request that is being sampled in a slot."""

    slot: Slot
    request: Request
    future: asyncio.Future[Sample]
    draws: list[float]
    """Random numbers for the tokens to come, so that each is drawn alike whatever is sampled beside it."""
    spoken: Spoken
    next_token: int
    """Sampled last, or last in the prompt; its keys and values are not computed yet."""
    sampled: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def finish(self) -> Literal["stop", "length"] | None:
        """How the sample ended, if it did."""
        if self.sampled and self.sampled[-1] in self.request.stop_ids:
            return "stop"
        return "length" if len(self.sampled) == self.request.max_tokens else None

    def take(self, token: int, logprob: float) -> None:
        self.next_token = token
        self.sampled.append(token)
        self.logprobs.append(logprob)
        self.spoken.add(token)
        del self.draws[0]
        if self.request.on_token:
            self.request.on_token(token)


class LocalEngine(Engine):
    """Samples with a causal language model, whose layers may have sliding windows; it owns the model.

    On a GPU, where an update may need the room, keys and values are given back whenever no episode is being played;
    elsewhere they are kept for the next.
    """

    exact = True  # a server, which batches requests as they come, rounds by batch

    def __init__(self, model: Any, slots: int = SLOTS) -> None:
        check_attention(model)
        self.model = model.eval().requires_grad_(False)
        self.model.set_attn_implementation(ATTENTION)
        self.adapter = "base"
        self.slots = [Slot(number) for number in range(slots)]
        self._embedding: Tensor = model.get_input_embeddings().weight
        self._cache = SlotCache(model.config, slots)
        self._hooks: list[RemovableHandle] = []
        self._waiting: list[tuple[Request, asyncio.Future[Sample]]] = []
        self._active: list[Active] = []
        self._runner: asyncio.Task[None] | None = None
        self._clock = 0

    @classmethod
    @asynccontextmanager
    async def open(cls, options: EngineOptions, job: Job) -> AsyncIterator[LocalEngine]:
        """With at most 64 sequences at a time. On a GPU a 4-bit base needs no room in 16 bits; elsewhere it is unpacked
        first, which samples faster.
        """
        on_gpu = torch.cuda.is_available()
        base, slots = load_base(job.manifest, dequantize=not on_gpu), min(SLOTS, job.slots)
        yield cls(base, slots_within(base, slots, job.tokens) if on_gpu else slots)

    # Adapters

    async def load_adapter(self, name: str, folder: Path) -> None:
        """Let an adapter change what the layers compute; the weights stay as they are."""
        if self._active or self._waiting:
            raise RuntimeError("the adapter can't change while requests are being sampled")
        self.unload_adapter()
        weights = self.model.named_parameters(remove_duplicate=False)  # a tied one by both its names
        shapes = {key: tuple(weight.shape) for key, weight in weights}
        config = self.model.config
        text = config.get_text_config()
        tied = text.vocab_size if getattr(text, "tie_word_embeddings", False) else None
        for key, change in find_changes(folder, config.name_or_path or "the base", shapes, tied).items():
            layer = self.model.get_submodule(key.removesuffix(".weight"))
            self._hooks.append(layer.register_forward_hook(adding(layer, change)))
        self.adapter = name

    def unload_adapter(self) -> None:
        while self._hooks:
            self._hooks.pop().remove()
        for slot in self.slots:  # keys and values computed by another adapter are useless
            slot.ids, slot.episode = [], ""
        self._free_idle()
        self.adapter = "base"

    # Sampling

    async def generate(self, request: Request) -> Sample:
        if request.adapter not in ("", self.adapter):
            raise EngineError(f"episode {request.episode} began with adapter {request.adapter}, not {self.adapter}")
        future: asyncio.Future[Sample] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        if self._runner is None or self._runner.done():
            self._runner = asyncio.create_task(self._run())
            self._runner.add_done_callback(self._fail_all)
        return await future

    def release(self, episode: str) -> None:
        for slot in self.slots:
            if slot.episode == episode:
                slot.episode = ""
        self._free_idle()

    def _free_idle(self) -> None:
        """Give the keys and values back if nothing is being played."""
        on_gpu = self._embedding.is_cuda
        if on_gpu and not (self._waiting or self._active or any(slot.episode for slot in self.slots)):
            for slot in self.slots:
                slot.ids = []
            self._cache.drop()

    async def _run(self) -> None:
        """Until no request is left, start as many as there are slots for, then sample one token for each.

        It runs in the event loop's thread: torch has a thread pool per calling thread, and two pools compete for cores.
        """
        await asyncio.sleep(0)  # so that requests made at the same time start together
        try:
            while self._waiting or self._active:
                while starting := self._take_slots():
                    self._start(starting)
                    self._finish()
                if self._active:
                    self._step()
                    self._finish()
                await asyncio.sleep(0)
        except torch.OutOfMemoryError as error:
            raise UserError(
                f"out of memory while sampling {len(self.slots)} sequences at once in this process "
                f"({first_line(error)}); lower --concurrency or --max-tokens, or start a vLLM server"
            ) from error
        self._free_idle()

    def _fail_all(self, runner: asyncio.Task[None]) -> None:
        """Pass the error that stopped the runner to everyone who is waiting."""
        if runner.cancelled() or (error := runner.exception()) is None:
            return
        futures = [future for _, future in self._waiting] + [active.future for active in self._active]
        for active in self._active:
            active.slot.ids = []
        self._waiting.clear()
        self._active.clear()
        for future in futures:
            if not future.done():
                future.set_exception(error)

    def _free_slots(self) -> list[Slot]:
        busy = [active.slot for active in self._active]
        return [slot for slot in self.slots if slot not in busy]

    def _take_slots(self) -> list[Active]:
        """Give slots to requests that wait; returns those whose tokens are to be computed in the next pass.

        A request that will lack less than half as much once another's tokens are there waits for the pass after: the
        samples of a prompt compute it once. One that lacks only its last token needs no pass; the next step computes
        that for all slots at once.
        """
        starting: list[Active] = []
        planned = 0
        for entry in tuple(self._waiting):
            request, future = entry
            if future.cancelled():
                self._waiting.remove(entry)
                continue
            if not (free := self._free_slots()):
                break
            # The episode's own slot, else the first that no episode keeps, else the least recently used.
            own = [slot for slot in free if request.episode and slot.episode == request.episode]
            unkept = [slot for slot in free if not slot.episode]
            slot = next(iter(own or unkept or sorted(free, key=lambda slot: slot.last_use)))
            # The last token is always computed: the next one is sampled from its output.
            prompt = request.ids[:-1]
            source, start = longest_start([other.ids for other in self.slots], prompt, slot.number)
            missing = len(request.ids) - start
            half = start + missing // 2 + 1
            if any(other.request.ids[:half] == prompt[:half] for other in starting):
                continue
            if missing > 1 and starting and planned + missing > START_TOKENS:
                break
            active = self._begin(slot, request, future, source, start)
            self._waiting.remove(entry)  # only now: whoever waits is told of an error
            if missing > 1:
                starting.append(active)
                planned += missing
        return starting

    def _begin(
        self, slot: Slot, request: Request, future: asyncio.Future[Sample], source: int, start: int
    ) -> Active:  # fmt: skip
        """Give a slot to a request, with the first `start` tokens, which the slot `source` holds."""
        self._cache.make_room(len(request.ids) + request.max_tokens, self._embedding)
        if source != slot.number:
            self._cache.copy(source, slot.number, start)
        self._clock += 1
        slot.ids, slot.episode, slot.last_use = list(request.ids[:start]), request.episode, self._clock
        random = torch.Generator().manual_seed(request.seed)
        draws = torch.rand(request.max_tokens, dtype=torch.float64, generator=random).tolist()
        self._active.append(Active(slot, request, future, draws, Spoken(request.ids), request.ids[-1]))
        return self._active[-1]

    @torch.no_grad()
    def _start(self, starting: Sequence[Active]) -> None:
        """Compute what the slots lack of their prompts, and sample each one's first token."""
        device = self._embedding.device
        parts = [Prefill(each.slot.number, len(each.slot.ids), len(each.request.ids)) for each in starting]
        tokens = [token for part, each in zip(parts, starting, strict=True) for token in each.request.ids[part.start :]]
        positions = torch.cat([torch.arange(part.start, part.end) for part in parts])
        view = Prefills(tuple(parts))
        hidden = self._forward(torch.tensor([tokens], device=device), positions.to(device)[None], view)
        for each in starting:
            each.slot.ids = list(each.request.ids)
        last = np.cumsum([part.end - part.start for part in parts]) - 1
        self._sample([(each, []) for each in starting], hidden[0, last.tolist()])

    @torch.no_grad()
    def _step(self) -> None:
        """Compute what each slot sampled last and what is guessed to follow, and sample the next token after it."""
        self._compact()
        self._active.sort(key=lambda each: each.slot.number)
        # There is a draw left for each token that may be sampled; after the last one, none is guessed.
        guessed = [(each, each.spoken.guess(min(GUESSES, len(each.draws) - 1))) for each in self._active]
        tokens, places = list[int](), list[tuple[int, int, int]]()
        for each, after in guessed:
            slot = each.slot
            places += [(slot.number, number, len(slot.ids) + number) for number in range(1 + len(after))]
            slot.ids.append(each.next_token)
            tokens += each.next_token, *after
        device = self._embedding.device
        # In steps, since each new length costs a GPU some setup; what is added is masked.
        longest = -(-max(1 + place for *_, place in places) // KEYS_STEP) * KEYS_STEP
        view = Decode.of(places, longest, device)
        hidden = self._forward(torch.tensor([tokens], device=device), view.places_R[None], view)
        self._sample(guessed, hidden[0])

    def _compact(self) -> None:
        """Move active slots into earlier free ones, since a step covers all slots up to the last active one."""
        for free in [slot for slot in self._free_slots() if not slot.episode]:
            last = max((active.slot for active in self._active), key=lambda slot: slot.number)
            if last.number < free.number:
                return
            self._cache.copy(last.number, free.number, len(last.ids))
            self.slots[last.number], self.slots[free.number] = free, last
            last.number, free.number, free.ids = free.number, last.number, []

    def _forward(self, ids: Tensor, positions: Tensor, view: Prefills | Decode) -> Tensor:
        self._cache.view = view
        decoder, _ = decoder_and_head(self.model)
        return decoder(
            input_ids=ids, position_ids=positions, past_key_values=self._cache, use_cache=True, view=view
        ).last_hidden_state

    def _sample(self, guessed: Sequence[tuple[Active, Sequence[int]]], hidden_RD: Tensor) -> None:
        """Sample each request's next token with its own random numbers, so that it doesn't depend on the others; and
        as long as it is the one that was guessed, the one after."""
        _, head = decoder_and_head(self.model)
        rows = [(each.request, draw) for each, after in guessed for draw in each.draws[: 1 + len(after)]]
        temperatures_R = hidden_RD.new_tensor(
            [request.sampling.temperature for request, _ in rows], dtype=torch.float32
        )
        draws_R = hidden_RD.new_tensor([draw for _, draw in rows], dtype=torch.float64)
        logits_RV = fp32_logits(head, hidden_RD).div_(temperatures_R.where(temperatures_R > 0, 1)[:, None])
        top_R1 = logits_RV.amax(-1, keepdim=True)
        drawn_R, totals_R = inverse_cdf((logits_RV - top_R1).exp_(), draws_R)
        chosen_R = torch.where(temperatures_R > 0, drawn_R, logits_RV.argmax(-1))
        logprobs_R = (logits_RV.gather(1, chosen_R[:, None]) - top_R1)[:, 0] - totals_R.log()
        if not logprobs_R.isfinite().all():
            raise UserError(f"with adapter {self.adapter} the model's probabilities are NaN; go back to an earlier one")
        sampled = zip(chosen_R.tolist(), logprobs_R.tolist(), strict=True)
        for each, after in guessed:
            for guess, (token, logprob) in zip((*after, None), list(islice(sampled, 1 + len(after))), strict=True):
                each.take(token, logprob)
                if token != guess or each.finish:
                    break
                each.slot.ids.append(token)

    def _finish(self) -> None:
        """Give complete samples to their callers, and up what nobody waits for. The keys and values of a last token are
        not computed."""
        for each in tuple(self._active):
            if each.future.cancelled():
                self._active.remove(each)
            elif finish := each.finish:
                self._active.remove(each)
                each.future.set_result(Sample(tuple(each.sampled), tuple(each.logprobs), finish))


def longest_start(held: Sequence[Sequence[int]], wanted: Sequence[int], own: int) -> tuple[int, int]:
    """The slot whose tokens share the longest beginning with those wanted, and its length; on a tie the `own`.

    Comparing one token rules out most slots, whatever their length.
    """
    source, start = own, common_start(held[own], wanted)
    for number, ids in enumerate(held):
        if start < min(len(ids), len(wanted)) and ids[start] == wanted[start]:
            shared = common_start(ids, wanted)
            source, start = (number, shared) if shared > start else (source, start)
    return source, start


def inverse_cdf(weights_RV: Tensor, draws_R: Tensor) -> tuple[Tensor, Tensor]:
    """The token at which the sum of the weights passes a share of them, drawn from [0, 1); and the sum of all.

    Summed in fp64, by blocks and then within one. A token of weight 0 is never taken, however the sums are rounded.

    Example: weights 2 5 3 and a draw of .6 give token 1 and 10; the same draw always gives the same token.
    """
    size = math.gcd(weights_RV.shape[1], 256)
    blocks_RNB = weights_RV.view(len(weights_RV), -1, size)
    masses_RN = blocks_RNB.sum(-1, dtype=torch.float64)
    sums_RN = masses_RN.cumsum(-1)
    totals_R1 = sums_RN.amax(-1, keepdim=True)
    wanted_R1 = draws_R[:, None] * totals_R1
    block_R1 = first_above(sums_RN, masses_RN, wanted_R1)
    before_R1 = (sums_RN - masses_RN).gather(1, block_R1)
    within_RB = blocks_RNB[torch.arange(len(block_R1), device=block_R1.device), block_R1[:, 0]].double()
    token_R1 = size * block_R1 + first_above(within_RB.cumsum(-1), within_RB, wanted_R1 - before_R1)
    return token_R1[:, 0], totals_R1[:, 0]


def first_above(sums_RN: Tensor, parts_RN: Tensor, wanted_R1: Tensor) -> Tensor:
    """(R, 1): the first part that isn't 0 and whose sum is above the wanted one, or is the highest.

    Not by a search: a GPU adds in parallel, so that sums may fall, as they are rounded in different orders.
    """
    sums_RN = sums_RN.masked_fill(parts_RN == 0, -torch.inf)
    return ((sums_RN > wanted_R1) | (sums_RN == sums_RN.amax(-1, keepdim=True))).int().argmax(-1, keepdim=True)


def slots_within(base: Any, wanted: int, longest: int) -> int:
    """How many of the `wanted` sequences a GPU can sample at once, beside the base that is loaded.

    Each takes its keys and values, and its logits. A tenth of the GPU stays for the adapter and for reading prompts.
    """
    torch.cuda.empty_cache()  # what an update has left to this process counts as free
    free, total = torch.cuda.mem_get_info()
    token = 2 * math.prod(SlotCache(base.config, 1).shape) * base.dtype.itemsize
    room = free - total // 10
    slots: int = min(wanted, room // (token * (longest + GROW) + LOGIT_BYTES * base.config.vocab_size))
    there = f"{room / 2**30:.1f} GiB that are free of this GPU"
    if slots < 1:
        raise UserError(
            f"not even one sequence of {longest} tokens can be sampled in the {there}; lower --max-tokens, or start a "
            "vLLM server"
        )
    print(f"engine: {slots} of {wanted} sequences of {longest} tokens at once, in the {there}", flush=True)
    return slots


# What a LoRA adapter of create_lora_model.py does to the layers of its base.

Shapes = Mapping[str, tuple[int, ...]]  # a model's weights by name
PART = re.compile(r"base_model\.model\.(.+)\.(lora_A|lora_B|lora_magnitude_vector)(?:\.weight)?")


@dataclass(frozen=True)
class Change:
    """What an adapter does to one weight: lora_A, lora_B and maybe lora_magnitude_vector."""

    parts: dict[str, Tensor]
    scale: float
    transposed: bool
    """The weight is (in, out), as in gpt2's Conv1D."""


def find_changes(folder: Path, base: str, shapes: Shapes, tied_vocabulary: int | None) -> dict[str, Change]:
    """The change to each weight, by its name; an adapter that does more than that is refused.

    `base` names the model in errors; `tied_vocabulary`: its size where input and output share one weight.
    """
    config = json.loads((folder / "adapter_config.json").read_text())
    parts: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for name, tensor in load_file(folder / "adapter_model.safetensors").items():
        match = PART.fullmatch(name)
        if not match or config["rank_pattern"] or config["alpha_pattern"]:
            raise UserError(f"{folder} is no adapter of create_lora_model.py ({name}); start a vLLM server for it")
        parts[f"{match[1]}.weight"][match[2]] = tensor
    if missing := parts.keys() - shapes.keys():
        raise UserError(f"{folder}: {min(missing)} is no weight of {base}; is that its base?")
    if twice := [key for key in parts if shapes[key][0] == tied_vocabulary]:
        raise UserError(f"{folder} changes {twice[0]}, which {base} uses as both input and output")
    # rsLoRA's scale: https://arxiv.org/abs/2312.03732
    scale = config["lora_alpha"] / (math.sqrt(config["r"]) if config["use_rslora"] else config["r"])
    return {key: Change(each, scale, config["fan_in_fan_out"]) for key, each in parts.items()}


def adding(layer: Any, change: Change) -> Callable[[Any, tuple[Tensor], Tensor], Tensor]:
    """A forward hook that makes the output of a linear layer with weights W that of one with W + sBA.

    The weights stay as they are: rounded to bf16, W + sBA would be W again where an adapter is young. DoRA, which
    rescales the rows of W + sBA to learned magnitudes (https://arxiv.org/abs/2402.09353), is computed in fp32.
    """
    parts = {name: part.to(layer.weight.device, torch.float32) for name, part in change.parts.items()}
    first_DR, last_RO = parts["lora_A"].T, parts["lora_B"].T
    factor_O = None
    if "lora_magnitude_vector" in parts:
        norms_O = row_norms(layer, change.scale * first_DR @ last_RO, change.transposed)
        factor_O = parts["lora_magnitude_vector"] / norms_O

    def add(_: Any, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        if factor_O is None:
            return with_adapter(output, inputs[0].to(output.dtype), first_DR, last_RO, change.scale)[0]
        added = change.scale * factor_O * (inputs[0].float() @ first_DR @ last_RO)
        return output.add_(added + (factor_O - 1) * (output if layer.bias is None else output - layer.bias))

    return add


def row_norms(layer: Any, change_DO: Tensor, transposed: bool) -> Tensor:
    """(O,) lengths of the rows of a linear layer's changed weights, 4-bit ones unpacked."""
    from peft.utils.integrations import dequantize_module_weight

    weight: Tensor = dequantize_module_weight(layer).float()
    return torch.linalg.norm((weight if transposed else weight.T) + change_DO, dim=0)
