"""Sharding: the learner over several processes that share a policy.

    torchrun --nproc-per-node 2 grpo_train.py --sharding fsdp2

A checkpoint is gathered before it is written: it depends neither on the number of processes nor on the sharding.

The model is shared out by plain data parallelism, DeepSpeed's ZeRO-2 and ZeRO-3, or FSDP2. Each of these strategies
holds a Scorer, its trained weights in the order of their names, and their AdamW.

| sharding | each process keeps       | gradients and AdamW's state | weights travel    | gradients travel  |
|----------|--------------------------|-----------------------------|-------------------|-------------------|
| none     | the whole model          | all                         | never             | once an update    |
| zero2    | the whole model          | its part                    | once an update    | every micro-batch |
| zero3    | its part of every weight | its part                    | every micro-batch | every micro-batch |
| fsdp2    | its part of every weight | its part                    | every micro-batch | once an update    |

DeepSpeed and FSDP2 are called directly: accelerate's Accelerator silently ignores both on CPUs and runs plain data
parallelism. Called directly, what the tests shard on CPUs, over gloo, is the code that runs on GPUs.

The loss is already divided by the totals over all processes, so gradients are summed; DeepSpeed and FSDP2 would average
them. Weights keep the type they were loaded in (a base in bf16, an adapter in fp32), as in one process, so that a run's
figures don't depend on the sharding; where a 4-bit base is sharded, its bytes are only called bf16. In
deepspeed/zero3.json no weight persists: a persistent one would be kept whole by every process, and swapping in the
reference adapter swaps parts only.

Every process loads the whole base into its own CPU memory before it is sharded (a 7B in bf16: 15 GB each). GPUs only
ever hold their part, and temporarily one layer (fsdp2) or a few weights (zero3; deepspeed/zero3.json says how many).

One process may be sharded too. Then zero2 is the plain Learner with DeepSpeed's bookkeeping, and zero3 can keep the
weights in the CPU's memory (--offload all).
"""

from __future__ import annotations

import importlib
import json
import logging
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils.checkpoint import checkpoint

from forage.errors import UserError
from forage.files import replacing
from forage.grpo.learner import Learner, Scorer
from forage.optimizer import MAX_NORM, update_weights
from forage.policy.adapters import adapter_path, publish_adapter
from forage.policy.checkpoint import load_checkpoint, save_checkpoint
from forage.policy.logprobs import TokenScores, chunk_scores, token_scores, unsharable
from forage.policy.packing import TokenBatch
from forage.policy.policy import move_scales, store_as
from forage.processes import (
    Offload,
    Sharding,
    all_gather,
    all_reduced,
    process_device,
    rank,
    sum_gradients,
    wait_for_all,
    world,
)

# Sequence parallelism: P processes share every row, 1/P of its tokens each, for episodes too long for one GPU.
#
# Ulysses, https://arxiv.org/abs/2309.14509: everything but attention works token by token. Before attention, processes
# exchange tokens for heads, so that each has all tokens of 1/P of the heads; after it, they exchange them back.
# DeepSpeed's implementation (deepspeed.runtime.sequence_parallel.ulysses_sp) needs a fixed number of rows and no
# padding, and torch's ring attention has no CPU kernel.
#
# Example: 2 processes, 4 heads, a row of tokens 0..5. The first process computes tokens 0 1 2 with all heads, then the
# attention of heads 0 1 for all six tokens, then tokens 0 1 2 again.

SHARED_ROWS = "shared_rows"  # the attention function's name in transformers' registry


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
        AttentionInterface.register(SHARED_ROWS, self.attention)
        policy.get_base_model().set_attn_implementation(SHARED_ROWS)

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


# Strategies

CONFIGS = Path(__file__).parent / "deepspeed"
MOMENTS = ("exp_avg", "exp_avg_sq")  # AdamW's state for each weight, besides the number of updates


def make_strategy(scorer: Scorer, sharding: Sharding, offload: Offload) -> Replicated:
    if sharding == "none":
        return Replicated(scorer)
    if sharding == "fsdp2":
        return FullyShardedDataParallel(scorer)
    strategy = Zero2 if sharding == "zero2" else Zero3
    return strategy(scorer, with_offload(json.loads((CONFIGS / f"{sharding}.json").read_text()), offload))


