"""Log-probabilities of given tokens, computed without holding the logits of a whole batch."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from forage.errors import UserError
from forage.policy.packing import BRANCHES, Branches, TokenBatch
from forage.policy.precision import fp32_logits

# Settings that make a model change its logits after the output layer, which the code here calls directly.
LOGIT_SETTINGS = ("final_logit_softcapping", "logits_scaling", "logit_scale")


# Kinds of model whose sequences share what is computed, as tests/policy/test_model_kinds.py has tried them.
SHARING = frozenset(
    (
        "apertus arcee aria_text bitnet diffllama doge ernie4_5 ernie4_5_moe flex_olmo flint gemma glm glm4 "
        "glm4_moe gpt_bigcode granite granitemoe granitemoeshared helium hunyuan_v1_dense hunyuan_v1_moe hy_v3 "
        "hyperclovax internlm3 iquestcoder jais2 laguna lfm2 llama mellum minimax_m2 minimax_m3_vl_text "
        "ministral3 mistral mixtral olmo olmo2 olmoe phi phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_moe seed_oss "
        "smollm3 solar_open starcoder2"
    ).split()
)


class TokenScores(NamedTuple):
    """A model's scores for each sampled token given the tokens before it; 0 at all others. fp32."""

    logprobs_BT: Tensor
    entropy_BT: Tensor
    """Entropy of the distribution that the token was drawn from; no gradient."""
    divergence_BT: Tensor | None = None
    """KL divergence from a teacher's distribution to that one, where a teacher's states were given."""


def token_logprobs(model: Any, batch: TokenBatch, chunk: int = 256, temperature: float = 1.0) -> Tensor:
    """Only the log-probabilities of `token_scores`."""
    return token_scores(model, batch, chunk, temperature).logprobs_BT


def token_scores(
    model: Any, batch: TokenBatch, chunk: int = 256, temperature: float = 1.0, teacher_ND: Tensor | None = None
) -> TokenScores:
    """Log-probability and entropy at each sampled token, and divergence from the teacher of those `sampled_states`.

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
        if teacher_ND is not None:
            teacher_ND = teacher_ND.new_empty(len(nodes_N), teacher_ND.shape[1]).index_copy(0, entries, teacher_ND)
    given = (hidden_ND, tokens_N) if teacher_ND is None else (hidden_ND, tokens_N, teacher_ND)
    parts = [
        checkpoint(chunk_scores, head, temperature, *each, use_reentrant=False)
        for each in zip(*(torch.split(values, chunk) for values in given), strict=True)
    ]
    logprobs_BT = torch.zeros(batch.ids_BT.shape, dtype=torch.float32, device=hidden_BTD.device)
    if not len(tokens_N):  # stays in the model's graph, so that a loss over no tokens still has a backward pass
        return TokenScores(logprobs_BT + 0 * hidden_BTD.float().sum(), *[logprobs_BT] * (len(given) - 1))
    scores = (torch.cat(each)[entries] for each in zip(*parts, strict=True))
    return TokenScores(*(logprobs_BT.index_put(places, scores_N) for scores_N in scores))


@torch.no_grad()
def sampled_states(model: Any, batch: TokenBatch) -> Tensor:
    """(N, D): the decoder's states that predict the sampled tokens, row by row."""
    decoder, head = decoder_and_head(model)
    if hasattr(head, "lora_A"):
        raise UserError(
            "--teach all can't tell whose output layer is whose, as adapters change it; give --teach sampled"
        )
    hidden_BTD = _hidden(decoder, batch)
    rows, columns = places = batch.predicted_BT.nonzero(as_tuple=True)
    if batch.tree is None:
        return hidden_BTD[rows, columns - 1]
    return hidden_BTD[0, batch.tree.parents_N[batch.tree.node_BT[places]]]


