"""Report: measures the episodes, and writes the results as JSON, as a table and as a plot."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np

from forage.evaluation.measures import Floats, measure
from forage.evaluation.player import log_of
from forage.evaluation.plots import draw_evaluation
from forage.evaluation.policies import Policy
from forage.evaluation.setting import Setting
from forage.evaluation.summary import SCHEMA, SystemScores, markdown, per_question, print_rows, summary
from forage.files import replacing, write_jsonl
from forage.manifest import plain, source_digest


def report(policies: Sequence[Policy], setting: Setting) -> None:
    """Write eval.json, per_question.jsonl, table.md and eval.png, and print the table."""
    options, questions, out = setting.options, setting.questions, setting.options.output_dir
    systems = system_scores(policies, setting)
    rows = summary(systems, questions)
    unit = "document" if setting.by_document else "chunk"
    title = f"{len(questions)} questions of {options.data}/{options.split}.jsonl, retrieval measured in {unit}s"
    whole = {
        "schema": SCHEMA, "questions": len(questions), "split": options.split, "unit": unit,
        "reference": rows[0]["name"], "options": plain(options), "agent": asdict(setting.agent),
        "embedder": setting.embedder_name, "systems": rows,
        "rewards": {name: source_digest(reward) for name, reward in setting.rewards.items()},
    }  # fmt: skip
    write_jsonl(out / "per_question.jsonl", per_question(systems, questions))
    with replacing(out / "eval.json") as file:
        json.dump(whole, file, indent=1, default=str, allow_nan=False)
    with replacing(out / "table.md") as file:
        file.write(markdown(rows, title))
    draw_evaluation(rows, out / "eval.png")
    say_missing(systems[0].arrays)
    print_rows(rows, title)
    print(f"all results: {out / 'eval.json'}, {out / 'table.md'}, {out / 'eval.png'}")


def system_scores(policies: Sequence[Policy], setting: Setting) -> list[SystemScores]:
    """Every metric of every system of every policy."""
    options, functions = setting.options, setting.rewards
    systems = []
    for policy in policies:
        for system in options.systems_of(policy.name):
            by_question = log_of(policy, system, options).results()
            results = [by_question[question.id] for question in setting.questions]
            arrays = measure(
                results, setting.questions, setting.grades, options.cutoffs, functions, by_document=setting.by_document
            )
            systems.append(SystemScores(policy.name, system, policy.version, arrays))
    return systems


def say_missing(arrays: Mapping[str, Floats]) -> None:
    """Print which scores some of the questions don't have."""
    counts = {name: int(np.isnan(values).sum()) for name, values in arrays.items()}
    for count in sorted({count for count in counts.values() if count}):
        names = ", ".join(name for name, missing in counts.items() if missing == count)
        print(f"{count} of {len(next(iter(arrays.values())))} questions have no {names}: left out of its mean")
