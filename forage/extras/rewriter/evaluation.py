"""Evaluation: several ways to search for the held-out questions, measured side by side before and after training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from forage.agent.prompts import final_query
from forage.extras.rewriter.actors import Policy, write_texts
from forage.extras.rewriter.data import Row, Search
from forage.extras.rewriter.options import Options
from forage.extras.rewriter.rewards import MEASURES
from forage.files import write_jsonl
from forage.metrics import bootstrapped, clear, span, verdict

RAW = "raw query"
ENOUGH = 0.995  # of a reward: what is printed as 1.000, or nearly


@dataclass(frozen=True)
class Measurement:
    """How well one way of searching does, question by question."""

    way: str
    searched: list[str]
    values: dict[str, list[float]]
    """Of each of MEASURES, by question."""


def measure(way: str, rows: Sequence[Row], searched: Sequence[str], search: Search, k: int) -> Measurement:
    """Search with each row's query and compare the result with its relevant documents."""
    pairs = [(found, row.relevant_doc_ids) for found, row in zip(search(searched), rows, strict=True)]
    values = {name: [measured(*pair, k) for pair in pairs] for name, measured in MEASURES.items()}
    return Measurement(way, list(searched), values)


@dataclass(frozen=True)
class Evaluation:
    """Measures a policy's rewrites on the held-out questions, beside all that was measured before."""

    options: Options
    rows: Sequence[Row]
    search: Search
    tokenizer: Any

    def raw(self) -> list[Measurement]:
        """The questions as they are; says if they leave nothing to learn."""
        raw = measure(RAW, self.rows, [row.query for row in self.rows], self.search, self.options.k)
        for line in hopeless(raw, self.options):
            print(line, flush=True)
        return [raw]

    def rewritten(self, way: str, policy: Policy, earlier: Sequence[Measurement]) -> list[Measurement]:
        """The earlier measurements, and one of the policy's rewrites; all of them are printed."""
        how = self.options.query
        texts = write_texts(policy, self.tokenizer, [row.prompt for row in self.rows])
        pairs = zip(self.rows, texts, strict=True)
        searched = [final_query(row.query, text, how.rewrite, how.query_weight) for row, text in pairs]
        ways = [*earlier, measure(way, self.rows, searched, self.search, self.options.k)]
        print(f"{len(searched)} held-out questions; in brackets: 95 % intervals; *: it excludes zero")
        for row in result_rows(ways):
            own, over = row["recall"], row["over_raw"]
            compared = f", over {RAW} {over['mean']:+.3f} ({span(over)})" + " *" * clear(over)
            figures = f"recall@{self.options.k} {own['mean']:.3f} ({span(own)}), nDCG {row['ndcg']:.3f}"
            print(f"{row['way']:10} {figures}{compared if row['way'] != RAW else ''}")
        return ways

    def after(self, policy: Policy, earlier: Sequence[Measurement]) -> None:
        """Report the trained policy's rewrites beside all earlier measurements."""
        ways = self.rewritten("trained", policy, earlier)
        write_jsonl(self.options.run_dir / "evaluation.jsonl", result_rows(ways))
        name = self.options.reward if self.options.reward in MEASURES else "recall"
        documents = [row.relevant_doc_ids[0] for row in self.rows]
        for before in (earlier[-1], ways[0]):  # where PPO began, and what is to be beaten
            gained = gains(ways[-1], before, name)
            print(verdict(ways[-1].way, before.way, f"{name}@{self.options.k}", gained, documents))


def hopeless(raw: Measurement, options: Options) -> list[str]:
    """Why nothing can be learnt, where the raw queries earn all of a built-in reward already."""
    earned = raw.values.get(options.reward, [0.0])  # a reward of the user's own is not measured
    if np.mean(earned) < ENOUGH:
        return []
    ways_out = [f"--k {max(1, options.k // 2)}"] if options.k > 1 else []
    ways_out += ["--reward ndcg"] if np.mean(raw.values["ndcg"]) < ENOUGH else []
    return [
        f"nothing to learn: the raw queries already earn {np.mean(earned):.3f} of --reward {options.reward} on "
        f"held-out questions, so no rewrite can find more; try {' or '.join([*ways_out, 'harder questions'])}"
    ]


def gains(one: Measurement, other: Measurement, name: str = "recall") -> list[float]:
    """Paired differences. Example: recalls [1, 0] against [0, 0] give 1, 0."""
    return [a - b for a, b in zip(one.values[name], other.values[name], strict=True)]


def result_rows(ways: Sequence[Measurement]) -> list[dict[str, Any]]:
    """The rows of evaluation.jsonl: recall and its difference from the raw query's, with intervals."""
    return [
        {
            "way": way.way, "searched": way.searched, "questions": len(way.searched),
            "recall": bootstrapped(way.values["recall"]), "over_raw": bootstrapped(gains(way, ways[0])),
            "ndcg": float(np.mean(way.values["ndcg"])), "mrr": float(np.mean(way.values["mrr"])),
        }
        for way in ways
    ]  # fmt: skip
