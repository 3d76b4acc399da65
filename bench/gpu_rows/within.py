"""One update within a token budget, as forage.grpo.update makes it, but without its way out when memory ends."""

from __future__ import annotations

from forage.grpo.learner import Learner
from forage.grpo.losses import add_stats, summary
from forage.grpo.update import OldLogprobs, TrainingBatch, UpdateContext, learn_epoch, taught_episodes


def update_within(budget: int, learner: Learner, batch: TrainingBatch, context: UpdateContext) -> dict[str, float]:
    """The update's figures; torch.OutOfMemoryError is the caller's to catch."""
    taught = taught_episodes(batch, context.options.loss)
    sums = learn_epoch(budget, learner, taught, OldLogprobs(taught.episodes, learner.device), context)
    norm = learner.step(context.learning_rate, context.options.optimizer.max_norm)
    return summary(learner.sums(add_stats(sums.parts))) | {"grad_norm": norm, "micro_batches": sums.micro_batches}
