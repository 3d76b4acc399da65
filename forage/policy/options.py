"""Options for the shape of a LoRA adapter."""

from __future__ import annotations

from dataclasses import dataclass

from forage.errors import UserError


@dataclass(frozen=True)
class AdapterOptions:
    """The LoRA adapter."""

    r: int = 16
    """Rank of the adapter."""
    alpha: int = 32
    """Scale of the adapter: its output is multiplied by alpha / r, or by alpha / sqrt(r) with --rslora."""
    target_modules: tuple[str, ...] = ("all-linear",)
    """Layers to adapt: all-linear (every linear layer except the output layer), or names such as q_proj v_proj."""
    dropout: float = 0.0
    """Dropout before the adapter. Keep it at 0 for RL: dropout makes the sampler and the trainer disagree."""
    rslora: bool = False
    """Rank-stabilised scale (rsLoRA), https://arxiv.org/abs/2312.03732."""
    dora: bool = False
    """Weight-decomposed LoRA (DoRA), https://arxiv.org/abs/2402.09353."""

    def check(self) -> None:
        if self.r < 1 or self.alpha < 1:
            raise UserError(f"--r {self.r} and --alpha {self.alpha} must be at least 1")
        if not 0 <= self.dropout < 1:
            raise UserError(f"--dropout {self.dropout} must be at least 0 and under 1")
        if not self.target_modules:
            raise UserError("--target-modules names no layer; use all-linear")
