"""What is measured on: a device, random models of real sizes made there, episodes of realistic lengths.

Imports torch, transformers, peft and forage, and nothing that a borrowed GPU machine may lack.
"""

from __future__ import annotations

import importlib
import math
import random
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from forage.agent.episode import Episode
from forage.policy.card import AdapterOptions
from forage.policy.policy import add_adapter, keep_trainable, nf4

GIB = 2**30
# Dense bf16 FLOP/s by the vendors' data sheets; a model FLOPs utilisation refers to these.
PEAK_FLOPS = {
    "NVIDIA H200": 989e12, "NVIDIA H100 80GB HBM3": 989e12, "NVIDIA H100 PCIe": 756e12,
    "NVIDIA A100-SXM4-80GB": 312e12, "NVIDIA A100-SXM4-40GB": 312e12, "NVIDIA GeForce RTX 4090": 165e12,
}  # fmt: skip
# Written out, because nothing is downloaded.
QWEN_7B: dict[str, Any] = {  # Qwen2.5-7B-Instruct
    "model_type": "qwen2", "vocab_size": 152_064, "hidden_size": 3584, "intermediate_size": 18_944,
    "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0, "tie_word_embeddings": False,
}  # fmt: skip


@dataclass(frozen=True)
class Scale:
    """What is measured on. Lengths are in tokens."""

    policy: dict[str, Any]
    """Configuration of the model that is trained and sampled."""
    groups: int
    """Questions of the update."""
    group: int
    """Episodes of each question."""
    prompt: int
    """Length of the prompt that a group shares."""
    shortest: int
    """Shortest episode, prompt included."""
    longest: int
    """Longest episode."""
    turn: int
    """Length of what the policy samples between two results."""
    result: int
    """Length of a result."""
    sampled: int
    """Tokens that each of the two turns of the sampling rows has."""
    matrix: int
    """Width of the matrices that measure the device's speed."""

    @property
    def episodes(self) -> int:
        return self.groups * self.group


FULL = Scale(QWEN_7B, 8, 8, prompt=600, shortest=1000, longest=4000, turn=150, result=350, sampled=128, matrix=8192)
TINY_POLICY = QWEN_7B | {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip
TINY = Scale(TINY_POLICY, 2, 4, prompt=24, shortest=40, longest=120, turn=12, result=20, sampled=6, matrix=256)


# Device: everything works on a CPU too, with the process's own memory


def device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def device_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def measured(work: Callable[[], Any]) -> tuple[float, float]:
    """(seconds, peak GiB) of some work. On a GPU the peak is of PyTorch's tensors, without the CUDA context."""
    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    if gpu:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    most = torch.cuda.max_memory_allocated() if gpu else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return seconds, most / GIB


# Models


def random_model(settings: dict[str, Any], where: torch.device | None = None) -> Any:
    """A causal language model in bf16 with random weights; the same seed every time."""
    from transformers import AutoConfig, AutoModelForCausalLM

    auto: Any = AutoModelForCausalLM
    values = dict(settings)
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    torch.manual_seed(0)
    with where or device():
        return auto.from_config(config, dtype=torch.bfloat16).eval()


def trained_policy(settings: dict[str, Any], *, quantized: bool = False, checkpointing: bool = False) -> Any:
    """A random model with a fresh adapter on every linear layer, in training mode, as grpo_train.py opens it."""
    model = random_model(settings)
    if quantized:
        quantize(model)
    policy = add_adapter(model, "random", AdapterOptions())
    policy.train()  # transformers checkpoints activations in training mode only
    if checkpointing:
        # transformers renamed it after 5.17, which a borrowed machine may have.
        new = getattr(policy, "activation_checkpointing_enable", None)
        (new or policy.gradient_checkpointing_enable)({"use_reentrant": False})
    return policy


def quantize(model: Any) -> None:
    """Turn the linear layers, except for the output layer, into NF4 with the settings of create_lora_model.py."""
    linear = [(name, part) for name, part in model.named_modules() if isinstance(part, nn.Linear)]
    for name, part in linear:
        if part is not model.get_output_embeddings():
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, packed(part))
    model.is_loaded_in_4bit = True  # peft asks the model, not its layers
    keep_trainable(model)


