"""Made-up episodes of realistic lengths, and the floating-point operations that an update on them needs."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bench.gpu_rows.scale import Scale
from forage.agent.episode import Episode


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
