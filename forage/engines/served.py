"""What vLLM servers have to serve, and the check of what they say they do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forage.errors import UserError
from forage.policy.card import PolicyCard
from forage.policy.identity import same_base
from forage.policy.serving_copy import is_copy_of


@dataclass(frozen=True)
class Wanted:
    """The model that requests are meant for."""

    card: PolicyCard
    vocabulary: int
    """Number of its tokens."""
    tokens: int
    """The most tokens of an episode."""


def check_served(model: dict[str, Any], wanted: Wanted, server: str) -> None:
    """Refuse a server of another base, or one too short for an episode. `model` is its entry in /v1/models."""
    longest = model.get("max_model_len")
    if isinstance(longest, int) and longest < wanted.tokens:
        raise UserError(
            f"{server} holds {longest} tokens, but an episode may have {wanted.tokens}; start it with "
            f"--max-model-len {wanted.tokens} (MAX_LEN of scripts/vllm_cpu.sh)"
        )
    check_root(str(model.get("root") or ""), wanted.card, server)


def check_root(root: str, card: PolicyCard, server: str) -> None:
    """Refuse a server whose base is not the policy's. `root` is where it loaded its base from.

    A server on another machine has folders of its own, which can't be compared from here.
    """
    served = Path(root)
    elsewhere = served.is_absolute() and not served.exists()
    if not root or elsewhere or same_base(root, card.base, card.base_digest):
        return
    if card.quantized and is_copy_of(served, Path(card.base)):
        return
    raise UserError(f"{server} serves {served}, not {card.base}; start it with that model, or give --engine local")