def packed(linear: nn.Linear) -> Any:
    bnb: Any = importlib.import_module("bitsandbytes")
    settings = nf4()
    form = {
        "quant_type": settings.bnb_4bit_quant_type, "compress_statistics": settings.bnb_4bit_use_double_quant,
        "quant_storage": settings.bnb_4bit_quant_storage,
    }  # fmt: skip
    layer = bnb.nn.Linear4bit(
        linear.in_features, linear.out_features, linear.bias is not None, settings.bnb_4bit_compute_dtype,
        device="meta", **form,
    )  # fmt: skip
    weight = bnb.nn.Params4bit(linear.weight.data, requires_grad=False, module=layer, **form)
    layer.weight, layer.bias = weight.to(linear.weight.device), linear.bias  # quantises
    return layer


# Episodes


def made_episodes(scale: Scale, seed: int = 0) -> list[Episode]:
    """Groups with a prompt each; lengths are spread evenly from shortest to longest; rewards alternate."""
    draws, vocabulary = random.Random(seed), scale.policy["vocab_size"]
    spread = (scale.longest - scale.shortest) / max(1, scale.episodes - 1)
    lengths = [round(scale.shortest + place * spread) for place in range(scale.episodes)]
    draws.shuffle(lengths)
    episodes = []
    for group in range(scale.groups):
        prompt = draws.choices(range(vocabulary), k=scale.prompt)
        for number in range(scale.group):
            rest = lengths[group * scale.group + number] - scale.prompt
            ids = [*prompt, *draws.choices(range(vocabulary), k=rest)]
            episode = made_episode(scale, ids, f"q{group}", f"q{group}/{number}")
            episodes.append(replace(episode, rewards={"made": float(number % 2)}))
    return episodes


def made_episode(scale: Scale, ids: Sequence[int], question: str = "q", name: str = "q/0") -> Episode:
    """After the prompt, sampled turns and results in turn.

    Example: prompt 2, turn 1, result 2 and 7 tokens: mask 0 0 1 0 0 1 0.
    """
    period = scale.turn + scale.result
    mask = [int(place >= scale.prompt and (place - scale.prompt) % period < scale.turn) for place in range(len(ids))]
    sampler = -math.log(scale.policy["vocab_size"])  # what random weights give, about
    return Episode(
        name, question, tuple(ids), tuple(mask), tuple(sampler * sampled for sampled in mask), (), (), "", "answer",
        "random",
    )  # fmt: skip


def tokens_of(episodes: Sequence[Episode]) -> int:
    return sum(len(episode.ids) for episode in episodes)


def layer_weights(settings: dict[str, Any]) -> int:
    """Weights of all layers' products. Example: Qwen2.5-7B has 6.53e9 of them, without embeddings and output layer."""
    hidden, inner = settings["hidden_size"], settings["intermediate_size"]
    width = hidden // settings["num_attention_heads"]
    attention = 2 * hidden * hidden + 2 * hidden * width * settings["num_key_value_heads"]
    return int(settings["num_hidden_layers"] * (attention + 3 * hidden * inner))


def update_flops(settings: dict[str, Any], episodes: Sequence[Episode], trained: int, prompt: int = 0) -> float:
    """Operations that an update of an adapter of `trained` weights needs; recomputation and padding don't count.

    A frozen weight costs 2 forward and 2 for the gradient of its input, a trained one 2 more; the output layer runs on
    sampled tokens only; attention costs 4 * hidden per pair of tokens forward, half of all pairs, and twice that
    backward. `prompt`: tokens that a group computes only once.

    Example: 1 layer of 10 weights, hidden 2, vocabulary 3, nothing trained, an episode of 4 tokens with 1 sampled:
    4 * 10 * 4 + 4 * 6 + 6 * 2 * 16 = 376.
    """
    hidden = settings["hidden_size"]
    groups = len({episode.question_id for episode in episodes}) if prompt else 0
    repeated = len(episodes) - groups if prompt else 0
    tokens = tokens_of(episodes) - repeated * prompt
    pairs = sum(len(episode.ids) ** 2 for episode in episodes) - repeated * prompt**2
    head = 4 * hidden * settings["vocab_size"] * sum(episode.sampled for episode in episodes)
    attention = 6 * settings["num_hidden_layers"] * hidden * pairs
    return float((4 * layer_weights(settings) + 6 * trained) * tokens + head + attention)
