"""Preference: a learned scorer of candidate episodes, a small network trained on which of two candidates is better.

Paper: rStar-Math, https://arxiv.org/abs/2501.04519, fine-tunes a language model to score steps (its process preference
model), by the pairwise loss of Bradley and Terry on pairs of a good and a bad step.

Here: the same loss, each pair weighted by how far its Q-values are apart, trains a network with one hidden layer over
standardised features (features.py).

Only differences within a question are learnt, so scores are shifted to be .5 on average, for finished episodes and for
those that go on alike; a sigmoid brings them between 0 and 1.

A scorer's folder: head.safetensors is what is loaded, scorer.json, written last, says what it was trained on and how
often it is right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from forage.agent.episode import Episode
from forage.agent.protocol import Protocol
from forage.data.records import Question
from forage.errors import UserError
from forage.extras.testtime.features import FEATURES, OPEN, Rows, features
from forage.files import replacing
from forage.manifest import digest, write_manifest
from forage.store.card import SAME_MODEL
from forage.store.embedder import Embedder

CARD, WEIGHTS = "scorer.json", "head.safetensors"
PROBE = "probe"  # the embedder's vector of a sentence that is always the same, kept beside the weights
HIDDEN = 32  # units of the hidden layer
STEPS, LEARNING_RATE, WEIGHT_DECAY = 600, 2e-3, 0.1  # of AdamW, whose rate falls to 0
FARTHEST = 5.0  # standard deviations from the mean at which a feature is cut
PAIRS_PER_BATCH = 256
DEVIATION_FLOOR = 1e-6  # a feature that hardly varies is left as it is


@dataclass(frozen=True, eq=False)
class Pairs:
    """P pairs of candidates of one question, by their rows."""

    better_P: NDArray[np.int64]
    worse_P: NDArray[np.int64]
    weights_P: NDArray[np.float64]
    """How much better: the difference of their Q-values."""

    def __len__(self) -> int:
        return len(self.better_P)

    def some(self, mine_P: NDArray[np.bool_]) -> Pairs:
        return Pairs(self.better_P[mine_P], self.worse_P[mine_P], self.weights_P[mine_P])


class Head(torch.nn.Module):
    """Rows of features in, raw scores out."""

    mean_F: Tensor
    deviation_F: Tensor
    centres: Tensor
    """The mean raw score of finished episodes, and of those that go on."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean_F", torch.zeros(len(FEATURES)))
        self.register_buffer("deviation_F", torch.ones(len(FEATURES)))
        self.register_buffer("centres", torch.zeros(2))
        self.hidden = torch.nn.Linear(len(FEATURES), HIDDEN)
        self.out = torch.nn.Linear(HIDDEN, 1, bias=False)

    def forward(self, rows_NF: Tensor) -> Tensor:
        """(N,) raw scores."""
        even_NF = ((rows_NF - self.mean_F) / self.deviation_F).clamp(-FARTHEST, FARTHEST)
        scores_N: Tensor = self.out(torch.nn.functional.gelu(self.hidden(even_NF)))[:, 0]
        return scores_N

    @torch.no_grad()
    def scores(self, rows_NF: Rows) -> list[float]:
        """Between 0 and 1."""
        given_NF = torch.from_numpy(rows_NF)
        centred_N = self(given_NF) - self.centres[given_NF[:, OPEN].long()]
        scores: list[float] = centred_N.double().sigmoid().tolist()
        return scores

    @torch.no_grad()
    def standardise(self, rows_NF: Tensor) -> None:
        """Take means and deviations from these rows."""
        self.mean_F.copy_(rows_NF.mean(dim=0))
        deviations_F = rows_NF.std(dim=0, correction=0)
        self.deviation_F.copy_(torch.where(deviations_F > DEVIATION_FLOOR, deviations_F, 1.0))

    @torch.no_grad()
    def centre(self, rows_NF: Tensor) -> None:
        """Shift scores so that those of these rows are .5 on average, before the sigmoid bends them."""
        scores_N, open_N = self(rows_NF), rows_NF[:, OPEN].bool()
        for place, of_kind in enumerate((scores_N[~open_N], scores_N[open_N])):
            self.centres[place] = of_kind.mean() if len(of_kind) else 0.0


def fit(rows_NF: Rows, pairs: Pairs, seed: int = 0, steps: int = STEPS) -> Head:
    """A head that prefers the better one of each pair. Equal inputs give an equal head."""
    given_NF = torch.from_numpy(rows_NF)
    better_P, worse_P = torch.from_numpy(pairs.better_P), torch.from_numpy(pairs.worse_P)
    weights_P = torch.from_numpy(pairs.weights_P).float()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = Head()
    head.standardise(given_NF)
    draw = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(head.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)
    for _ in range(steps):
        drawn_B = torch.randint(len(pairs), (PAIRS_PER_BATCH,), generator=draw)
        better_B, worse_B = head(given_NF[better_P[drawn_B]]), head(given_NF[worse_P[drawn_B]])
        optimizer.zero_grad()
        bradley_terry(better_B, worse_B, weights_P[drawn_B]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    head.centre(given_NF)
    return head.eval()


def bradley_terry(better_P: Tensor, worse_P: Tensor, weights_P: Tensor) -> Tensor:
    """Weighted mean of -log sigmoid(better - worse).

    Example: scores 1 and 0 cost log(1 + 1/e) = .313; equal scores cost log 2 = .693. With weights 3 and 1: .408.
    """
    return (weights_P * torch.nn.functional.softplus(worse_P - better_P)).sum() / weights_P.sum()


@dataclass(frozen=True)
class Preference:
    """A Scorer, of finished episodes and of ones that go on (EpisodeBuilder.so_far) alike.

    Example: BestOf(Preference.load(Path("models/scorer"), embedder), n=8). Scores are between 0 and 1, and say only
    which of a question's candidates are better; those of two questions can't be compared.
    """

    head: Head
    embedder: Embedder

    def __call__(self, protocol: Protocol, question: Question, episodes: Sequence[Episode]) -> list[float]:
        return self.head.scores(features(self.embedder, protocol, question, episodes)) if episodes else []

    @classmethod
    def load(cls, folder: Path, embedder: Embedder) -> Preference:
        """The scorer in a folder of train_scorer.py; refuses one that was trained with another embedder."""
        path, now_D, head = folder / WEIGHTS, embedder.probe(), Head()
        try:
            tensors = load_file(path)
            then_D: NDArray[np.float32] = tensors.pop(PROBE).numpy()
            head.load_state_dict(tensors)
        except (OSError, SafetensorError, KeyError, RuntimeError) as error:
            raise UserError(f"{path} is no scorer of this version ({type(error).__name__}); {MAKE_IT}") from error
        if then_D.shape != now_D.shape or float(then_D @ now_D) < SAME_MODEL:
            raise UserError(
                f"{folder} was trained with another embedder than {embedder.name}, or with other weights of it; train "
                "the scorer again, or search a store with that embedder"
            )
        return cls(head.eval(), embedder)


MAKE_IT = "make one with python -m forage.extras.testtime.train_scorer"


def write_scorer(folder: Path, head: Head, probe_D: NDArray[np.float32], card: Mapping[str, Any]) -> None:
    """The weights first, then the card by which the folder counts as finished."""
    tensors = {**head.state_dict(), PROBE: torch.from_numpy(probe_D)}
    weights = save({name: tensor.contiguous() for name, tensor in tensors.items()})
    with replacing(folder / WEIGHTS) as file:
        file.buffer.write(weights)
    write_manifest(folder / CARD, {"head": digest(weights), **card})
