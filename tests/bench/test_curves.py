"""Scores at equal tokens by hand, from per_question.jsonl as evaluate.py writes it."""

import json

import numpy as np
import pytest

from bench.curves import Options, Point, at, main

CURVE = [
    Point("single", 100, np.array([0.2, 0])), Point("best_of_2", 200, np.array([0.6, 0])),
    Point("best_of_4", 400, np.array([0.8, 1])),
]  # fmt: skip


@pytest.mark.parametrize(
    ("tokens", "scores"),
    [(50, [0.2, 0]), (100, [0.2, 0]), (150, [0.4, 0]), (250, [0.65, 0.25]), (400, [0.8, 1]), (900, [0.8, 1])],
)
def test_a_curve_between_its_sizes(tokens, scores):
    assert at(CURVE, tokens) == pytest.approx(scores)


def evaluation(folder, **systems):
    """Each system's (tokens, scores of two questions)."""
    rows = [
        {f"warm/{name}": {"f1": scores[n], "sampled_tokens": cost} for name, (cost, scores) in systems.items()}
        for n in range(2)
    ]
    lines = [json.dumps({"id": f"q{n}", "systems": row}) + "\n" for n, row in enumerate(rows)]
    (folder / "per_question.jsonl").write_text("".join(lines))
    return folder


SINGLE, BEST = (100, (0.2, 0.0)), (200, (0.6, 0.0))


def test_systems_beside_the_curve_by_hand(tmp_path, capsys):
    main(Options(evaluation(tmp_path, single=SINGLE, best_of_2=BEST, tree=(150, (0.9, 0.5)), tpo=(300, (0, 0))), "f1"))
    assert capsys.readouterr().out.splitlines()[2:] == [
        "| warm/single | 100 | 0.100 | | |", "| warm/best_of_2 | 200 | 0.300 | | |",
        "| warm/tree | 150 | 0.700 | 0.200 | **+0.500** (+0.500 to +0.500) |",
        "| warm/tpo | 300 | 0.000 | 0.300 (n at its most) | -0.300 (-0.600 to +0.000) |",
    ]  # fmt: skip
