"""Report: the measured policies of all rounds side by side, and what each of them cost.

evolution.json is one JSON object:

    {
    "schema": 1,
    "questions": 200, "reference": "round_0/single",                the start, with which all others are compared
    "options": {...},                                               self_evolve.py's options
    "rounds": [{
        "name": "round_1", "system": "best_of_8",                   what searched
        "played": 500, "kept": 161,                                 training questions
        "search_tokens": 912345,                                    sampled to make the demonstrations
        "demonstrations": 161, "updates": 100,                      of the training, over all rounds so far
        "trained_tokens": 41234,                                    the policy's own, over all updates; about
    }, ...],                                                        the imitation last, if there is one
    "systems": [...],                                               as in eval.json (forage/evaluation/summary.py)
    "over_imitation": [{                                            with --imitation, of what it and the rounds played
        "name": "round_1/single", "over": "imitation_2/single",
        "metrics": {"mrr": {"mean": .02, "low": -.03, "high": .08}, ...}        paired differences
    }, ...]
    }
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from forage.agent.episode import read_episodes
from forage.data.records import Question, read_questions
from forage.errors import UserError
from forage.evaluation.summary import (
    WIDTH,
    SystemScores,
    markdown,
    markdown_differences,
    print_differences,
    print_rows,
    summary,
)
from forage.evolution.options import EvolveOptions
from forage.evolution.stages import FIRST, Place, imitation_place, played_by, system_of, whole_evaluation
from forage.files import json_lines, replacing
from forage.manifest import plain

SCHEMA = 1


@dataclass(frozen=True)
class Account:
    """What a round played, kept and trained on."""

    name: str
    system: str
    played: int
    kept: int
    search_tokens: int
    demonstrations: int
    updates: int
    trained_tokens: int


def report(options: EvolveOptions, rounds: int) -> None:
    """Write evolution.json, table.md and evolution.png of the rounds so far, and print the tables."""
    from forage.evolution.plots import draw_rounds  # here, as it loads matplotlib

    places = [Place.of(options.output_dir, number) for number in range(rounds + 1)]
    accounts = [account(options, number) for number in range(1, rounds + 1)]
    beside = imitation_place(options)
    if whole_evaluation(beside.measured).exists():
        places.append(beside)
        accounts.append(imitation_account(options))
    systems, questions = read_scores(places, options.data)
    rows, controls = summary(systems, questions), beside_imitation(systems, beside.name, questions)
    title = f"{len(questions)} held-out questions after each round"
    whole = {
        "schema": SCHEMA, "questions": len(questions), "reference": rows[0]["name"], "options": plain(options),
        "rounds": [asdict(one) for one in accounts], "systems": rows, "over_imitation": over_imitation(controls),
    }  # fmt: skip
    out = options.output_dir
    with replacing(out / "table.md") as file:
        differences = [part for control in controls for part in markdown_differences(control)]
        costs = ["## What the rounds cost", markdown_accounts(accounts)]
        file.write("\n\n".join([markdown(rows, title), *differences, *costs]) + "\n")
    draw_rounds(rows, out / "evolution.png")
    with replacing(out / "evolution.json") as file:
        json.dump(whole, file, indent=1, default=str, allow_nan=False)
    print_rows(rows, title)
    for control in controls:
        print_differences(control)
    print_accounts(accounts)
    print(f"all results: {out / 'evolution.json'}, {out / 'table.md'}, {out / 'evolution.png'}")


def reported(folder: Path) -> int:
    """The number of rounds in the last report, 0 where there is none."""
    path = folder / "evolution.json"
    return sum("round" in row["name"] for row in json.loads(path.read_text())["rounds"]) if path.exists() else 0


# The scores


def read_scores(places: Sequence[Place], data: Path) -> tuple[list[SystemScores], list[Question]]:
    """Every system of every measured policy, and the questions they answered, which must be the same."""
    known = {question.id: question for question in read_questions(data / "eval.jsonl")}
    values = [[row for _, row in json_lines(place.measured / "per_question.jsonl")] for place in places]
    ids = [row["id"] for row in values[0]]
    other = next((place for place, rows in zip(places, values, strict=True) if [r["id"] for r in rows] != ids), None)
    if other or not known.keys() >= set(ids):
        raise UserError(
            f"{(other or places[0]).measured} was measured on other questions than {places[0].measured}, or than are "
            f"in {data / 'eval.jsonl'} now; put the data back, or give another --output-dir"
        )
    systems = [one for place, rows in zip(places, values, strict=True) for one in scores_of(place, rows)]
    return systems, [known[name] for name in ids]


def scores_of(place: Place, rows: Sequence[Mapping[str, Any]]) -> list[SystemScores]:
    measured = json.loads((place.measured / "eval.json").read_text())["systems"]
    return [
        SystemScores(
            system["policy"], system["system"], system["adapter"],
            {metric: array_of(rows, system["name"], metric) for metric in rows[0]["systems"][system["name"]]},
        )
        for system in measured
    ]  # fmt: skip


def array_of(rows: Sequence[Mapping[str, Any]], system: str, metric: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """(questions,): NaN where a question has no value."""
    values = (row["systems"][system][metric] for row in rows)
    return np.array([math.nan if value is None else value for value in values], np.float64)


def beside_imitation(
    systems: Sequence[SystemScores], imitation: str, questions: Sequence[Question]
) -> list[list[dict[str, Any]]]:
    """For each system that the imitation played, its row and those of the rounds' policies, compared with it."""
    own = [one for one in systems if one.policy == imitation]
    rounds = [one for one in systems if one.policy not in (imitation, systems[0].policy)]
    return [summary([one, *(other for other in rounds if other.system == one.system)], questions) for one in own]


