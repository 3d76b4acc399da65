"""Sharding: the learner over several processes, by plain data parallelism, DeepSpeed's ZeRO-2 and ZeRO-3, or FSDP2.

DeepSpeed and FSDP2 are called directly and not by accelerate's Accelerator, which on CPUs ignores both without a word
and runs plain data parallelism. So what the tests shard on CPUs, between processes that talk by gloo, is the code that
runs on GPUs.

    torchrun --nproc-per-node 2 grpo_train.py --sharding fsdp2

| sharding | each process keeps       | of gradients and AdamW's state | weights travel    | gradients travel   |
|----------|--------------------------|--------------------------------|-------------------|--------------------|
| none     | the whole model          | all                            | never             | once an update     |
| zero2    | the whole model          | its part                       | once an update    | every micro-batch  |
| zero3    | its part of every weight | its part                       | every micro-batch | every micro-batch  |
| fsdp2    | its part of every weight | its part                       | every micro-batch | once an update     |

A loss is already divided by the totals over all processes, so gradients are summed; DeepSpeed and FSDP2 would average.
Weights are computed with in the type they were loaded in (a base in bf16, an adapter in fp32), as in one process, so
that a run says the same whatever it is sharded by. A checkpoint is gathered: it depends neither on how
many processes wrote it nor on the sharding. In deepspeed/zero3.json no weight persists: one that did would be kept
whole by every process, and reading by the reference exchanges parts only.

Every process loads the whole base into its own CPU memory before it is cut (a 7B in bf16: 15 GB for each of them);
GPUs only ever see their part, and one layer (fsdp2) or one weight (zero3) on the way.
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
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils.checkpoint import checkpoint

from forage.errors import UserError
from forage.grpo.launch import Sharding, check_sharding, started_processes
from forage.grpo.learner import Learner, Scorer
from forage.grpo.sequence_parallel import Shared, check_split
from forage.policy.adapters import adapter_path, publish_adapter
from forage.policy.checkpoint import load_checkpoint, save_checkpoint
from forage.policy.logprobs import TokenScores, token_scores
from forage.policy.packing import TokenBatch

CONFIGS = Path(__file__).parent / "deepspeed"
OPERATIONS = {"max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}  # by the end of a figure's name
PATIENCE = timedelta(days=7)  # the others wait while the first process plays, or waits for workers that do
MOMENTS = ("exp_avg", "exp_avg_sq")  # what AdamW keeps of each weight, beside the number of updates


# Processes


def join_processes() -> None:
    """Meet the processes that the launcher started, each with its own GPU; done once, before a policy is loaded."""
    if dist.is_initialized() or started_processes() == 1:
        return
    if not torch.cuda.is_available():
        dist.init_process_group("gloo", timeout=PATIENCE)
        return
    local, there = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if local >= there:
        raise UserError(f"process {local} of this machine has no GPU, there are {there}; start {there} processes")
    torch.cuda.set_device(local)
    dist.init_process_group("cpu:gloo,cuda:nccl", device_id=torch.device("cuda", local), timeout=PATIENCE)


def process_device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def trained_weights(module: nn.Module) -> dict[str, Any]:
    return {name: weight for name, weight in module.named_parameters() if weight.requires_grad}


def unbegun(weight: Tensor) -> dict[str, Tensor]:
    """AdamW's state before the first update, which it would make itself when that comes."""
    return {"step": torch.tensor(0.0), **{moment: torch.zeros_like(weight) for moment in MOMENTS}}


