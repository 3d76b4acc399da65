"""What a vLLM server must be: of the policy's base, and with log-probabilities that follow the temperature.

With --logprobs-mode raw_logprobs, vLLM's default, they are those of temperature 1 whatever the request's temperature,
and nothing in an answer says so. Between two tokens, log-probabilities at temperature T differ by 1 / T of what they
differ by at temperature 1. So the likeliest tokens after the same prompt, asked for at both temperatures, tell. A low
temperature magnifies the difference far above rounding errors of bf16.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forage.engines.base import Request, Sampling
from forage.engines.completion import WAY_OUT, body_of, is_logprob
from forage.errors import UserError
from forage.policy.base_models import is_copy_of, same_base
from forage.policy.manifest import PolicyManifest

COLD = 0.1
MAGNIFIED = math.sqrt(1 / COLD)  # half-way, in logarithms, between raw (1) and processed (10)
LISTED = 5  # as many likeliest tokens as any server lists
SMALL = 0.01  # a smaller difference at temperature 1 tells nothing
MOST_TOKENS = 2**20  # no vocabulary is larger
PROMPTS = ((11, 22, 33, 44, 55, 66, 77, 88), (200, 3, 150, 3, 100, 3, 50, 3), (9, 9, 9, 9, 9, 9, 9, 9))
# Greedy, so that equal weights give equal answers.
COMPARED = Request(PROMPTS[0], 8, (), sampling=Sampling(temperature=0))


@dataclass(frozen=True)
class Wanted:
    """The model that requests are meant for."""

    manifest: PolicyManifest
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
    check_root(str(model.get("root") or ""), wanted.manifest, server)


def check_root(root: str, manifest: PolicyManifest, server: str) -> None:
    """Refuse a server whose base is not the policy's. `root` is where it loaded its base from.

    A server on another machine has folders of its own, which can't be compared from here.
    """
    served = Path(root)
    elsewhere = served.is_absolute() and not served.exists()
    if not root or elsewhere or same_base(root, manifest.base, manifest.base_digest):
        return
    if manifest.quantized and is_copy_of(served, Path(manifest.base)):
        return
    raise UserError(f"{server} serves {served}, not {manifest.base}; start it with that model, or give --engine local")


def probe_body(prompt: tuple[int, ...], temperature: float, model: str) -> dict[str, Any]:
    """A completion of one token that lists the likeliest ones by their ids."""
    body = body_of(Request(prompt, 1, (), sampling=Sampling(temperature)), model)
    return body | {"logprobs": LISTED, "return_tokens_as_token_ids": True}


def listed_logprobs(choice: Mapping[str, Any], server: str) -> dict[str, float]:
    """The likeliest tokens of a probe's answer and their log-probabilities."""
    try:
        [listed] = choice["logprobs"]["top_logprobs"]
        values = dict(listed)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{server} lists no likeliest tokens; is its version supported?") from error
    # Their probabilities sum to at most 1; and to nearly 1 where even a vocabulary of tokens no likelier than the last
    # could not hold the rest.
    sound = bool(values) and all(map(is_logprob, values.values()))
    listed_mass = sum(math.exp(value) for value in values.values()) if sound else 0.0
    if not sound or listed_mass > 1.01 or listed_mass + MOST_TOKENS * math.exp(min(values.values())) < 0.99:
        raise UserError(f"{server} returns logits instead of log-probabilities; {WAY_OUT}")
    return values


def difference(warm: Mapping[str, float], cold: Mapping[str, float]) -> tuple[float, float]:
    """How far the likeliest and the least likely of the tokens in both differ: at temperature 1, and at COLD.

    Example: {a: -1, b: -2, c: -4} and {a: 0, b: -10, d: -30} give (1, 10): a and b are in both.
    """
    both = sorted(warm.keys() & cold.keys(), key=lambda token: warm[token])
    return (warm[both[-1]] - warm[both[0]], cold[both[-1]] - cold[both[0]]) if both else (0.0, 0.0)


def check_differences(differences: list[tuple[float, float]], server: str) -> None:
    """Refuse a server whose log-probabilities don't follow the temperature. The prompt with most to tell decides."""
    warm, cold = max(differences)
    if warm < SMALL:
        raise UserError(f"{server} finds all tokens equally likely; is its model whole?")
    if cold < MAGNIFIED * warm:
        raise UserError(
            f"{server} returns log-probabilities of temperature 1 whatever the temperature sampled at; {WAY_OUT}"
        )