def over_imitation(controls: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    return [
        {"name": row["name"], "over": control[0]["name"], "metrics": row["over_reference"]}
        for control in controls
        for row in control[1:]
    ]


# The costs


def account(options: EvolveOptions, number: int) -> Account:
    place, system = Place.of(options.output_dir, number), system_of(options, number)
    first, search = (played_by(options, number, name) for name in (FIRST, system))
    results, tried = search.results(), search.candidates()
    tokens = sum(result.cost.sampled for result in results.values())
    # A search whose candidates begin with the first sample has paid for it already.
    tokens += sum(
        result.cost.sampled
        for name, result in first.results().items()
        if all(episode.ids != result.episode.ids for episode in tried[name])
    )
    kept = sum(1 for _ in read_episodes(place.kept))
    return Account(place.name, system, len(results), kept, tokens, *training_of(place, options.batch_size))


def imitation_account(options: EvolveOptions) -> Account:
    """The teacher's demonstrations are played without sampling a token."""
    place = imitation_place(options)
    trained = training_of(place, options.batch_size)
    return Account(place.name, "teacher", 0, 0, 0, *trained)


def training_of(place: Place, batch_size: int) -> tuple[int, int, int]:
    """(demonstrations, updates, tokens trained on): as many as the updates have episodes of the mean length.

    Example: two demonstrations in which the policy wrote 10 and 20 tokens, 6 updates of 4: 6 * 4 * 15 = 360.
    """
    tokens = [episode.sampled for episode in read_episodes(place.policy / "demonstrations.jsonl")]
    updates = max(int(row["step"]) for _, row in json_lines(place.policy / "stats.jsonl"))
    return len(tokens), updates, round(updates * batch_size * sum(tokens) / len(tokens))


COLUMNS = ("system", "played", "kept", "search_tokens", "demonstrations", "updates", "trained_tokens")


def cells(one: Account) -> list[str]:
    values = [getattr(one, name) for name in COLUMNS]
    return [f"{value:,}" if isinstance(value, int) else value for value in values]


def markdown_accounts(accounts: Sequence[Account]) -> str:
    lines = [f"| | {' | '.join(COLUMNS)} |", f"|---|{'---|' * len(COLUMNS)}"]
    return "\n".join([*lines, *(f"| {one.name} | {' | '.join(cells(one))} |" for one in accounts)])


def print_accounts(accounts: Sequence[Account]) -> None:
    table = Table("", *COLUMNS)
    for one in accounts:
        table.add_row(one.name, *cells(one))
    Console(width=WIDTH).print(table)
