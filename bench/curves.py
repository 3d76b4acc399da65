"""Curves: what each system of an evaluation scores beside best-of-n that samples as many tokens a question.

    python evaluate.py --data data --policy models/warm --systems single best_of_2 best_of_4 best_of_8 tpo tree
    python -m bench.curves runs/eval

Reads per_question.jsonl. Systems named `single` and `best_of...` of one policy, in the order of their tokens, are the
curve; between two of them it lies on the line between their scores, question by question, so that differences are
paired. A system that spends more than the largest is compared with that one, and marked: it had more tokens. --curve
names other systems, such as those that choose by a learned scorer. There is no bar: it tells what pays.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

from forage.arguments import POSITIONAL
from forage.cli import run_script
from forage.errors import UserError
from forage.evaluation.measures import Floats
from forage.metrics import bootstrapped, clear


@dataclass(frozen=True)
class Options:
    """The comparison."""

    evaluation: Annotated[Path, POSITIONAL]
    """Output folder of evaluate.py."""
    score: str = "answer_similarity"
    """Metric to compare."""
    curve: tuple[str, ...] = ()
    """Systems of the curve, as policy/system; left out: the first policy's `single` and `best_of...`."""


@dataclass(frozen=True, eq=False)
class Point:
    """A system."""

    name: str
    tokens: float
    """Mean tokens sampled a question."""
    score_Q: Floats


def main(options: Options) -> None:
    points = read_points(options.evaluation / "per_question.jsonl", options.score)
    policy = next(iter(points)).partition("/")[0]
    names = options.curve or [
        name for name in points if name.startswith((f"{policy}/best_of", f"{policy}/single"))
    ]  # fmt: skip
    if unknown := [name for name in names if name not in points]:
        raise UserError(f"--curve {unknown[0]}: choose among {', '.join(points)}")
    curve = sorted((points.pop(name) for name in names), key=lambda point: point.tokens)
    if len(curve) < 2:
        raise UserError(
            f"{options.evaluation} has no best-of-n of {policy} beside single; evaluate best_of_4, best_of_8"
        )
    print("\n".join(table(curve, list(points.values()))))


def read_points(path: Path, score: str) -> dict[str, Point]:
    """The evaluation's systems by name, on the questions that have the score for all of them."""
    if not path.exists():
        raise UserError(f"{path} is missing; name the --output-dir of an evaluate.py that has ended")
    rows = [json.loads(line)["systems"] for line in path.read_text().splitlines()]
    whole = [row for row in rows if all(values.get(score) is not None for values in row.values())]
    if not whole:
        raise UserError(f"{path} has no question with {score} of all systems; --score takes {', '.join(scores(rows))}")
    return {
        name: Point(
            name, float(np.mean([row[name]["sampled_tokens"] for row in whole])),
            np.array([row[name][score] for row in whole], np.float64),
        )
        for name in whole[0]
    }  # fmt: skip


def scores(rows: Sequence[Mapping[str, Mapping[str, float]]]) -> list[str]:
    return list(next(iter(rows[0].values()))) if rows else []


def at(curve: Sequence[Point], tokens: float) -> Floats:
    """(Q,): the curve's scores where this many tokens are spent.

    Example: points of 100 and 200 tokens with scores .2 and .6 give .4 at 150, and .6 at 500.
    """
    costs = [point.tokens for point in curve]
    return np.array([np.interp(tokens, costs, column) for column in np.stack([p.score_Q for p in curve], axis=1)])


def table(curve: Sequence[Point], points: Sequence[Point]) -> list[str]:
    """Markdown: the curve itself, then the other systems by their tokens, each beside the curve."""
    lines = ["| system | tokens a question | score | best-of-n for as many | difference |", "|---|---|---|---|---|"]
    lines += [f"| {point.name} | {point.tokens:,.0f} | {point.score_Q.mean():.3f} | | |" for point in curve]
    for point in sorted(points, key=lambda point: point.tokens):
        beside_Q = at(curve, point.tokens)
        over = bootstrapped((point.score_Q - beside_Q).tolist())
        less, more = point.tokens < curve[0].tokens, point.tokens > curve[-1].tokens
        note = " (one sample, which has more)" if less else " (n at its most)" if more else ""
        said = f"**{over['mean']:+.3f}**" if clear(over) else f"{over['mean']:+.3f}"
        lines.append(
            f"| {point.name} | {point.tokens:,.0f} | {point.score_Q.mean():.3f} | {beside_Q.mean():.3f}{note} | {said} "
            f"({over['low']:+.3f} to {over['high']:+.3f}) |"
        )
    return lines


if __name__ == "__main__":
    run_script(main, __doc__)
