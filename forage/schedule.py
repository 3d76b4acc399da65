"""Which questions a step plays: in rounds, or by how much their last group's rewards differed."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")


def in_rounds(items: Sequence[T], step: int, count: int, seed: int) -> list[T]:
    """The `count` items of a step; each round has an order of its own, which the seed alone decides.

    Example: of 5 items, 3 a step: step 0 has the first three of round 0, step 1 its last two and the first of round 1.
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


LEAST = 0.1  # weight of a question whose last group was flat, beside 1 for the widest spread: nothing is given up


def by_spread(
    ids: Sequence[str], spreads: Mapping[str, float], count: int, seed: str, *, without: Sequence[str] = ()
) -> list[str]:
    """`count` questions drawn without repetition, each as likely as its last group's rewards were spread.

    What was never played counts as the widest spread there is. Example: of three questions whose spreads are 0, .25
    and unknown where the widest is .5, the weights are .1, .5 and 1.
    """
    widest = max(spreads.values(), default=0.0)
    draw, barred = random.Random(seed), set(without)
    keys = []
    for name in ids:
        weight = max(LEAST, spreads[name] / widest if widest else 1.0) if name in spreads else 1.0
        # Efraimidis and Spirakis: the largest of u^(1/w) are a weighted sample without replacement.
        key = math.log(1 - draw.random()) / weight
        if name not in barred:
            keys.append((-key, name))
    return [name for _, name in sorted(keys)[:count]]
