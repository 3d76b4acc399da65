"""Scale: how large everything is, for a GPU or for a few seconds on a CPU; the configurations of the random models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Written out, because nothing is downloaded.
QWEN_7B: dict[str, Any] = {  # Qwen2.5-7B-Instruct
    "model_type": "qwen2", "vocab_size": 152_064, "hidden_size": 3584, "intermediate_size": 18_944,
    "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0, "tie_word_embeddings": False,
}  # fmt: skip
SMOLLM_135M: dict[str, Any] = {  # SmolLM2-135M-Instruct
    "model_type": "llama", "vocab_size": 49_152, "hidden_size": 576, "intermediate_size": 1536,
    "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5, "rope_theta": 100_000.0, "tie_word_embeddings": True, "initializer_range": 0.0417,
}  # fmt: skip
TINY_SIZES = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip


@dataclass(frozen=True)
class Scale:
    """What is measured on. Lengths are in tokens."""

    policy: dict[str, Any]
    """Configuration of the model that is trained and sampled."""
    small: dict[str, Any]
    """Configuration of the model whose log-probabilities are compared with the CPU's."""
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
    budget: int
    """Largest token budget to try for a micro-batch."""
    trl_rows: int
    """TRL's per_device_train_batch_size."""
    sampled: int
    """Tokens that each of the two turns of the sampling rows has."""
    compared: int
    """Tokens sampled per sequence for the comparison of log-probabilities."""
    search_from: int
    """First length tried for the longest episode."""
    matrix: int
    """Width of the matrices that measure the device's speed."""

    @property
    def episodes(self) -> int:
        return self.groups * self.group


FULL = Scale(
    policy=QWEN_7B, small=SMOLLM_135M, groups=8, group=8, prompt=600, shortest=1000, longest=4000, turn=150, result=350,
    budget=16_384, trl_rows=4, sampled=128, compared=384, search_from=4096, matrix=8192,
)  # fmt: skip
TINY = Scale(
    policy=QWEN_7B | TINY_SIZES | {"max_position_embeddings": 256},
    small=SMOLLM_135M | TINY_SIZES | {"initializer_range": 0.125},  # so that logits vary as much as with 576 dimensions
    groups=2, group=4, prompt=24, shortest=40, longest=120, turn=12, result=20, budget=512, trl_rows=4, sampled=6,
    compared=32, search_from=64, matrix=256,
)  # fmt: skip
