"""Log-probabilities of given tokens, computed without holding the logits of a whole batch."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from forage.errors import UserError
from forage.policy.head import fp32_logits
from forage.policy.packing import TokenBatch

# Settings that make a model change its logits after the output layer, which the code here calls directly.
LOGIT_SETTINGS = ("final_logit_softcapping", "logits_scaling", "logit_scale")


class TokenScores(NamedTuple):
    """A model's scores for each sampled token given the tokens before it; 0 at all others. fp32."""

    logprobs_BT: Tensor
    entropy_BT: Tensor
    """Entropy of the distribution that the token was drawn from; no gradient."""


def token_logprobs(model: Any, batch: TokenBatch, chunk: int = 256, temperature: float = 1.0) -> Tensor:
    """Only the log-probabilities of `token_scores`."""
    return token_scores(model, batch, chunk, temperature).logprobs_BT


def token_scores(model: Any, batch: TokenBatch, chunk: int = 256, temperature: float = 1.0) -> TokenScores:
    """Log-probability and entropy at each sampled token.

    The output layer runs on `chunk` positions at a time, and again in the backward pass, so that at most
    (chunk, vocabulary) logits are alive; they and everything after them are fp32. Positions that predict no sampled
    token skip it.
    """
    # A sequence's first token has no token before it to predict it.
    rows, columns = (batch.sampled_BT * (batch.positions_BT > 0))[:, 1:].nonzero(as_tuple=True)
    decoder, head = decoder_and_head(model)
    hidden_BTD = decoder(
        input_ids=batch.ids_BT, position_ids=batch.positions_BT, **_context(decoder, batch)
    ).last_hidden_state
    hidden_ND, tokens_N = hidden_BTD[rows, columns], batch.ids_BT[rows, columns + 1]
    parts = [
        checkpoint(_chunk_scores, head, hidden, tokens, temperature, use_reentrant=False)
        for hidden, tokens in zip(torch.split(hidden_ND, chunk), torch.split(tokens_N, chunk), strict=True)
    ]
    logprobs_BT = torch.zeros(batch.ids_BT.shape, dtype=torch.float32, device=hidden_BTD.device)
    if not parts:  # stays in the model's graph, so that a loss over no tokens still has a backward pass
        return TokenScores(logprobs_BT + 0 * hidden_BTD.float().sum(), logprobs_BT)
    logprobs_N, entropy_N = map(torch.cat, zip(*parts, strict=True))
    places = (rows, columns + 1)
    return TokenScores(logprobs_BT.index_put(places, logprobs_N), logprobs_BT.index_put(places, entropy_N))


def _context(decoder: Any, batch: TokenBatch) -> dict[str, Any]:
    """What tokens attend to: their own row and any shared prefix, computed once with gradients from all rows."""
    if batch.prefix_P is None:
        # Padding comes last, where causal attention doesn't look; without a mask, a GPU takes its fastest kernel.
        return {"attention_mask": None if batch.ids_BT.is_cuda else batch.attention_BT, "use_cache": False}
    if batch.attention_BT is None:
        raise ValueError("a shared prefix needs padded rows")
    rows = len(batch.ids_BT)
    cache = decoder(input_ids=batch.prefix_P[None], use_cache=True).past_key_values
    if cache is None:  # transformers drops the cache under gradient checkpointing
        raise UserError("--share-prompts and --gradient-checkpointing don't work together; drop one of them")
    cache.batch_repeat_interleave(rows)
    seen_BP = batch.attention_BT.new_ones(rows, len(batch.prefix_P))
    return {
        "attention_mask": torch.cat([seen_BP, batch.attention_BT], dim=1), "past_key_values": cache, "use_cache": True
    }  # fmt: skip


def _chunk_scores(head: Any, hidden_ND: Tensor, tokens_N: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    logits_NV = fp32_logits(head, hidden_ND) / temperature
    chosen_N = logits_NV.gather(1, tokens_N[:, None]).squeeze(1)
    total_N = logits_NV.logsumexp(dim=1)
    logprobs_N = chosen_N - total_N
    # Last, because recomputation in the backward pass stops at the last tensor that a gradient needs.
    with torch.no_grad():
        probabilities_NV = (logits_NV - total_N[:, None]).exp_()
        entropy_N = total_N - torch.einsum("nv,nv->n", probabilities_NV, logits_NV)
    return logprobs_N, entropy_N


def decoder_and_head(model: Any) -> tuple[Any, Any]:
    """Decoder and output layer of a causal language model, with or without a PEFT adapter around it."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    changed = [name for name in LOGIT_SETTINGS if getattr(base.config, name, None) not in (None, 1.0)]
    if changed:
        kind = base.config.model_type
        raise UserError(f"{kind} models change their logits by {changed[0]}, which is not supported; use another model")
    return base.get_decoder(), base.get_output_embeddings()
