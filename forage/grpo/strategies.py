"""Sharding strategies: plain data parallelism, DeepSpeed's ZeRO-2 and ZeRO-3, and FSDP2.

Each holds a Scorer, its trained weights in the order of their names, and their AdamW.

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
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from forage.grpo.learner import Scorer
from forage.optimizer import update_weights
from forage.policy.policy import move_scales, store_as
from forage.processes import Offload, Sharding, process_device, rank, sum_gradients, world

CONFIGS = Path(__file__).parent / "deepspeed"
MOMENTS = ("exp_avg", "exp_avg_sq")  # AdamW's state for each weight, besides the number of updates


def make_strategy(
    scorer: Scorer, weight_decay: float, sharding: Sharding, offload: Offload, configs: Path
) -> Replicated:
    if sharding == "none":
        return Replicated(scorer, weight_decay)
    if sharding == "fsdp2":
        return FullyShardedDataParallel(scorer, weight_decay)
    strategy = Zero2 if sharding == "zero2" else Zero3
    return strategy(scorer, weight_decay, with_offload(json.loads((configs / f"{sharding}.json").read_text()), offload))


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

    def __init__(self, scorer: Scorer, weight_decay: float) -> None:
        self.scorer: Any = scorer.to(process_device())
        self._make_optimizer(weight_decay)

    def _make_optimizer(self, weight_decay: float) -> None:
        self.weights = list(trained_weights(self.scorer).values())
        self.optimizer = torch.optim.AdamW(self.weights, lr=0.0, weight_decay=weight_decay)
        self.states: list[dict[str, Tensor]] = [fresh_state(weight) for weight in self.weights]
        self.optimizer.state.update(zip(self.weights, self.states, strict=True))

    def backward(self, loss: Tensor, *, last: bool) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def step(self, learning_rate: float, max_norm: float) -> float:
        self._sum_gradients()
        norm = update_weights(self.optimizer, learning_rate, max_norm)
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

    def __init__(self, scorer: Scorer, weight_decay: float) -> None:
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
        self._make_optimizer(weight_decay)

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

    def __init__(self, scorer: Scorer, weight_decay: float, config: dict[str, Any]) -> None:
        deepspeed = _deepspeed()
        self._partition(scorer, config)
        self.weights = list(trained_weights(scorer).values())
        optimizer = torch.optim.AdamW(self.weights, lr=0.0, weight_decay=weight_decay)
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

    def step(self, learning_rate: float, max_norm: float) -> float:
        for group in self.zero.param_groups:
            group["lr"] = learning_rate
        self.zero.clip_grad = max_norm
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
