"""Model: a small network that scores a row of features, trained on which of two candidates is better.

Paper: rStar-Math, https://arxiv.org/abs/2501.04519, fine-tunes a language model to score steps (its process preference
model), by the pairwise loss of Bradley and Terry on pairs of a good and a bad step.

Here: the same loss, each pair weighted by how far its Q-values are apart, trains a network with one hidden layer over
standardised features. The products of embeddings come in through a matrix of low rank, which is zero at first: without
evidence for it, it stays near zero.

Only differences within a question are learnt, so scores are shifted to be .5 on average, for finished episodes and for
those that go on alike; a sigmoid brings them between 0 and 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from forage.errors import check_at_least_one, check_at_least_zero
from forage.evaluation.preference.features import OPEN, SCALARS, Rows

FARTHEST = 5.0  # standard deviations from the mean at which a feature is cut
PAIRS_PER_BATCH = 256
DEVIATION_FLOOR = 1e-6  # a feature that hardly varies is left as it is


@dataclass(frozen=True)
class Learning:
    """How the model is trained."""

    hidden: int = 32
    """Units of the hidden layer."""
    rank: int = 4
    """Rank of the learned weighting of products of embeddings; 0: cosines only."""
    steps: int = 600
    """Steps of training, each on a batch of pairs drawn at random."""
    learning_rate: float = 2e-3
    """Learning rate of AdamW, falling to 0."""
    weight_decay: float = 0.1
    """AdamW weight decay."""
    seed: int = 0
    """Seed of the weights, of the order of pairs, and of the questions held out."""

    def check(self) -> None:
        check_at_least_one(self, "hidden", "steps")
        check_at_least_zero(self, "rank", "learning_rate", "weight_decay")


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

    def __init__(self, width: int, hidden: int, rank: int) -> None:
        super().__init__()
        self.register_buffer("mean_F", torch.zeros(width))
        self.register_buffer("deviation_F", torch.ones(width))
        self.register_buffer("centres", torch.zeros(2))
        self.interaction = torch.nn.Parameter(torch.zeros(width - len(SCALARS), rank))
        self.hidden = torch.nn.Linear(len(SCALARS) + rank, hidden)
        self.out = torch.nn.Linear(hidden, 1, bias=False)

    def forward(self, rows_NF: Tensor) -> Tensor:
        """(N,) raw scores."""
        even_NF = ((rows_NF - self.mean_F) / self.deviation_F).clamp(-FARTHEST, FARTHEST)
        scalars_NS, products_NP = even_NF.tensor_split([len(SCALARS)], dim=1)
        mixed = torch.cat([scalars_NS, products_NP @ self.interaction], dim=1)
        scores_N: Tensor = self.out(torch.nn.functional.gelu(self.hidden(mixed)))[:, 0]
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


def fit(rows_NF: Rows, pairs: Pairs, learning: Learning) -> Head:
    """A head that prefers the better one of each pair. Equal inputs give an equal head."""
    given_NF = torch.from_numpy(rows_NF)
    better_P, worse_P = torch.from_numpy(pairs.better_P), torch.from_numpy(pairs.worse_P)
    weights_P = torch.from_numpy(pairs.weights_P).float()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(learning.seed)
        head = Head(given_NF.shape[1], learning.hidden, learning.rank)
    head.standardise(given_NF)
    draw = torch.Generator().manual_seed(learning.seed)
    optimizer = torch.optim.AdamW(head.parameters(), learning.learning_rate, weight_decay=learning.weight_decay)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=learning.steps)
    for _ in range(learning.steps):
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