def with_offload(config: dict[str, Any], offload: Offload) -> dict[str, Any]:
    """DeepSpeed's configuration with AdamW and its state on the CPU ("optimizer"), or the weights too ("all").

    The update is torch's own AdamW there as well: DeepSpeed's would be compiled at the first start.
    """
    on_cpu, moved = {"device": "cpu", "pin_memory": True}, dict[str, Any]()
    if offload != "none":
        moved["offload_optimizer"] = on_cpu
    if offload == "all":
        moved["offload_param"] = on_cpu
    return config | {
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": config["zero_optimization"] | moved,
    }


def trained_weights(module: nn.Module) -> dict[str, Any]:
    return {name: weight for name, weight in module.named_parameters() if weight.requires_grad}


def fresh_state(weight: Tensor) -> dict[str, Tensor]:
    """AdamW's state before the first update; created early, so that checkpoints can be loaded into it."""
    return {"step": torch.tensor(0.0), **{moment: torch.zeros_like(weight) for moment in MOMENTS}}


class Replicated:
    """Plain data parallelism: every process holds the whole model, and gradients are summed before an update."""

    title = "plain data parallelism"

    def __init__(self, scorer: Scorer) -> None:
        self.scorer: Any = scorer.to(process_device())
        self._make_optimizer()

    def _make_optimizer(self) -> None:
        self.weights = list(trained_weights(self.scorer).values())
        self.optimizer = torch.optim.AdamW(self.weights, lr=0.0, weight_decay=0.0)
        self.states: list[dict[str, Tensor]] = [fresh_state(weight) for weight in self.weights]
        self.optimizer.state.update(zip(self.weights, self.states, strict=True))

    def backward(self, loss: Tensor, *, last: bool) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def step(self, learning_rate: float) -> float:
        self._sum_gradients()
        norm = update_weights(self.optimizer, learning_rate)
        self.release()
        return norm

    def _sum_gradients(self) -> None:
        sum_gradients(self.weights)

    def working_weights(self) -> list[Tensor]:
        """The weights that a forward pass reads: this process's part of each."""
        return [weight.data for weight in self.weights]

    def own_part(self, number: int, full: Tensor) -> Tensor:
        """This process's part of a full value of weight `number`."""
        return full

    def release(self) -> None:
        """Free the full weights that were gathered from parts."""

    def updates(self) -> float:
        """How many updates there have been."""
        return self.states[0]["step"].item()

    def gather(self) -> list[list[Tensor]]:
        """(weight, exp_avg, exp_avg_sq) of each weight, in full. All processes must call it together."""
        return [
            [_full(tensor).detach().cpu().clone() for tensor in (weight, *(state[m] for m in MOMENTS))]
            for weight, state in zip(self.weights, self.states, strict=True)
        ]

    def scatter(self, values: Sequence[Sequence[Tensor]], updates: float) -> None:
        """The opposite of gather; every process passes the full values."""
        for weight, state, whole in zip(self.weights, self.states, values, strict=True):
            state["step"].fill_(updates)
            for tensor, value in zip((weight, *(state[m] for m in MOMENTS)), whole, strict=True):
                _local(tensor).copy_(_local(_like(tensor, value)))
        self.release()


class FullyShardedDataParallel(Replicated):
    """FSDP2: each decoder layer is gathered when it is needed; the rest (embeddings, norm, head) as one."""

    title = "FSDP2"

    def __init__(self, scorer: Scorer) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, fully_shard

        make_shardable(scorer)
        mesh = init_device_mesh(process_device().type, (world(),))
        for layer in scorer.policy.get_base_model().get_decoder().layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(scorer, mesh=mesh, reshard_after_forward=True)
        self.scorer = scorer
        for module in scorer.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)  # gloo can't multiply before it adds
        self._make_optimizer()

    def backward(self, loss: Tensor, *, last: bool) -> None:
        self.scorer.set_requires_gradient_sync(last)
        loss.backward()  # type: ignore[no-untyped-call]

    def _sum_gradients(self) -> None:
        """Nothing to do: the last micro-batch's backward pass has already summed them."""

    def working_weights(self) -> list[Tensor]:
        return [_local(weight.data) for weight in self.weights]

    def own_part(self, number: int, full: Tensor) -> Tensor:
        return _local(_like(self.weights[number], full))


