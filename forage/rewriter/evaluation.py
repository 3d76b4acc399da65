"""Evaluation: several ways to search for the held-out questions, measured side by side before and after training."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from forage.agent.prompts import PSEUDO_ANSWER, RewriteMode, final_query, prompt_tokens
from forage.errors import UserError
from forage.files import replacing, write_jsonl
from forage.metrics import Interval, bootstrapped, clear, ndcg, recall, reciprocal_rank, span
from forage.rewriter.actors import Policy, write_texts
from forage.rewriter.data import Row, Search
from forage.rewriter.options import Options

RAW = "raw query"
FEW_UPDATES = 50
WIDTH = 100  # of what is printed


@dataclass(frozen=True)
class Measurement:
    """How well one way of searching does, question by question."""

    way: str
    searched: list[str]
    recall: list[float]
    ndcg: list[float]
    mrr: list[float]


def measure(way: str, rows: Sequence[Row], searched: Sequence[str], search: Search, k: int) -> Measurement:
    """Search with each row's query and compare the result with its relevant documents."""
    pairs = [(found, row.relevant_doc_ids) for found, row in zip(search(searched), rows, strict=True)]
    return Measurement(
        way,
        list(searched),
        recall=[recall(*pair) for pair in pairs],
        ndcg=[ndcg(*pair, k) for pair in pairs],
        mrr=[reciprocal_rank(*pair) for pair in pairs],
    )


@dataclass(frozen=True)
class Evaluation:
    """Measures a policy on the held-out questions; what was measured before training is kept in the run folder."""

    options: Options
    rows: Sequence[Row]
    search: Search
    tokenizer: Any

    def before(self, policy: Policy) -> list[Measurement]:
        """The raw queries, the untrained policy's rewrites, and its pseudo-answers."""

        def ways() -> list[Measurement]:
            raw = self._measure(RAW, [row.query for row in self.rows])
            pseudo = self._measure_texts("pseudo-answer (HyDE)", self._pseudo_answers(policy))
            return [raw, *self._measure_texts("untrained", self._rewrites(policy)), *pseudo]

        return self._shown(self._kept("before", ways))

    def after_warm_start(self, policy: Policy, earlier: Sequence[Measurement]) -> list[Measurement]:
        """The earlier measurements, and the warm-started policy's rewrites."""
        return self._shown([*earlier, *self._kept("warm", lambda: self._measure_texts("warm", self._rewrites(policy)))])

    def _kept(self, name: str, ways: Callable[[], list[Measurement]]) -> list[Measurement]:
        """What a run that was stopped has measured already, or what is measured now."""
        path = self.options.run_dir / f"evaluation_{name}.json"
        if not path.exists():
            save_measurements(path, ways())
        return load_measurements(path)

    def _shown(self, ways: list[Measurement]) -> list[Measurement]:
        print_measurements(ways, self.options.k, self.options.query.query_weight)
        return ways

    def after(self, policy: Policy, earlier: Sequence[Measurement], updates: int) -> None:
        """Report the trained policy's rewrites beside all earlier measurements."""
        ways = self._shown([*earlier, *self._measure_texts("trained", self._rewrites(policy))])
        save_measurements(self.options.run_dir / "evaluation_ways.json", ways)
        write_jsonl(self.options.run_dir / "evaluation.jsonl", result_rows(ways))
        by_name = {way.way: way for way in ways}
        trained = by_name[self._as_trained("trained")]
        for name in (self._as_trained("warm"), self._as_trained("untrained"), RAW):
            if name in by_name:
                gain = difference(trained, by_name[name])
                print(f"{trained.way} over {name}: {gain['mean']:+.3f} ({span(gain)}), paired")
        if updates < FEW_UPDATES:
            before = self._as_trained("warm" if self._as_trained("warm") in by_name else "untrained")
            print(few_updates(updates, self.options.ppo.batch_size, difference(trained, by_name[before])))

    def _rewrites(self, policy: Policy) -> list[str]:
        return write_texts(policy, self.tokenizer, [row.prompt for row in self.rows])

    def _pseudo_answers(self, policy: Policy) -> list[str]:
        prompts = [prompt_tokens(self.tokenizer, PSEUDO_ANSWER, row.query) for row in self.rows]
        return write_texts(policy, self.tokenizer, prompts, self.options.pseudo_answer_tokens)

    def _measure_texts(self, name: str, texts: Sequence[str]) -> list[Measurement]:
        """Search with the texts alone, and with each question in front: as --rewrite replace and append do."""
        weight = self.options.query.query_weight
        alone = [final_query(row.query, text, "replace", 1) for row, text in zip(self.rows, texts, strict=True)]
        appended = [final_query(row.query, text, "append", weight) for row, text in zip(self.rows, texts, strict=True)]
        return [self._measure(way_of(name, "replace"), alone), self._measure(way_of(name, "append"), appended)]

    def _measure(self, way: str, searched: Sequence[str]) -> Measurement:
        return measure(way, self.rows, searched, self.search, self.options.k)

    def _as_trained(self, name: str) -> str:
        """The way of searching that --rewrite trains."""
        return way_of(name, self.options.query.rewrite)


