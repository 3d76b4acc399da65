"""Log-probabilities of given tokens, computed without holding the logits of a whole batch."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from forage.errors import UserError
from forage.policy.branches import BRANCHES, Branches
from forage.policy.packing import TokenBatch
from forage.policy.precision import fp32_logits

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
    decoder, head = decoder_and_head(model)
    hidden_BTD = _hidden(decoder, batch)
    places = batch.predicted_BT.nonzero(as_tuple=True)
    if batch.tree is None:
        rows, columns = places
        hidden_ND, tokens_N, entries = hidden_BTD[rows, columns - 1], batch.ids_BT[places], slice(None)
    else:  # a token that rows share is scored once, and its gradient is the sum of theirs
        nodes_N, entries = torch.unique(batch.tree.node_BT[places], return_inverse=True)
        hidden_ND, tokens_N = hidden_BTD[0, batch.tree.parents_N[nodes_N]], batch.tree.ids_N[nodes_N]
    parts = [
        checkpoint(chunk_scores, head, hidden, tokens, temperature, use_reentrant=False)
        for hidden, tokens in zip(torch.split(hidden_ND, chunk), torch.split(tokens_N, chunk), strict=True)
    ]
    logprobs_BT = torch.zeros(batch.ids_BT.shape, dtype=torch.float32, device=hidden_BTD.device)
    if not len(tokens_N):  # stays in the model's graph, so that a loss over no tokens still has a backward pass
        return TokenScores(logprobs_BT + 0 * hidden_BTD.float().sum(), logprobs_BT)
    logprobs_N, entropy_N = (torch.cat(each)[entries] for each in zip(*parts, strict=True))
    return TokenScores(logprobs_BT.index_put(places, logprobs_N), logprobs_BT.index_put(places, entropy_N))


def _hidden(decoder: Any, batch: TokenBatch) -> Tensor:
    """The decoder's output for the batch's rows or, in a row of their own, for the nodes of its tree."""
    more: dict[str, Branches] = {}
    if batch.tree is None:
        # Padding comes last, where causal attention doesn't look; without a mask, a GPU takes its fastest kernel.
        ids_BT, positions_BT = batch.ids_BT, batch.positions_BT
        mask = None if batch.ids_BT.is_cuda else batch.attention_BT
    else:
        if has_windows(decoder.config):
            raise UserError(f"{decoder.config.model_type} has layers that can't share prompts")
        ids_BT, positions_BT = batch.tree.ids_N[None], batch.tree.positions_N[None]
        # transformers passes a mask of four dimensions on as it is: what is added to the attention scores. Attention by
        # branches doesn't look at it, but some models (StableLM) don't hand `branches` on to their attention.
        seen_NN = batch.tree.seen_NN
        mask = torch.zeros_like(seen_NN, dtype=decoder.dtype).masked_fill_(~seen_NN, -torch.inf)[None, None]
        if decoder.config._attn_implementation == BRANCHES:
            more = {"branches": Branches.of(batch.tree.branches, decoder.dtype)}
    hidden_BTD: Tensor = decoder(
        input_ids=ids_BT, position_ids=positions_BT, attention_mask=mask, use_cache=False, **more
    ).last_hidden_state
    return hidden_BTD


def has_windows(config: Any) -> bool:
    """Whether some layers don't attend to all tokens before; those need masks of their own."""
    return set(getattr(config, "layer_types", None) or ()) - {"full_attention"} != set()


def chunk_scores(head: Any, hidden_ND: Tensor, tokens_N: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
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