class Zero2(Replicated):
    """DeepSpeed's ZeRO-2, with torch's AdamW."""

    def __init__(self, scorer: Scorer, config: dict[str, Any]) -> None:
        deepspeed = _deepspeed()
        self._partition(scorer, config)
        self.weights = list(trained_weights(scorer).values())
        optimizer = torch.optim.AdamW(self.weights, lr=0.0, weight_decay=0.0)
        self.engine, *_ = deepspeed.initialize(model=scorer, optimizer=optimizer, config=config)
        self.scorer, self.zero, self.deepspeed_utils = self.engine, self.engine.optimizer, deepspeed.utils
        version, stage = deepspeed.__version__, self.engine.zero_optimization_stage()
        self.title = ", ".join([f"DeepSpeed {version} ZeRO-{stage}", *_offloaded(self.zero)])
        self.states: list[dict[str, Tensor]] = []
        self._make_states()

    def _partition(self, scorer: Scorer, config: dict[str, Any]) -> None:
        """Nothing to do: every process keeps the whole model."""

    def _make_states(self) -> None:
        self._set_states(self.zero.single_partition_of_fp32_groups)
        self.zero._lazy_init_hp_params_optimizer_state()  # tells each weight where its part of the state is

    def _set_states(self, flat: Sequence[Tensor]) -> None:
        """Give AdamW its state as DeepSpeed lays it out: this process's parts of all weights, concatenated."""
        self.states = [fresh_state(part) for part in flat]
        self.zero.optimizer.state.update(zip(flat, self.states, strict=True))

    def backward(self, loss: Tensor, *, last: bool) -> None:
        self.engine.set_gradient_accumulation_boundary(last)
        self.engine.backward(loss * world(), scale_wrt_gas=False)

    def step(self, learning_rate: float) -> float:
        for group in self.zero.param_groups:
            group["lr"] = learning_rate
        self.zero.clip_grad = MAX_NORM
        self.engine.step()  # skips the update where the norm is not finite
        return float(self.engine.get_global_grad_norm())

    def gather(self) -> list[list[Tensor]]:
        utils = self.deepspeed_utils
        get, get_moment = utils.safe_get_full_fp32_param, utils.safe_get_full_optimizer_state
        return [
            [tensor.detach().cpu().clone() for tensor in (get(weight), *(get_moment(weight, m) for m in MOMENTS))]
            for weight in self.weights
        ]

    def scatter(self, values: Sequence[Sequence[Tensor]], updates: float) -> None:
        self.release()
        for number, (weight, working) in enumerate(zip(self.weights, self.working_weights(), strict=True)):
            parts = [self.own_part(number, value.to(working.device)) for value in values[number]]
            working.copy_(parts[0])
            self._write_part(weight, *parts)
        for state in self.states:
            state["step"].fill_(updates)

    def _write_part(self, weight: Tensor, value: Tensor, *moments: Tensor) -> None:
        self.deepspeed_utils.safe_set_full_fp32_param(weight, value)
        for name, moment in zip(MOMENTS, moments, strict=True):
            self.deepspeed_utils.safe_set_full_optimizer_state(weight, moment, name)


def _offloaded(zero: Any) -> list[str]:
    """What DeepSpeed says it keeps on the CPU; the first attribute is ZeRO-2's, the others are ZeRO-3's."""
    attributes = {"cpu_offload": "optimizer", "offload_optimizer": "optimizer", "offload_param": "weights"}
    return [f"{part} on the CPU" for attribute, part in attributes.items() if getattr(zero, attribute, False)]