class Replicated:
    """Every process holds everything; the adapter's gradients, which are small, are added up before an update."""

    def __init__(self, scorer: Scorer, weight_decay: float) -> None:
        self.scorer: Any = scorer.to(process_device())
        self._optimize(weight_decay)

    def _optimize(self, weight_decay: float) -> None:
        self.weights = list(trained_weights(self.scorer).values())
        self.optimizer = torch.optim.AdamW(self.weights, lr=0.0, weight_decay=weight_decay)
        self.states: list[dict[str, Tensor]] = [unbegun(weight) for weight in self.weights]
        self.optimizer.state.update(zip(self.weights, self.states, strict=True))

    def backward(self, loss: Tensor, *, last: bool) -> None:
        loss.backward()  # type: ignore[no-untyped-call]

    def step(self, learning_rate: float, max_norm: float) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self._add_up()
        total = torch.nn.utils.clip_grad_norm_(self.weights, max_norm)
        norm = _full(total).item()
        if math.isfinite(norm):
            self.optimizer.step()
        self.optimizer.zero_grad()
        self.release()
        return norm

    def _add_up(self) -> None:
        for weight in self.weights:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
        flat = torch.cat([weight.grad.flatten() for weight in self.weights])
        dist.all_reduce(flat)
        for weight, grad in zip(self.weights, torch.split(flat, [w.numel() for w in self.weights]), strict=True):
            weight.grad.copy_(grad.view_as(weight))

    def forget(self) -> None:
        self.optimizer.zero_grad()

    def working(self) -> list[Tensor]:
        """This process's parts of the weights that a forward pass reads."""
        return [weight.data for weight in self.weights]

    def part(self, number: int, full: Tensor) -> Tensor:
        """What of a full weight is this process's."""
        return full

    def release(self) -> None:
        """Let go of weights that were put together of parts."""

    def updates(self) -> float:
        return self.states[0]["step"].item()

    def gather(self) -> list[list[Tensor]]:
        """(weight, exp_avg, exp_avg_sq) of each, whole. All processes call it together."""
        return [
            [_full(tensor).detach().cpu().clone() for tensor in (weight, *(state[m] for m in MOMENTS))]
            for weight, state in zip(self.weights, self.states, strict=True)
        ]

    def scatter(self, values: Sequence[Sequence[Tensor]], updates: float) -> None:
        """The opposite; every process gives all."""
        for weight, state, whole in zip(self.weights, self.states, values, strict=True):
            state["step"].fill_(updates)
            for tensor, value in zip((weight, *(state[m] for m in MOMENTS)), whole, strict=True):
                _local(tensor).copy_(_local(_like(tensor, value)))
        self.release()


class FullyShardedDataParallel(Replicated):
    """FSDP2: each decoder layer is put together where it is needed, and the rest (embeddings, norm, head) as one."""

    def __init__(self, scorer: Scorer, weight_decay: float) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, fully_shard

        mesh = init_device_mesh(process_device().type, (dist.get_world_size(),))
        for layer in scorer.policy.get_base_model().get_decoder().layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(scorer, mesh=mesh, reshard_after_forward=True)
        self.scorer = scorer
        for module in scorer.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)  # gloo can't multiply before it adds
        self.unsent = False
        self._optimize(weight_decay)

    def backward(self, loss: Tensor, *, last: bool) -> None:
        self.scorer.set_requires_gradient_sync(last)
        self.unsent = not last
        loss.backward()  # type: ignore[no-untyped-call]

    def _add_up(self) -> None:
        """Done by the last micro-batch's backward pass."""

    def forget(self) -> None:
        if self.unsent:  # FSDP2 lets go of what micro-batches before the last one left when it has sent it
            none_BT = torch.zeros(1, 1, dtype=torch.long, device=process_device())
            scores = self.scorer(TokenBatch(none_BT, none_BT, none_BT, none_BT), 1.0)
            self.backward(scores.logprobs_BT.sum(), last=True)
        self.optimizer.zero_grad()

    def working(self) -> list[Tensor]:
        return [_local(weight.data) for weight in self.weights]

    def part(self, number: int, full: Tensor) -> Tensor:
        return _local(_like(self.weights[number], full))