def way_of(name: str, rewrite: RewriteMode) -> str:
    """Example: "trained, append"."""
    return f"{name}, {rewrite}"


def few_updates(updates: int, size: int, gain: Interval) -> str:
    """What a short run says of itself."""
    return (
        f"{updates} update{'s' * (updates != 1)} of {size} episodes: too few to mean anything, so take the change by "
        f"PPO, {gain['mean']:+.3f} ({span(gain)}), for chance; runs that learn take hundreds (--max-steps)"
    )


def difference(one: Measurement, other: Measurement) -> Interval:
    """Paired difference in recall. Example: recalls [1, 0] against [0, 0] give .5."""
    return bootstrapped([a - b for a, b in zip(one.recall, other.recall, strict=True)])


def save_measurements(path: Path, ways: Sequence[Measurement]) -> None:
    with replacing(path) as file:
        json.dump([asdict(way) for way in ways], file, ensure_ascii=False, indent=1)


def load_measurements(path: Path) -> list[Measurement]:
    try:
        return [Measurement(**way) for way in json.loads(path.read_bytes())]
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error}); delete it to measure again") from error


def result_rows(ways: Sequence[Measurement]) -> list[dict[str, object]]:
    """The rows of evaluation.jsonl: recall and its difference from the raw query's, with intervals."""
    raw = next(way for way in ways if way.way == RAW)
    return [
        {
            "way": way.way, "questions": len(way.recall), "recall": bootstrapped(way.recall),
            "over_raw": difference(way, raw), "ndcg": float(np.mean(way.ndcg)), "mrr": float(np.mean(way.mrr)),
        }
        for way in ways
    ]  # fmt: skip


def print_measurements(ways: Sequence[Measurement], k: int, weight: int) -> None:
    """A table of all ways; a star marks a difference from the raw query whose interval excludes zero."""
    raw = next(way for way in ways if way.way == RAW)
    print(f"{len(raw.recall)} held-out questions. replace: searched for what the model wrote alone;")
    print(f"append: for {weight} x the question, then what it wrote. In brackets: 95 % intervals; *: it excludes zero")
    table = Table("", f"recall@{k}", "over raw query", f"nDCG@{k}", f"MRR@{k}", box=SIMPLE_HEAD)
    table.show_edge, table.padding = False, (0, 1, 0, 0)
    for column in table.columns:
        column.no_wrap = True
    for way in ways:
        own, over = bootstrapped(way.recall), difference(way, raw)
        compared = "" if way is raw else f"{over['mean']:+.3f} ({span(over)})" + " *" * clear(over)
        table.add_row(
            way.way, f"{own['mean']:.3f} ({span(own)})", compared, f"{np.mean(way.ndcg):.3f}", f"{np.mean(way.mrr):.3f}"
        )
    Console(width=WIDTH).print(table)