def _hidden(decoder: Any, batch: TokenBatch) -> Tensor:
    """The decoder's output for the batch's rows or, in a row of their own, for the nodes of its tree."""
    more: dict[str, Branches] = {}
    if batch.tree is None:
        # Padding comes last, where causal attention doesn't look; without a mask, a GPU takes its fastest kernel.
        ids_BT, positions_BT = batch.ids_BT, batch.positions_BT
        mask = None if batch.ids_BT.is_cuda else batch.attention_BT
    else:
        if why := unsharable(decoder.config):
            raise UserError(f"{decoder.config.model_type} has {why}, so its sequences can't share prompts")
        ids_BT, positions_BT = batch.tree.ids_N[None], batch.tree.positions_N[None]
        # transformers passes a mask of four dimensions on as it is: what is added to the attention scores.
        if decoder.config._attn_implementation == BRANCHES:
            more = {"branches": Branches(batch.tree.branches, None if ids_BT.is_cuda else decoder.dtype)}
            mask = torch.full((1, 1, 1, 1), torch.nan)  # for a model that doesn't hand `branches` on to its attention
        else:
            seen_NN = batch.tree.seen_NN
            mask = torch.zeros_like(seen_NN, dtype=decoder.dtype).masked_fill_(~seen_NN, -torch.inf)[None, None]
    return decoder(
        input_ids=ids_BT, position_ids=positions_BT, attention_mask=mask, use_cache=False, **more
    ).last_hidden_state


def unsharable(config: Any) -> str:
    """Why sequences of a model can't share what is computed for a beginning that they have in common, such as their
    prompt; empty if they can. Example: "layers of sliding_attention".

    A window would need a mask of its own, and a model may add positions, keep states or call its attention in ways that
    no sharing knows of: so only kinds that were tried may share.
    """
    text = config.get_text_config()
    layers = getattr(text, "layer_types", None) or ()
    if others := set(layers) - {"full_attention"}:
        return f"layers of {', '.join(sorted(others))}"
    if not layers and getattr(text, "sliding_window", None) and getattr(text, "use_sliding_window", True):
        return "a sliding window"
    return "" if text.model_type in SHARING else "attention that was not tried here"


def chunk_scores(
    head: Any, temperature: float, hidden_ND: Tensor, tokens_N: Tensor, teacher_ND: Tensor | None = None
) -> tuple[Tensor, ...]:
    """Log-probabilities, entropies and, with a teacher's states, the KL divergence from its distribution to these."""
    logits_NV = fp32_logits(head, hidden_ND) / temperature
    chosen_N = logits_NV.gather(1, tokens_N[:, None]).squeeze(1)
    total_N = logits_NV.logsumexp(dim=1)
    logprobs_N, divergence = chosen_N - total_N, tuple[Tensor, ...]()
    if teacher_ND is not None:
        with torch.no_grad():
            theirs_NV = (fp32_logits(head, teacher_ND) / temperature).log_softmax(dim=1)
        apart_NV = theirs_NV - (logits_NV - total_N[:, None])  # before the sum, where rounding costs least
        divergence = (torch.einsum("nv,nv->n", theirs_NV.exp(), apart_NV),)
    # Last, because recomputation in the backward pass stops at the last tensor that a gradient needs.
    with torch.no_grad():
        probabilities_NV = (logits_NV - total_N[:, None]).exp_()
        entropy_N = total_N - torch.einsum("nv,nv->n", probabilities_NV, logits_NV)
    return logprobs_N, entropy_N, *divergence


@torch.no_grad()
def check_scores(model: Any) -> None:
    """Refuse a model whose logits look ahead, or are not what its output layer makes of its decoder's last states."""
    # Equally long, so that the same kernels compute both: others round otherwise, widely so in 4 bits.
    rows_BT = torch.tensor([[3, 4, 5, 6], [3, 4, 8, 7]], device=model.get_input_embeddings().weight.device)
    wanted_TV, ahead_TV = (model(input_ids=ids_T[None], use_cache=False).logits[0].float() for ids_T in rows_BT)
    try:
        decoder, head = decoder_and_head(model)
        found_TV = head(decoder(input_ids=rows_BT[:1], use_cache=False).last_hidden_state)[0].float()
        close = partial(torch.allclose, rtol=0.02, atol=0.02 * wanted_TV.abs().max().item())
        same = close(found_TV, wanted_TV) and close(ahead_TV[:2], wanted_TV[:2])
    except (AttributeError, TypeError, RuntimeError):  # it has no such parts, or they don't fit each other
        same = False
    if not same:
        raise UserError(f"{model.config.model_type} models make their logits in a way of their own; use another model")


def decoder_and_head(model: Any) -> tuple[Any, Any]:
    """Decoder and output layer of a causal language model, with or without a PEFT adapter around it."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    check_logits(base.config)
    return base.get_decoder(), base.get_output_embeddings()


def check_logits(config: Any) -> None:
    """Refuse a kind of model that changes its logits after its output layer."""
    changed = [name for name in LOGIT_SETTINGS if getattr(config, name, None) not in (None, 1.0)]
    if changed:
        kind = config.model_type
        raise UserError(f"{kind} models change their logits by {changed[0]}, which is not supported; use another model")