class Zero2:
    """DeepSpeed's ZeRO-2, with torch's AdamW."""

    def __init__(self, scorer: Scorer, weight_decay: float, config: dict[str, Any]) -> None:
        deepspeed = _deepspeed()
        self._cut(scorer, config)
        self.weights = list(trained_weights(scorer).values())
        optimizer = torch.optim.AdamW(self.weights, lr=0.0, weight_decay=weight_decay)
        self.engine, *_ = deepspeed.initialize(model=scorer, optimizer=optimizer, config=config)
        self.scorer, self.zero, self.access = self.engine, self.engine.optimizer, deepspeed.utils
        self.states: list[dict[str, Tensor]] = []
        self._begin()

    def _cut(self, scorer: Scorer, config: dict[str, Any]) -> None:
        """The model stays whole."""

    def _begin(self) -> None:
        self._own_states(self.zero.single_partition_of_fp32_groups)
        self.zero._lazy_init_hp_params_optimizer_state()  # tells each weight where in the state its part is

    def _own_states(self, flat: Sequence[Tensor]) -> None:
        """DeepSpeed gives AdamW, in place of the weights, its parts of all of them behind one another."""
        self.states = [unbegun(part) for part in flat]
        self.zero.optimizer.state.update(zip(flat, self.states, strict=True))

    def backward(self, loss: Tensor, *, last: bool) -> None:
        self.engine.set_gradient_accumulation_boundary(last)
        self.engine.backward(loss * dist.get_world_size(), scale_wrt_gas=False)

    def step(self, learning_rate: float, max_norm: float) -> float:
        for group in self.zero.param_groups:
            group["lr"] = learning_rate
        self.zero.clip_grad = max_norm
        self.engine.step()  # skips the update where the norm is not finite
        return float(self.engine.get_global_grad_norm())

    def forget(self) -> None:
        # What was added up lies here, and is begun anew by an update's first micro-batch.
        self.zero.averaged_gradients = dict.fromkeys(self.zero.averaged_gradients)
        self.zero.all_grad_tensors = dict.fromkeys(self.zero.all_grad_tensors)
        self.zero.micro_step_id = -1
        self.zero.zero_grad()

    def working(self) -> list[Tensor]:
        return [weight.data for weight in self.weights]

    def part(self, number: int, full: Tensor) -> Tensor:
        return full

    def release(self) -> None:
        """Nothing was put together."""

    def updates(self) -> float:
        return self.states[0]["step"].item()

    def gather(self) -> list[list[Tensor]]:
        get, get_moment = self.access.safe_get_full_fp32_param, self.access.safe_get_full_optimizer_state
        return [
            [tensor.detach().cpu().clone() for tensor in (get(weight), *(get_moment(weight, m) for m in MOMENTS))]
            for weight in self.weights
        ]

    def scatter(self, values: Sequence[Sequence[Tensor]], updates: float) -> None:
        self.release()
        for number, (weight, working) in enumerate(zip(self.weights, self.working(), strict=True)):
            parts = [self.part(number, value.to(working.device)) for value in values[number]]
            working.copy_(parts[0])
            self._put(weight, *parts)
        for state in self.states:
            state["step"].fill_(updates)

    def _put(self, weight: Tensor, value: Tensor, *moments: Tensor) -> None:
        self.access.safe_set_full_fp32_param(weight, value)
        for name, moment in zip(MOMENTS, moments, strict=True):
            self.access.safe_set_full_optimizer_state(weight, moment, name)


class Zero3(Zero2):
    """DeepSpeed's ZeRO-3, with torch's AdamW."""

    def _cut(self, scorer: Scorer, config: dict[str, Any]) -> None:
        # Weight by weight, from where they lie: initialize() would put the whole model into the GPU first.
        _deepspeed().zero.Init(module=scorer, config_dict_or_path=config)
        for buffer in scorer.buffers():
            buffer.data = buffer.data.to(process_device())

    def _begin(self) -> None:
        self._own_states(self.zero.fp32_partitioned_groups_flat)

    def forget(self) -> None:
        self.zero.zero_grad()

    def working(self) -> list[Tensor]:
        return [weight.ds_tensor.data for weight in self.weights]

    def part(self, number: int, full: Tensor) -> Tensor:
        """Cut from the flat weight; the last process's is filled up with zeros."""
        size = self.weights[number].ds_tensor.numel()
        flat = full.flatten()[size * dist.get_rank() :][:size]
        return nn.functional.pad(flat, (0, size - flat.numel()))

    def release(self) -> None:
        self.zero._partition_all_parameters()

    def _put(self, weight: Tensor, value: Tensor, *moments: Tensor) -> None:
        # The setters of whole weights do not know of the zeros at the end.
        self.access.safe_set_local_fp32_param(weight, value)
        for name, moment in zip(MOMENTS, moments, strict=True):
            self.access.safe_set_local_optimizer_state(weight, moment, name)


