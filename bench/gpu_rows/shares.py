"""Where an update's time goes: forward, backward, the optimizer, the rest; and what the output layer takes of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from bench.gpu_rows.device import device, measured, synchronize
from bench.gpu_rows.episodes import made_episodes
from bench.gpu_rows.models import trained_policy
from bench.gpu_rows.scale import Scale
from bench.gpu_rows.update import OPTIONS, RATE, warm_up
from bench.gpu_rows.within import update_within
from forage.grpo.learner import Learner
from forage.grpo.update import UpdateContext, pack_episodes, prepare
from forage.policy.logprobs import decoder_and_head, token_logprobs
from forage.policy.packing import TokenBatch
from forage.runs.phases import Phases

GROUPS = 2  # enough for shares


class TimedLearner(Learner):
    """A Learner whose optimizer has a phase of its own."""

    def __init__(self, policy: Any, phases: Phases) -> None:
        super().__init__(policy)
        self.phases = phases

    def step(self, learning_rate: float, max_norm: float) -> float:
        with self.phases("optimizer"):
            return super().step(learning_rate, max_norm)


def measure_shares(scale: Scale, *, quantized: bool) -> dict[str, Any]:
    """Shares of an update with activations recomputed. The head's share is part of forward and backward."""
    phases = Phases(synchronize=synchronize)
    learner = TimedLearner(trained_policy(scale.policy, quantized=quantized, checkpointing=True), phases)
    batch = prepare(made_episodes(scale)[: GROUPS * scale.group], OPTIONS)
    context = UpdateContext(OPTIONS, RATE, 1.0, share_prompts=False, phases=phases)
    warm_up(learner, batch, context, scale.budget)
    phases.take()
    seconds, _ = measured(lambda: update_within(scale.budget, learner, batch, context))
    taken = phases.take()
    parts = pack_episodes(batch.episodes, scale.budget, share_prompts=False)
    shares = {name: taken[phase] / seconds for name, phase in FORWARD_NAMES.items()}
    return {
        "seconds": seconds, **shares, "rest": 1 - sum(shares.values()),
        "head_of_all": head_seconds(learner.policy, parts) / seconds,
    }  # fmt: skip


FORWARD_NAMES = {"forward": "logprobs", "backward": "backward", "optimizer": "optimizer"}


def head_seconds(policy: Any, parts: list[TokenBatch]) -> float:
    """Time of the output layer alone on these micro-batches, forward and backward, as token_logprobs runs it."""
    decoder, head = decoder_and_head(policy)
    total = 0.0
    for part in parts:
        width, dtype = decoder.config.hidden_size, decoder.dtype
        hidden_BTD = torch.randn(*part.ids_BT.shape, width, device=device(), dtype=dtype, requires_grad=True)
        stand_in = HeadAlone(policy.config, head, hidden_BTD)
        there = part.to(device())
        seconds, _ = measured(lambda: token_logprobs(stand_in, there).sum().backward())  # type: ignore[no-untyped-call]  # noqa: B023
        total += seconds
    return total


class HeadAlone:
    """Looks like a model to token_logprobs, but its decoder returns what it was given."""

    def __init__(self, config: Any, head: Any, hidden_BTD: torch.Tensor) -> None:
        self.config, self.head, self.hidden_BTD = config, head, hidden_BTD

    def get_decoder(self) -> Any:
        return lambda **_: SimpleNamespace(last_hidden_state=self.hidden_BTD)

    def get_output_embeddings(self) -> Any:
        return self.head
