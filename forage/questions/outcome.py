"""Made: what became of a store's passages."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from forage.questions.candidates import Dropped
from forage.questions.vetting import Kept


@dataclass
class Made:
    """Questions kept, candidates dropped, and passages that gave none."""

    k: int
    """How many passages each search showed."""
    passages: int = 0
    read: int = 0
    fruitless: int = 0
    kept: list[Kept] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)

    @property
    def reasons(self) -> Counter[str]:
        return Counter(one.reason for one in self.dropped)