def _full(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _local(tensor: Tensor) -> Tensor:
    if not isinstance(tensor, DTensor):
        return tensor.detach()
    part: Tensor = tensor.to_local()
    return part.detach()


def _like(tensor: Tensor, value: Tensor) -> Tensor:
    """A whole value, cut as the tensor is."""
    if not isinstance(tensor, DTensor):
        return value
    return distribute_tensor(value.to(tensor.device), tensor.device_mesh, tensor.placements, src_data_rank=None)


def _deepspeed() -> Any:
    """DeepSpeed, as silent as it can be made; on CPUs without the operator that it would compile for itself there."""
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    deepspeed: Any = importlib.import_module("deepspeed")
    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    if not torch.cuda.is_available():
        vars(deepspeed.ops)["__compatible_ops__"] = {}
    return deepspeed


class InStep(Scorer):
    """A Scorer that passes through every layer as often as those of the other processes do.

    Processes wait for one another at every layer, in the backward pass too. So a batch in which nothing was sampled
    goes through by way of two tokens. And ZeRO-3 puts the output layer together anew for each of token_scores' chunks
    (`same_chunks`), of which a batch with few sampled tokens has fewer: empty ones follow.
    """

    def __init__(
        self, policy: Any, *, same_chunks: bool = False, chunk: int = 256, shared: Shared | None = None
    ) -> None:
        super().__init__(policy)
        self.same_chunks, self.chunk, self.shared = same_chunks, chunk, shared

    def forward(self, batch: TokenBatch, temperature: float) -> TokenScores:
        if self.shared:
            return self._of_shared_rows(self.shared, batch, temperature)
        predicted = int((batch.sampled_BT * (batch.positions_BT > 0))[:, 1:].count_nonzero())
        if predicted:
            scores = token_scores(self.policy, batch, self.chunk, temperature)
        else:
            scores = self._by_two_tokens(batch, temperature)
        if not self.same_chunks:
            return scores
        return scores._replace(logprobs_BT=scores.logprobs_BT + self._empty_chunks(max(predicted, 1)))

    def _of_shared_rows(self, shared: Shared, batch: TokenBatch, temperature: float) -> TokenScores:
        if batch.prefix_P is not None:
            raise UserError("--share-prompts does not go with --sequence-parallel; leave one of them")
        part = shared.part(batch)
        return shared.whole(token_scores(shared, part, self.chunk, temperature), batch)

    def _by_two_tokens(self, batch: TokenBatch, temperature: float) -> TokenScores:
        place_BT = torch.tensor([[0, 1]], device=batch.ids_BT.device)
        two = TokenBatch(torch.zeros_like(place_BT), place_BT, place_BT, torch.zeros_like(place_BT))
        nothing_BT = torch.zeros(batch.ids_BT.shape, device=batch.ids_BT.device)
        through = token_scores(self.policy, two, self.chunk, temperature).logprobs_BT.sum() * 0
        return TokenScores(nothing_BT + through, nothing_BT)

    def _empty_chunks(self, predicted: int) -> Tensor:
        head, device = self.policy.get_output_embeddings(), process_device()
        mine = math.ceil(predicted / self.chunk)
        most = torch.tensor(mine, device=device)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        width = self.policy.config.get_text_config().hidden_size
        hidden_ND = torch.zeros(1, width, dtype=head.weight.dtype, device=device, requires_grad=torch.is_grad_enabled())
        nothing = torch.zeros((), device=device)
        for _ in range(int(most) - mine):
            nothing = nothing + checkpoint(head, hidden_ND, use_reentrant=False).float().sum() * 0
        return nothing


def nothing_sampled(batch: TokenBatch) -> TokenBatch:
    return replace(batch, sampled_BT=torch.zeros_like(batch.sampled_BT))


# The learner


class Gathered:
    """Whole weights and their AdamW in CPU memory, as forage.policy.checkpoint reads and writes them."""

    def __init__(self, names: Sequence[str], values: Sequence[Sequence[Tensor]], updates: float) -> None:
        self.weights = {name: nn.Parameter(value[0]) for name, value in zip(names, values, strict=True)}
        self.optimizer = torch.optim.AdamW(self.weights.values())
        for weight, (_, *moments) in zip(self.weights.values(), values, strict=True):
            self.optimizer.state[weight] = {"step": torch.tensor(updates), **dict(zip(MOMENTS, moments, strict=True))}

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return iter(self.weights.items())

    def values(self) -> list[list[Tensor]]:
        states = [self.optimizer.state.get(weight) or unbegun(weight) for weight in self.weights.values()]
        return [
            [weight.detach(), *(state[m] for m in MOMENTS)]
            for weight, state in zip(self.weights.values(), states, strict=True)
        ]

    def updates(self) -> float:
        return max((state["step"].item() for state in self.optimizer.state.values()), default=0.0)


class ShardedLearner(Learner):
    """A Learner over processes that have met (join_processes): each loads the same policy, calls the same methods."""

    def __init__(
        self,
        policy: Any,
        weight_decay: float = 0.0,
        sharding: Sharding = "none",
        sequence_parallel: int = 1,
        configs: Path = CONFIGS,
        chunk: int = 256,
    ) -> None:
        self.rank, self.world, self.device = dist.get_rank(), dist.get_world_size(), process_device()
        self.policy, self.names = policy, list(trained_weights(policy))
        check_sharding(sharding, sequence_parallel)
        self.split, shared = sequence_parallel, None
        if sequence_parallel > 1:
            check_split(policy.config, sequence_parallel, self.world)
            group, _ = dist.new_subgroups(sequence_parallel)  # type: ignore[no-untyped-call]
            shared = Shared(policy, group)
        scorer = InStep(policy, same_chunks=sharding == "zero3", chunk=chunk, shared=shared)
        self.shards = _shard(scorer, weight_decay, sharding, configs)
        self._reference: list[Tensor] = []
        torch.manual_seed(torch.initial_seed() + self.rank)  # for dropout, that each process should draw for itself

    def score(self, batch: TokenBatch, temperature: float) -> TokenScores:
        scores: TokenScores = self.shards.scorer(batch.to(self.device), temperature)
        return scores

    def reference(self, batch: TokenBatch, temperature: float) -> Tensor:
        """As the Learner's; not between a score and its backward pass, when weights are in use."""
        self._exchange()
        try:
            with torch.no_grad():
                return self.score(batch, temperature).logprobs_BT
        finally:
            self._exchange()

    def keep_reference(self, folder: Path) -> None:
        weights = self._read_adapter(folder)
        self._reference = [
            self.shards.part(number, weight.to(self.device)).clone() for number, weight in enumerate(weights)
        ]

    def _exchange(self) -> None:
        """The adapter's parts for those of the reference, and back: sharded, a second adapter would be cut anew."""
        self.shards.release()
        for mine, kept in zip(self.shards.working(), self._reference, strict=True):
            before = mine.clone()
            mine.copy_(kept)
            kept.copy_(before)

    def backward(self, loss: Tensor, *, last: bool) -> None:
        self.shards.backward(loss, last=last)

    def step(self, learning_rate: float, max_norm: float) -> float:
        return self.shards.step(learning_rate, max_norm)

    def forget(self) -> None:
        self.shards.forget()

    # What is kept is whole: gathered by all processes together, written by the first

    def adapter_state(self) -> dict[str, Tensor]:
        """The adapter as PEFT writes it."""
        from peft import get_peft_model_state_dict

        whole = self._whole()
        state: dict[str, Tensor] = get_peft_model_state_dict(self.policy, whole, save_embedding_layers=False)
        return state

    def _whole(self) -> dict[str, Tensor]:
        return dict(zip(self.names, (value[0] for value in self.shards.gather()), strict=True))

    def publish(self, folder: Path, version: int) -> Path:
        whole = self._whole()
        with self._first_writes():
            if self.rank == 0:
                publish_adapter(_Whole(self.policy, whole), folder, version)
        return adapter_path(folder, version)

    def load_adapter(self, folder: Path) -> None:
        weights = self._read_adapter(folder)
        self.shards.scatter([[w, torch.zeros_like(w), torch.zeros_like(w)] for w in weights], updates=0.0)

    def _read_adapter(self, folder: Path) -> list[Tensor]:
        """Its weights, in the order of ours."""
        from peft import get_peft_model_state_dict, load_peft_weights

        numbers = {name: torch.tensor(number) for number, name in enumerate(self.names)}
        keys = get_peft_model_state_dict(self.policy, numbers, save_embedding_layers=False)
        there = load_peft_weights(str(folder), device="cpu")
        if set(keys) != set(there):
            raise UserError(f"{folder} is another kind of adapter than the one in training; give the run's own")
        ordered = sorted(keys, key=lambda key: int(keys[key]))
        return [there[key].float() for key in ordered]

    def save(self, folder: Path, step: int, kept: Any) -> None:
        gathered = Gathered(self.names, self.shards.gather(), self.shards.updates())
        random = self._gathered_random()
        with self._first_writes():
            if self.rank == 0:
                older = list(folder.glob("random-*.safetensors"))
                folder.mkdir(parents=True, exist_ok=True)
                _save_whole(random, path := _random_path(folder, step))
                save_checkpoint(folder, step, gathered, gathered.optimizer, kept)
                for other in set(older) - {path}:
                    other.unlink()

    def load(self, folder: Path) -> tuple[int, Any] | None:
        gathered = Gathered(self.names, self.shards.gather(), self.shards.updates())
        found = load_checkpoint(folder, gathered, gathered.optimizer)
        if found:
            self.shards.scatter(gathered.values(), gathered.updates())
            self._set_random(_random_path(folder, found[0]))
        return found

    def _gathered_random(self) -> dict[str, Tensor]:
        """Every process draws random numbers of its own; forage.policy.checkpoint keeps one process's."""
        mine = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            mine["cuda"] = torch.cuda.get_rng_state(self.device)
        everyones = self.all_gather(mine)
        return {f"{rank}.{name}": state for rank, states in enumerate(everyones) for name, state in states.items()}

    def _set_random(self, path: Path) -> None:
        states = load_file(path) if path.exists() else {}
        if f"{self.rank}.cpu" not in states:  # written by fewer processes
            torch.manual_seed(torch.initial_seed() + self.rank)
            return
        torch.set_rng_state(states[f"{self.rank}.cpu"])
        if self.device.type == "cuda" and f"{self.rank}.cuda" in states:
            torch.cuda.set_rng_state(states[f"{self.rank}.cuda"], self.device)

    @contextmanager
    def _first_writes(self) -> Iterator[None]:
        """None goes on before the first process has written."""
        yield
        dist.barrier()

    # Over processes

    def sums(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        summed = {}
        for name, value in sorted(values.items()):
            operation = OPERATIONS.get(name.rpartition("_")[2], dist.ReduceOp.SUM)
            summed[name] = value.detach().to(self.device, copy=True)
            if operation == dist.ReduceOp.SUM and self.rank % self.split:
                summed[name].zero_()  # processes that share rows all have the same figures
            dist.all_reduce(summed[name], operation)
        return {name: summed[name] for name in values}

    def broadcast(self, value: Any) -> Any:
        sent = [value]
        dist.broadcast_object_list(sent, src=0, device=torch.device("cpu"))
        return sent[0]

    def all_gather(self, value: Any) -> list[Any]:
        """Everyone's, in the order of the processes."""
        everyones: list[Any] = [None] * self.world
        dist.all_gather_object(everyones, value)
        return everyones

    def shard(self, items: Iterable[Any]) -> list[Any]:
        """Every so many-th micro-batch; as many for each, the last maybe one of which nothing counts.

        Example, of 2 processes: a b c give the first one [a, c] and the second one [b, c with nothing sampled].
        """
        batches, shares = list(items), self.world // self.split
        missing = -len(batches) % shares
        return [*batches, *(nothing_sampled(batches[-1]) for _ in range(missing))][self.rank // self.split :: shares]


class _Whole:
    """A policy whose save_pretrained writes the given weights."""

    def __init__(self, policy: Any, weights: dict[str, Tensor]) -> None:
        self.policy, self.weights = policy, weights

    def save_pretrained(self, folder: Path, **options: Any) -> None:
        self.policy.save_pretrained(folder, state_dict=self.weights, **options)


def _shard(scorer: Scorer, weight_decay: float, sharding: Sharding, configs: Path) -> Replicated | Zero2:
    if sharding == "none":
        return Replicated(scorer, weight_decay)
    if sharding == "fsdp2":
        return FullyShardedDataParallel(scorer, weight_decay)
    strategy, name = (Zero2, "zero2.json") if sharding == "zero2" else (Zero3, "zero3.json")
    return strategy(scorer, weight_decay, json.loads((configs / name).read_text()))


def _random_path(folder: Path, step: int) -> Path:
    return folder / f"random-{step:06d}.safetensors"


def _save_whole(tensors: dict[str, Tensor], path: Path) -> None:
    partial = path.with_name(f".{path.name}.part")
    save_file(tensors, partial)
    partial.replace(path)
