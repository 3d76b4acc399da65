"""The folder of a learned scorer: scorer.json says what it is, head.safetensors has its weights.

The card is written last and names the weights by their digest, so that a folder is never taken for whole when a kill
left the weights of one training beside the card of another.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load, save

from forage.errors import UserError
from forage.evaluation.preference.features import PRODUCTS, SCALARS
from forage.evaluation.preference.model import Head
from forage.files import replacing
from forage.statistics import Interval

FORMAT = 1
CARD, WEIGHTS = "scorer.json", "head.safetensors"
PROBE = "probe"  # the embedder's vector of a sentence that is always the same, kept beside the weights


@dataclass(frozen=True)
class ScorerCard:
    """scorer.json."""

    embedder: str
    """The embedder's name."""
    embedder_weights: str
    """Digest of its weights; empty if it is a model of the hub's."""
    dimension: int
    """Length of its vectors."""
    hidden: int
    rank: int
    options: Mapping[str, Any]
    """How it was trained."""
    rewards: Mapping[str, float]
    """Weights of the rewards that it was trained to foresee."""
    learnt_from: Mapping[str, int]
    """Questions, episodes and pairs."""
    held_out: Mapping[str, int]
    """The same of the questions that it was judged on."""
    accuracy: Mapping[str, Mapping[str, Interval]]
    """On the held-out pairs, of finished episodes and of those that go on: its own and the written scorers'."""
    head: str = ""
    """Digest of head.safetensors."""
    scalars: tuple[str, ...] = SCALARS
    """Names of the features, in their order."""
    products: tuple[str, ...] = PRODUCTS
    format: int = FORMAT


def write_scorer(folder: Path, card: ScorerCard, head: Head, probe_D: NDArray[np.float32]) -> None:
    """The weights first, then the card that makes them count."""
    tensors = {**head.state_dict(), PROBE: torch.from_numpy(probe_D)}
    weights = save({name: tensor.contiguous() for name, tensor in tensors.items()})
    with replacing(folder / WEIGHTS) as file:
        file.buffer.write(weights)
    with replacing(folder / CARD) as file:
        json.dump({**asdict(card), "head": digest_of(weights)}, file, indent=1)


def read_scorer(folder: Path) -> tuple[ScorerCard, Head, NDArray[np.float32]]:
    """(card, head, the embedder's probe); refuses a folder that was trained with other features."""
    card = read_card(folder)
    weights = (folder / WEIGHTS).read_bytes() if (folder / WEIGHTS).is_file() else b""
    if digest_of(weights) != card.head:
        raise UserError(f"{folder}/{WEIGHTS} is not what its {CARD} was written for; train the scorer again")
    tensors = load(weights)
    probe_D: NDArray[np.float32] = tensors.pop(PROBE).numpy()
    head = Head(len(card.scalars) + len(card.products) * card.dimension, card.hidden, card.rank)
    head.load_state_dict(tensors)
    return card, head.eval(), probe_D


def read_card(folder: Path) -> ScorerCard:
    path = folder / CARD
    if not path.is_file():
        raise UserError(f"{folder} holds no learned scorer (no {CARD}); {MAKE_IT}")
    try:
        row: dict[str, Any] = json.loads(path.read_text())
        known = {field.name: row[field.name] for field in fields(ScorerCard)}
        card = ScorerCard(**known | {name: tuple(row[name]) for name in ("scalars", "products")})
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is no card of a scorer ({error}); {MAKE_IT}") from error
    if card.format > FORMAT:
        raise UserError(f"{path} has format {card.format}, this code reads up to {FORMAT}; update the code")
    if other := set(card.scalars + card.products) ^ set(SCALARS + PRODUCTS):
        raise UserError(f"{path} was trained with other features ({min(other)}); train the scorer again")
    if (card.scalars, card.products) != (SCALARS, PRODUCTS):
        raise UserError(f"{path} was trained with the features in another order; train the scorer again")
    return card


def digest_of(weights: bytes) -> str:
    return hashlib.sha256(weights).hexdigest()[:16]


MAKE_IT = "make one with python -m forage.evaluation.preference.train_scorer"
