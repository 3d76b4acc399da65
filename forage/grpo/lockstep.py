"""Lockstep: a Scorer for sharded policies, whose processes must all pass through the same layers equally often."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from forage.errors import UserError
from forage.grpo.learner import Scorer
from forage.grpo.sequence_parallel import SequenceParallelPolicy
from forage.policy.logprobs import TokenScores, chunk_scores, token_scores
from forage.policy.packing import TokenBatch
from forage.processes import all_reduced, process_device


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
            return self._score_shared_rows(self.shared, batch, temperature)
        predicted = batch.predictions
        # Before the output layer is gathered for the first time: processes may not wait for different things.
        missing = self._missing_chunks(max(predicted, 1)) if self.same_chunks else 0
        if predicted:
            scores = token_scores(self.policy, batch, self.chunk, temperature)
        else:
            scores = self._score_dummy_tokens(batch, temperature)
        return scores._replace(logprobs_BT=scores.logprobs_BT + self._empty_chunks(missing)) if missing else scores

    def _score_shared_rows(self, shared: SequenceParallelPolicy, batch: TokenBatch, temperature: float) -> TokenScores:
        if batch.tree is not None:
            raise UserError("--share-prompts does not work with --sequence-parallel; give --no-share-prompts")
        part = shared.own_columns(batch)
        return shared.gather_scores(token_scores(shared, part, self.chunk, temperature), batch)

    def _score_dummy_tokens(self, batch: TokenBatch, temperature: float) -> TokenScores:
        positions_BT = torch.tensor([[0, 1]], device=batch.ids_BT.device)
        zeros_BT, sampled_BT = torch.zeros_like(positions_BT), positions_BT  # the second token counts as sampled
        dummy = TokenBatch(zeros_BT, positions_BT, sampled_BT, zeros_BT)
        nothing_BT = torch.zeros(batch.ids_BT.shape, device=batch.ids_BT.device)
        through = token_scores(self.policy, dummy, self.chunk, temperature).logprobs_BT.sum() * 0
        return TokenScores(nothing_BT + through, nothing_BT)

    def _missing_chunks(self, predicted: int) -> int:
        """How many chunks fewer this process has than the one with the most."""
        own = math.ceil(predicted / self.chunk)
        return int(all_reduced(torch.tensor(own, device=process_device()), "max")) - own

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
    """A filler: the same batch with no token marked as sampled."""
    return replace(batch, sampled_BT=torch.zeros_like(batch.sampled_BT), filler=True)
