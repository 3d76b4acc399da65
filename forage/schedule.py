"""Which items a step uses: in rounds over all of them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def in_rounds(items: Sequence[T], step: int, count: int, seed: int) -> list[T]:
    """The `count` items of a step. Each round goes through all items in its own order, which depends on the seed alone.

    Example: with 5 items, 3 per step, step 0 has the first three of round 0, step 1 its last two and one of round 1.
    """
    orders: dict[int, list[int]] = {}
    chosen = []
    for place in range(step * count, (step + 1) * count):
        turn, number = divmod(place, len(items))
        if turn not in orders:
            orders[turn] = list(range(len(items)))
            random.Random(f"{seed}/{turn}").shuffle(orders[turn])
        chosen.append(items[orders[turn][number]])
    return chosen
