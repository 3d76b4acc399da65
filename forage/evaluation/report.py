"""Report: measures the episodes, and writes the results as JSON, as a table and as a plot."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from forage.agent.combination import RewardFunction
from forage.agent.rewards import get_format_reward
from forage.evaluation.measures import measure
from forage.evaluation.player import log_of
from forage.evaluation.plots import draw_evaluation
from forage.evaluation.policies import Policy
from forage.evaluation.setting import Setting
from forage.evaluation.summary import SCHEMA, SystemScores, markdown, per_question, print_rows, summary
from forage.files import replacing, write_jsonl
from forage.runs.run_folder import plain


def report(policies: Sequence[Policy], setting: Setting) -> None:
    """Write eval.json, per_question.jsonl, table.md and eval.png, and print the table."""
    options, questions, out = setting.options, setting.questions, setting.options.output_dir
    systems = system_scores(policies, setting)
    rows = summary(systems, questions)
    unit = "document" if setting.by_document else "chunk"
    title = f"{len(questions)} questions of {options.data}/{options.split}.jsonl, retrieval measured in {unit}s"
    whole = {
        "schema": SCHEMA, "questions": len(questions), "split": options.split, "unit": unit,
        "reference": rows[0]["name"], "options": plain(options), "agent": asdict(setting.agent), "systems": rows,
    }  # fmt: skip
    write_jsonl(out / "per_question.jsonl", per_question(systems, questions))
    with replacing(out / "eval.json") as file:
        json.dump(whole, file, indent=1, default=str, allow_nan=False)
    with replacing(out / "table.md") as file:
        file.write(markdown(rows, title))
    draw_evaluation(rows, out / "eval.png")
    print_rows(rows, title)
    print(f"all results: {out / 'eval.json'}, {out / 'table.md'}, {out / 'eval.png'}")


def system_scores(policies: Sequence[Policy], setting: Setting) -> list[SystemScores]:
    """Every metric of every system of every policy."""
    options, functions = setting.options, reward_functions(setting)
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


def reward_functions(setting: Setting) -> Mapping[str, RewardFunction]:
    """The training's rewards of answers; similarity only if there are reference answers."""
    functions: dict[str, RewardFunction] = {"format": get_format_reward}
    if any(question.answer.strip() for question in setting.questions):
        functions = {"answer_similarity": setting.similarity} | functions
    return functions