class Zero3(Zero2):
    """DeepSpeed's ZeRO-3, with torch's AdamW."""

    def _partition(self, scorer: Scorer, config: dict[str, Any]) -> None:
        make_shardable(scorer)
        # Weight by weight, from CPU memory: initialize() would move the whole model to the GPU first.
        _deepspeed().zero.Init(module=scorer, config_dict_or_path=config)
        for buffer in scorer.buffers():
            buffer.data = buffer.data.to(process_device())

    def _make_states(self) -> None:
        self._set_states(self.zero.fp32_partitioned_groups_flat)

    def working_weights(self) -> list[Tensor]:
        return [weight.ds_tensor.data for weight in self.weights]

    def own_part(self, number: int, full: Tensor) -> Tensor:
        """A slice of the flat weight; the last process's is padded with zeros."""
        size = self.weights[number].ds_tensor.numel()
        flat = full.flatten()[size * rank() :][:size]
        return nn.functional.pad(flat, (0, size - flat.numel()))

    def release(self) -> None:
        self.zero._partition_all_parameters()

    def _write_part(self, weight: Tensor, value: Tensor, *moments: Tensor) -> None:
        # The setters of full weights don't expect the padding at the end.
        self.deepspeed_utils.safe_set_local_fp32_param(weight, value)
        for name, moment in zip(MOMENTS, moments, strict=True):
            self.deepspeed_utils.safe_set_local_optimizer_state(weight, moment, name)


def make_shardable(model: nn.Module) -> None:
    """Call 4-bit weights bf16, and bring their scales to this process's device: DeepSpeed moves only the weights."""
    store_as(model, torch.bfloat16)
    move_scales(model, process_device())


