"""Sharding: the learner over several processes that share a policy.

    torchrun --nproc-per-node 2 grpo_train.py --sharding fsdp2

How the model is shared out is in strategies.py. A checkpoint is gathered before it is written: it depends neither on
the number of processes nor on the sharding.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from forage.errors import UserError
from forage.files import replacing
from forage.grpo.learner import Learner, Scorer
from forage.grpo.sequence_parallel import SequenceParallelPolicy, check_split
from forage.grpo.strategies import CONFIGS, MOMENTS, fresh_state, make_strategy, trained_weights
from forage.policy.adapters import adapter_path, publish_adapter
from forage.policy.checkpoint import load_checkpoint, save_checkpoint
from forage.policy.logprobs import TokenScores, chunk_scores, token_scores
from forage.policy.packing import TokenBatch
from forage.processes import (
    Offload,
    Sharding,
    all_gather,
    all_reduced,
    check_sharding,
    process_device,
    rank,
    wait_for_all,
    world,
)


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


class ShardedLearner(Learner):
    """A Learner over joined processes (join_processes): each loads the same policy and calls the same methods."""

    # One process can't while the others go on, and DeepSpeed and FSDP2 stop in the middle of their bookkeeping.
    can_start_over = False

    def __init__(
        self,
        policy: Any,
        weight_decay: float = 0.0,
        sharding: Sharding = "none",
        sequence_parallel: int = 1,
        offload: Offload = "none",
        configs: Path = CONFIGS,
        chunk: int = 256,
    ) -> None:
        self.rank, self.world, self.device = rank(), world(), process_device()
        self.policy, self.names = policy, list(trained_weights(policy))
        check_sharding(sharding, sequence_parallel, offload)
        self.sequence_parallel, shared = sequence_parallel, None
        if sequence_parallel > 1:
            check_split(policy.config, sequence_parallel, self.world)
            group, _ = dist.new_subgroups(sequence_parallel)  # type: ignore[no-untyped-call]
            shared = SequenceParallelPolicy(policy, group)
        scorer = LockstepScorer(policy, same_chunks=sharding == "zero3", chunk=chunk, shared=shared)
        self.strategy = make_strategy(scorer, weight_decay, sharding, offload, configs)
        self._reference: list[Tensor] = []
        torch.manual_seed(torch.initial_seed() + self.rank)  # each process draws its own dropout

    def score(self, batch: TokenBatch, temperature: float) -> TokenScores:
        scores: TokenScores = self.strategy.scorer(batch.to(self.device), temperature)
        return scores

    def reference(self, batch: TokenBatch, temperature: float) -> Tensor:
        """As in Learner. Don't call it between a score and its backward pass, while the weights are in use."""
        self._swap_reference()
        try:
            return self.score_frozen(batch, temperature)
        finally:
            self._swap_reference()

    def keep_reference(self, folder: Path) -> None:
        weights = self._read_adapter(folder)
        self._reference = [
            self.strategy.own_part(number, weight.to(self.device)).clone() for number, weight in enumerate(weights)
        ]

    def _swap_reference(self) -> None:
        """Exchange the adapter's parts with the reference's: loading a second adapter would shard the model again."""
        self.strategy.release()
        for weight, reference in zip(self.strategy.working_weights(), self._reference, strict=True):
            before = weight.clone()
            weight.copy_(reference)
            reference.copy_(before)

    def backward(self, loss: Tensor, *, last: bool) -> None:
        self.strategy.backward(loss, last=last)

    def step(self, learning_rate: float, max_norm: float) -> float:
        return self.strategy.step(learning_rate, max_norm)

    # Saving and loading: all processes gather together, only the first one writes

    def adapter_state(self) -> dict[str, Tensor]:
        """The full adapter under the names that PEFT writes."""
        from peft import get_peft_model_state_dict

        weights = self._full_weights()
        state: dict[str, Tensor] = get_peft_model_state_dict(self.policy, weights, save_embedding_layers=False)
        return state

    def _full_weights(self) -> dict[str, Tensor]:
        return dict(zip(self.names, (value[0] for value in self.strategy.gather()), strict=True))

    def publish(self, folder: Path, version: int) -> Path:
        weights = self._full_weights()
        if self.rank == 0:
            publish_adapter(self.policy, folder, version, state_dict=weights)
        wait_for_all()
        return adapter_path(folder, version)

    def load_adapter(self, folder: Path) -> None:
        weights = self._read_adapter(folder)
        self.strategy.scatter([[w, torch.zeros_like(w), torch.zeros_like(w)] for w in weights], updates=0.0)

    def _read_adapter(self, folder: Path) -> list[Tensor]:
        """The adapter's weights in the order of `names`."""
        from peft import get_peft_model_state_dict, load_peft_weights

        numbers = {name: torch.tensor(number) for number, name in enumerate(self.names)}
        keys = get_peft_model_state_dict(self.policy, numbers, save_embedding_layers=False)
        saved = load_peft_weights(str(folder), device="cpu")
        if set(keys) != set(saved):
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

    def forward(self, batch: TokenBatch, temperature: float) -> TokenScores:
        if self.shared:
            if batch.tree is not None:
                raise ValueError("the rows of a tree can't be split among processes")
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
            logprobs_N, _ = checkpoint(chunk_scores, head, hidden_ND, token_N, 1.0, use_reentrant=False)
            nothing = nothing + logprobs_N.sum() * 0
        return nothing


def nothing_sampled(batch: TokenBatch) -> TokenBatch:
    """The same batch with no token marked as sampled: it keeps a process in step with the others."""
    return replace(batch, sampled_BT=torch.zeros_like(batch.sampled_BT))
