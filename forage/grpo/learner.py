"""Learner: the policy in training, in one process; sharding.py has the same interface over several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from forage.optimizer import adamw, update_weights
from forage.policy.adapters import publish_adapter, restore_adapter
from forage.policy.checkpoint import load_checkpoint, save_checkpoint
from forage.policy.logprobs import TokenScores, sampled_states, token_scores
from forage.policy.packing import TokenBatch, Tokens

# Adapters that are kept beside the one in training: what the KL term is measured against, a teacher's, the version
# before; and none.
REFERENCE, TEACHER, PREVIOUS, BASE = "reference", "teacher", "previous", "base"


class Scorer(nn.Module):
    """The policy as a module whose forward returns the log-probabilities that the loss needs.

    Sharding libraries hook into the forward of the module they wrap, and token_scores bypasses the model's own forward.
    """

    def __init__(self, policy: Any) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, batch: TokenBatch, temperature: float, *teacher: Tensor) -> TokenScores:
        return token_scores(self.policy, batch, 256, temperature, *teacher)


class Learner:
    """A PEFT policy and its AdamW, in this process."""

    can_start_over = True
    """Whether an epoch that ran out of memory can be tried again."""
    lowered_budget: int | None = None
    """Most tokens of a micro-batch, once memory has run out with more; kept for the rest of this process."""

    def __init__(self, policy: Any) -> None:
        self.policy, self.scorer = policy, Scorer(policy)
        self.optimizer = adamw(policy)
        self.device = next(policy.parameters()).device

    def score(self, batch: TokenBatch, temperature: float, *teacher: Tensor) -> TokenScores:
        """Log-probabilities by the current policy, with a gradient unless torch.no_grad is on."""
        return self.scorer(batch.to(self.device), temperature, *teacher)

    def kept(self, name: str, batch: TokenBatch, temperature: float) -> Tensor:
        """Log-probabilities by an adapter that is kept, or by the base alone, without dropout."""
        with self.policy.disable_adapter() if name == BASE else self.adapter(name):
            return self.score_frozen(batch, temperature)

    @contextmanager
    def adapter(self, name: str) -> Iterator[None]:
        """Another adapter in the place of the one in training."""
        self.policy.set_adapter(name, inference_mode=True)
        try:
            yield
        finally:
            self.policy.set_adapter("default")

    def table(
        self, rows: Sequence[Tokens], temperature: float, pack: Callable[[Sequence[Tokens]], list[TokenBatch]],
        name: str = "",
    ) -> Tensor:  # fmt: skip
        """(N, T) log-probabilities of each row's sampled tokens, at their places, by the policy or a kept adapter."""
        table_NT = torch.zeros(len(rows), max(len(row.ids) for row in rows), device=self.device)
        for part in self.shard(pack(rows)):
            scores_BT = self.kept(name, part, temperature) if name else self.score_frozen(part, temperature)
            sampled_BT = part.predicted_BT
            table_NT[part.sequence_BT[sampled_BT], part.positions_BT[sampled_BT]] = scores_BT[
                sampled_BT.to(scores_BT.device)
            ]
        return self.sums({"logprobs": table_NT})["logprobs"]  # each process has scored some

    def score_frozen(self, batch: TokenBatch, temperature: float) -> Tensor:
        """Log-probabilities by the current policy, without a gradient and without dropout, so that nothing is drawn."""
        with self.frozen():
            return self.score(batch, temperature).logprobs_BT

    @contextmanager
    def frozen(self) -> Iterator[None]:
        training = self.policy.training
        self.policy.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            self.policy.train(training)

    def states(self, batch: TokenBatch) -> Tensor:
        """(N, D): the frozen policy's states that predict each sampled token, row by row. Only in one process."""
        with self.frozen():
            return sampled_states(self.policy, batch.to(self.device))

    def keep(self, name: str, folder: Path) -> None:
        """Load a published adapter beside the one in training."""
        training = self.policy.training
        self.policy.load_adapter(str(folder), adapter_name=name, is_trainable=False)
        self.policy.train(training)  # peft turns training mode off, and activation checkpointing with it

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add a micro-batch's gradients; `last` marks the last one of an update."""
        del last  # tells a sharded learner when to communicate
        loss.backward()  # type: ignore[no-untyped-call]

    def step(self, learning_rate: float) -> float:
        """Update with the gradients, clipped. Returns their norm; if it is not finite, nothing changes."""
        return update_weights(self.optimizer, learning_rate)

    def synchronize(self) -> None:
        """Wait until a GPU has done what it was given to do."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def drop_gradients(self) -> None:
        """Discard the gradients added so far, without an update."""
        self.optimizer.zero_grad()

    def publish(self, folder: Path, version: int) -> Path:
        return publish_adapter(self.policy, folder, version)

    def load_adapter(self, folder: Path) -> None:
        """Roll back to a published adapter, with a fresh optimizer."""
        restore_adapter(self.policy, folder)
        self.optimizer.state.clear()

    def save(self, folder: Path, step: int, extra: Any) -> None:
        save_checkpoint(folder, step, self.policy, self.optimizer, extra)

    def load(self, folder: Path) -> tuple[int, Any] | None:
        return load_checkpoint(folder, self.policy, self.optimizer)

    # Communication between processes; here there is only one

    def sums(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Each value summed over all processes, or its maximum or minimum if its name ends in _max or _min."""
        return values

    def shard(self, items: Iterable[Any]) -> list[Any]:
        """This process's share of a step's micro-batches; all processes get the same number."""
        return list(items)