def _full(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _local(tensor: Tensor) -> Tensor:
    if not isinstance(tensor, DTensor):
        return tensor.detach()
    part: Tensor = tensor.to_local()
    return part.detach()


def _like(tensor: Tensor, value: Tensor) -> Tensor:
    """A full value, sharded as the tensor is."""
    if not isinstance(tensor, DTensor):
        return value
    return distribute_tensor(value.to(tensor.device), tensor.device_mesh, tensor.placements, src_data_rank=None)


def _deepspeed() -> Any:
    """DeepSpeed, as quiet as possible, and on CPUs without the operator that it would compile there."""
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    deepspeed: Any = importlib.import_module("deepspeed")
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    if not torch.cuda.is_available():
        vars(deepspeed.ops)["__compatible_ops__"] = {}
    return deepspeed


# The learner


class GatheredState:
    """Full weights and their AdamW in CPU memory, in the form that forage.policy.checkpoint reads and writes."""

    def __init__(self, names: Sequence[str], values: Sequence[Sequence[Tensor]], updates: float) -> None:
        self.weights = {name: nn.Parameter(value[0]) for name, value in zip(names, values, strict=True)}
        self.optimizer = torch.optim.AdamW(self.weights.values())
        for weight, (_, *moments) in zip(self.weights.values(), values, strict=True):
            self.optimizer.state[weight] = {"step": torch.tensor(updates), **dict(zip(MOMENTS, moments, strict=True))}

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return iter(self.weights.items())

    def values(self) -> list[list[Tensor]]:
        states = [self.optimizer.state.get(weight) or fresh_state(weight) for weight in self.weights.values()]
        return [
            [weight.detach(), *(state[m] for m in MOMENTS)]
            for weight, state in zip(self.weights.values(), states, strict=True)
        ]

    def updates(self) -> float:
        return max((state["step"].item() for state in self.optimizer.state.values()), default=0.0)


SCALE = ("r", "lora_alpha", "use_rslora", "use_dora")  # how an adapter's weights are used, beside the weights


class ShardedLearner(Learner):
    """A Learner over joined processes (join_processes): each loads the same policy and calls the same methods."""

    # One process can't while the others go on, and DeepSpeed and FSDP2 stop in the middle of their bookkeeping.
    can_start_over = False

    def __init__(
        self,
        policy: Any,
        sharding: Sharding = "none",
        sequence_parallel: int = 1,
        offload: Offload = "none",
        chunk: int = 256,
    ) -> None:
        self.rank, self.world, self.device = rank(), world(), process_device()
        self.policy, self.names = policy, list(trained_weights(policy))
        self.sequence_parallel, shared = sequence_parallel, None
        if sequence_parallel > 1:
            check_split(policy.config, sequence_parallel, self.world)
            group, _ = dist.new_subgroups(sequence_parallel)  # type: ignore[no-untyped-call]
            shared = SequenceParallelPolicy(policy, group)
        scorer = LockstepScorer(policy, same_chunks=sharding == "zero3", chunk=chunk, shared=shared)
        self.strategy = make_strategy(scorer, sharding, offload)
        self.scorer = self.strategy.scorer
        self._kept: dict[str, list[Tensor]] = {}
        torch.manual_seed(torch.initial_seed() + self.rank)  # each process draws its own dropout

    @contextmanager
    def adapter(self, name: str) -> Iterator[None]:
        """As in Learner. Not between a score and its backward pass, while the weights are in use."""
        self._swap(name)
        try:
            yield
        finally:
            self._swap(name)

    def keep(self, name: str, folder: Path) -> None:
        weights = self._read_adapter(folder)
        self._kept[name] = [
            self.strategy.own_part(number, weight.to(self.device)).clone() for number, weight in enumerate(weights)
        ]

    def _swap(self, name: str) -> None:
        """Exchange the adapter's parts with a kept one's: loading a second adapter would shard the model again."""
        self.strategy.release()
        for weight, kept in zip(self.strategy.working_weights(), self._kept[name], strict=True):
            before = weight.clone()
            weight.copy_(kept)
            kept.copy_(before)

    def backward(self, loss: Tensor, *, last: bool) -> None:
        self.strategy.backward(loss, last=last)

    def step(self, learning_rate: float) -> float:
        return self.strategy.step(learning_rate)

    # Saving and loading: all processes gather together, only the first one writes

    def publish(self, folder: Path, version: int) -> Path:
        weights = dict(zip(self.names, (value[0] for value in self.strategy.gather()), strict=True))
        if self.rank == 0:
            publish_adapter(self.policy, folder, version, state_dict=weights)
        wait_for_all()
        return adapter_path(folder, version)

    def load_adapter(self, folder: Path) -> None:
        weights = self._read_adapter(folder)
        self.strategy.scatter([[w, torch.zeros_like(w), torch.zeros_like(w)] for w in weights], updates=0.0)

    def _read_adapter(self, folder: Path) -> list[Tensor]:
        """The adapter's weights in the order of `names`."""
        from peft import PeftConfig, get_peft_model_state_dict, load_peft_weights

        numbers = {name: torch.tensor(number) for number, name in enumerate(self.names)}
        keys = get_peft_model_state_dict(self.policy, numbers, save_embedding_layers=False)
        saved = load_peft_weights(str(folder), device="cpu")
        own, its = self.policy.peft_config["default"], PeftConfig.from_pretrained(str(folder))
        if set(keys) != set(saved) or any(getattr(own, name) != getattr(its, name) for name in SCALE):
            raise UserError(f"{folder} holds another kind of adapter than the one in training; use one of this run")
        ordered = sorted(keys, key=lambda key: int(keys[key]))
        return [saved[key].float() for key in ordered]

    def save(self, folder: Path, step: int, extra: Any) -> None:
        gathered = GatheredState(self.names, self.strategy.gather(), self.strategy.updates())
        # Every process's random state, as each draws its own; forage.policy.checkpoint saves only one.
        own = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            own["cuda"] = torch.cuda.get_rng_state(self.device)
        states = enumerate(all_gather(own))
        random = {f"{rank}.{name}": state for rank, parts in states for name, state in parts.items()}
        if self.rank == 0:
            older = list(folder.glob("random-*.safetensors"))
            folder.mkdir(parents=True, exist_ok=True)
            path = _random_path(folder, step)
            with replacing(path) as file:
                file.buffer.write(save(random))
            save_checkpoint(folder, step, gathered, gathered.optimizer, extra)
            for other in set(older) - {path}:
                other.unlink()
        wait_for_all()

    def load(self, folder: Path) -> tuple[int, Any] | None:
        gathered = GatheredState(self.names, self.strategy.gather(), self.strategy.updates())
        found = load_checkpoint(folder, gathered, gathered.optimizer)
        if found:
            self.strategy.scatter(gathered.values(), gathered.updates())
            self._set_random(_random_path(folder, found[0]))
        return found

    def _set_random(self, path: Path) -> None:
        states = load_file(path) if path.exists() else {}
        if f"{self.rank}.cpu" not in states:  # the checkpoint was saved with fewer processes
            torch.manual_seed(torch.initial_seed() + self.rank)
            return
        torch.set_rng_state(states[f"{self.rank}.cpu"])
        if self.device.type == "cuda" and f"{self.rank}.cuda" in states:
            torch.cuda.set_rng_state(states[f"{self.rank}.cuda"], self.device)

    # Communication between processes

    def sums(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        summed = {}
        for name, value in sorted(values.items()):
            suffix = name.rpartition("_")[2]
            operation = suffix if suffix in ("max", "min") else "sum"
            own = value.to(self.device)
            if operation == "sum" and self.rank % self.sequence_parallel:
                own = torch.zeros_like(own)  # processes that share rows all have the same figures, which count once
            summed[name] = all_reduced(own, operation)
        return {name: summed[name] for name in values}

    def shard(self, items: Iterable[Any]) -> list[Any]:
        """This process's micro-batches; all processes get the same number, padded with an empty one if need be.

        Example: of 2 processes that share a b c, the first gets [a, c], the second [b, c with nothing sampled].
        """
        batches, shares = list(items), self.world // self.sequence_parallel
        missing = -len(batches) % shares
        batches += [nothing_sampled(batches[-1]) for _ in range(missing)]
        return batches[self.rank // self.sequence_parallel :: shares]


def _random_path(folder: Path, step: int) -> Path:
    return folder / f"random-{step:06d}.safetensors"


# Lockstep: processes that share a policy must all pass through the same layers equally often


class LockstepScorer(Scorer):
    """A Scorer that passes through every layer as often as those of the other processes.

    Processes wait for one another at every layer, in the backward pass too. So a batch without sampled tokens sends two
    dummy tokens through the model. ZeRO-3 also gathers the output layer again for each of token_scores' chunks, and a
    batch with few sampled tokens has fewer of them: `same_chunks` adds empty ones.
    """

    def __init__(
        self, policy: Any, *, same_chunks: bool = False, chunk: int = 256, shared: SequenceParallelPolicy | None = None
    ) -> None:
        super().__init__(policy)
        self.same_chunks, self.chunk, self.shared = same_chunks, chunk, shared

    def forward(self, batch: TokenBatch, temperature: float, *teacher: Tensor) -> TokenScores:
        del teacher  # options.py refuses its states here
        if self.shared:
            part = self.shared.own_columns(batch)
            return self.shared.gather_scores(token_scores(self.shared, part, self.chunk, temperature), batch)
        predicted = batch.predictions
        # Before the output layer is gathered for the first time: processes may not wait for different things.
        missing = 0
        if self.same_chunks:
            own = math.ceil(max(predicted, 1) / self.chunk)
            missing = int(all_reduced(torch.tensor(own, device=process_device()), "max")) - own
        if predicted:
            scores = token_scores(self.policy, batch, self.chunk, temperature)
        else:
            scores = self._score_dummy_tokens(batch, temperature)
        return scores._replace(logprobs_BT=scores.logprobs_BT + self._empty_chunks(missing)) if missing else scores

    def _score_dummy_tokens(self, batch: TokenBatch, temperature: float) -> TokenScores:
        positions_BT = torch.tensor([[0, 1]], device=batch.ids_BT.device)
        zeros_BT, sampled_BT = torch.zeros_like(positions_BT), positions_BT  # the second token counts as sampled
        dummy = TokenBatch(zeros_BT, positions_BT, sampled_BT, zeros_BT, torch.ones_like(zeros_BT))
        nothing_BT = torch.zeros(batch.ids_BT.shape, device=batch.ids_BT.device)
        through = token_scores(self.policy, dummy, self.chunk, temperature).logprobs_BT.sum() * 0
        return TokenScores(nothing_BT + through, nothing_BT)

    def _empty_chunks(self, count: int) -> Tensor:
        """Pass as many tokens through the output layer as chunks are missing, in the way that chunks take."""
        head, device = self.policy.get_output_embeddings(), process_device()
        width = self.policy.config.get_text_config().hidden_size
        hidden_ND = torch.zeros(1, width, dtype=head.weight.dtype, device=device, requires_grad=torch.is_grad_enabled())
        token_N = torch.zeros(1, dtype=torch.long, device=device)
        nothing = torch.zeros((), device=device)
        for _ in range(count):
            logprobs_N, _ = checkpoint(chunk_scores, head, 1.0, hidden_ND, token_N, use_reentrant=False)
            nothing = nothing + logprobs_N.sum() * 0
        return nothing


def nothing_sampled(batch: TokenBatch) -> TokenBatch:
    """The same batch with no token marked as sampled: it keeps a process in step with the others."""
    return replace(batch, sampled_BT=torch.zeros_like(batch.sampled_BT))
