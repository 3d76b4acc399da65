"""Preference: a learned scorer, which takes the place of a written one wherever strategies take a scorer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from forage.agent.episode import Episode
from forage.agent.protocol import Protocol
from forage.data.records import Question
from forage.errors import UserError
from forage.evaluation.preference.card import read_scorer
from forage.evaluation.preference.features import features
from forage.evaluation.preference.model import Head
from forage.store.card import SAME_MODEL
from forage.store.embedder import Embedder


@dataclass(frozen=True)
class Preference:
    """A Scorer, of finished episodes and of ones that go on (EpisodeBuilder.so_far) alike.

    Example: BestOfN(Preference.load(Path("models/scorer"), embedder), n=8). Scores are between 0 and 1, and say only
    which of a question's candidates are better; those of two questions can't be compared.
    """

    head: Head
    embedder: Embedder

    def __call__(self, protocol: Protocol, question: Question, episodes: Sequence[Episode]) -> list[float]:
        return self.head.scores(features(self.embedder, protocol, question, episodes)) if episodes else []

    @classmethod
    def load(cls, folder: Path, embedder: Embedder) -> Preference:
        """The scorer in a folder of train_scorer.py; refuses one that was trained with another embedder."""
        card, head, then_D = read_scorer(folder)
        now_D = embedder.probe()
        if then_D.shape != now_D.shape or float(then_D @ now_D) < SAME_MODEL:
            raise UserError(
                f"{folder} was trained with embedder {card.embedder}, and this is {embedder.name} with other weights; "
                "train the scorer again, or search a store with that embedder"
            )
        return cls(head, embedder)
