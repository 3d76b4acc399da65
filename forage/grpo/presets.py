"""Presets: the settings of published methods by one flag, `--preset NAME`. A flag beside it wins over the preset.

They set what a method is known for: its loss, its advantages and how it sums. Learning rate, group size and the
correction for the sampler's rounding stay as they are, since papers choose those for full models on many GPUs.
"""

from __future__ import annotations

from typing import Any

PRESETS: dict[str, dict[str, Any]] = {
    # GRPO as it was first described (arXiv 2402.03300): a mean over each episode, equal bounds, a KL term.
    "deepseekmath": {
        "loss": "clip", "clip_low": 0.2, "clip_high": 0.2, "aggregation": "sequence", "beta": 0.04,
        "advantage": "grpo", "epochs": 1,
    },
    # 2503.14476: a higher upper bound, a mean over tokens, questions without a signal replaced, a soft length penalty.
    "dapo": {
        "loss": "clip", "clip_low": 0.2, "clip_high": 0.28, "aggregation": "token", "beta": 0.0, "advantage": "grpo",
        "replace_flat": 8, "overlong": "punish",
    },
    # 2503.20783: no division by length or deviation. The constant only scales the gradient, which AdamW undoes.
    "dr_grpo": {
        "loss": "clip", "clip_low": 0.2, "clip_high": 0.2, "aggregation": "constant",
        "beta": 0.0, "advantage": "dr_grpo",
    },
    # 2507.18071: one ratio per episode, so bounds of another size.
    "gspo": {
        "loss": "gspo", "clip_low": 3e-4, "clip_high": 4e-4, "aggregation": "sequence", "beta": 0.0,
        "advantage": "grpo",
    },
    # 2506.13585: every token keeps its gradient; no lower bound.
    "cispo": {
        "loss": "cispo", "clip_low": 1.0, "clip_high": 4.0, "aggregation": "token", "beta": 0.0, "advantage": "grpo",
    },
}  # fmt: skip
