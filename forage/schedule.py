"""Which questions a step uses: in rounds, or by how much the rewards of their last group differed."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
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


MIN_WEIGHT = 0.1  # for a question whose last rewards were all equal; the widest spread weighs 1. None is given up.


def by_spread(
    ids: Sequence[str], spreads: Mapping[str, float], count: int, seed: str, *, without: Sequence[str] = ()
) -> list[str]:
    """Draw `count` questions without repetition, weighted by the spread of each one's last rewards.

    A question never used counts as having the widest spread; those in `without` are not drawn. Example: spreads of 0,
    .25 and unknown, where the widest is .5, weigh .1, .5 and 1.
    """
    widest = max(spreads.values(), default=0.0)
    draw, excluded = random.Random(seed), set(without)
    keys = []
    for name in ids:
        weight = max(MIN_WEIGHT, spreads[name] / widest if widest else 1.0) if name in spreads else 1.0
        # Efraimidis and Spirakis: the items with the largest u^(1/w) are a weighted sample without replacement.
        key = math.log(1 - draw.random()) / weight
        if name not in excluded:
            keys.append((-key, name))
    return [name for _, name in sorted(keys)[:count]]
