"""Curves: what each test-time strategy scores beside best-of-n that samples as many tokens.

    python evaluate.py --data data --policy models/warm --scorer models/scorer --systems single best_of_8 tpo learned_8
    python -m bench.curves runs/eval --scorer models/scorer --figure curves.png

Reads an output folder of evaluate.py. The first 1, 2, ... samples of --candidates give a curve of best-of-n for each
way of choosing, and the oracle's; each other system is a point. A point is compared with the curve of `best_of_8`,
chosen by what looks good, where that curve has sampled as many tokens a question: between two of its sizes it lies on
the line between their scores, question by question, so that the difference is paired. A point that costs more than all
samples together is compared with all of them, and marked: it had more tokens. With --scorer points are also compared
with best of n by that scorer, which says what a strategy adds to a scorer that it is guided by.

Policies with other prompts, such as one that plans with templates, are measured in an evaluation of their own:
--beside adds it, on the questions that both have. Its systems are points, and so is each size of its own best-of-n.

Nothing is sampled here, and there is no bar: it tells what pays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from bench.choosing import BEFORE, ORACLE, SINGLE, Stored, functions, read_stored, scorers, values_of
from bench.choosing import Options as Choices
from forage.agent.episode import Episode
from forage.cli import run_script
from forage.errors import UserError
from forage.evaluation.measures import Floats
from forage.evaluation.outcomes import Cost, OutcomeLog
from forage.evaluation.plots import COLORS, MARKERS
from forage.evaluation.scorers import Scorer, best_index, unanswered
from forage.runs.plots import GREY, STYLE, WIDTH, save_figure
from forage.statistics import bootstrapped, clear

SIZES = (1, 2, 3, 4, 6, 8, 12)  # and all samples there are
CHOSEN_BY = (BEFORE, "agreement")  # besides learned ones and the oracle


@dataclass(frozen=True)
class Options(Choices):
    """The comparison."""

    others: tuple[str, ...] = ()
    """Systems of other policies of the evaluation to set beside it, as policy/system."""
    beside: tuple[Path, ...] = ()
    """More output folders of evaluate.py, whose first policy is set beside it."""
    tokens: Literal["sampled", "all"] = "sampled"
    """What is equal: the tokens that the policy wrote, or those and the ones it read."""
    figure: Path | None = None
    """Picture to write."""


@dataclass(frozen=True, eq=False)
class Curve:
    """Best-of-n for S sizes n."""

    tokens_S: Floats
    """Mean tokens a question, rising."""
    scores_QS: Floats

    def at(self, tokens: float) -> Floats:
        """(Q,): the scores where this many tokens are spent, on straight lines between the sizes.

        Example: sizes of 100 and 200 tokens with scores .2 and .6 give .4 at 150, and .6 at 500.
        """
        for size, (before, after) in enumerate(pairwise(self.tokens_S)):
            if tokens < after:
                share = max(0.0, (tokens - before) / (after - before))
                less_Q, more_Q = self.scores_QS[:, size], self.scores_QS[:, size + 1]
                return np.asarray(less_Q + share * (more_Q - less_Q))  # exact where the two are equal
        return np.asarray(self.scores_QS[:, -1])


@dataclass(frozen=True, eq=False)
class Point:
    """A system."""

    name: str
    tokens: float
    score_Q: Floats


def main(options: Options) -> None:
    aside = [replace(options, evaluation=folder, policy="", scorer=(), others=()) for folder in options.beside]
    stored, *others = on_common_questions([read_stored(options), *map(read_stored, aside)])
    names = [one.policy for one in (stored, *others)]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise UserError(f"two of the evaluations have a policy named {twice}; evaluate one of them under another name")
    curves, own = curves_of(options, stored), f"{stored.policy}/"
    marks = [replace(point, name=point.name.removeprefix(own)) for point in points_of(options, stored)]
    sizes, lines = list[Point](), dict(curves)
    for other_options, other in zip(aside, others, strict=True):
        curve = curve_of(options, other, scorers(other_options, other.embedder)[BEFORE])
        lines[other.policy] = curve
        marks += points_of(other_options, other)
        sizes += points_on(curve, other)
    print(f"{options.score} of {len(stored.questions)} questions; tokens {options.tokens}:\n")
    said = curve_table(curves)
    for name in (BEFORE, *map(str, options.scorer)):
        said += ["", f"Beside best of n by {name}:", "", *point_table([*marks, *sizes], curves[name])]
    print("\n".join(said), flush=True)
    if options.figure:
        with mpl.rc_context(STYLE):
            save_figure(draw(lines, marks, options), options.figure)


def on_common_questions(several: Sequence[Stored]) -> list[Stored]:
    """The evaluations with only the questions that all have, in the order of the first."""
    common = set.intersection(*({question.id for question in stored.questions} for stored in several))
    if not common:
        raise UserError("the evaluations have no question in common; give them the same --eval-questions and --seed")
    order = [question.id for question in several[0].questions if question.id in common]
    return [chosen(stored, order) for stored in several]


def chosen(stored: Stored, order: Sequence[str]) -> Stored:
    places = {question.id: place for place, question in enumerate(stored.questions)}
    kept = [places[name] for name in order]
    return replace(
        stored, questions=[stored.questions[place] for place in kept],
        candidates=[stored.candidates[place] for place in kept], values_QN=stored.values_QN[kept],
    )  # fmt: skip


def sizes_up_to(sampled: int) -> list[int]:
    """Example: 5 gives 1, 2, 3, 4 and 5."""
    return sorted({size for size in SIZES if size < sampled} | {sampled})


def points_on(curve: Curve, stored: Stored) -> list[Point]:
    """A point for each size of another policy's best-of-n."""
    sizes = sizes_up_to(stored.values_QN.shape[1])
    return [
        Point(f"{stored.policy}/best of {size}", tokens, scores_Q)
        for size, tokens, scores_Q in zip(sizes, curve.tokens_S.tolist(), curve.scores_QS.T, strict=True)
    ]


def curves_of(options: Options, stored: Stored) -> dict[str, Curve]:
    """A curve for each way of choosing among the first n samples."""
    known = scorers(options, stored.embedder)
    curves = {name: curve_of(options, stored, known[name]) for name in (*CHOSEN_BY, *map(str, options.scorer))}
    best_QN = np.maximum.accumulate(stored.values_QN, axis=1)
    places_S = [size - 1 for size in sizes_up_to(best_QN.shape[1])]
    return {**curves, ORACLE: Curve(tokens_of_sizes(options, stored), best_QN[:, places_S])}


def curve_of(options: Options, stored: Stored, scorer: Scorer) -> Curve:
    """Best-of-n by one way of choosing."""
    sizes = sizes_up_to(stored.values_QN.shape[1])
    places_QS = np.array(
        [
            [
                best_index(scorer(stored.protocol, unanswered(question), episodes[:size]), episodes[:size])
                for size in sizes
            ]
            for question, episodes in zip(stored.questions, stored.candidates, strict=True)
        ]
    )
    return Curve(tokens_of_sizes(options, stored), np.take_along_axis(stored.values_QN, places_QS, axis=1))


def tokens_of_sizes(options: Options, stored: Stored) -> Floats:
    """(S,): mean tokens a question of the first n samples."""
    tokens_QN = np.array([[tokens_of(options, episode) for episode in each] for each in stored.candidates])
    places_S = [size - 1 for size in sizes_up_to(tokens_QN.shape[1])]
    return np.asarray(tokens_QN.cumsum(axis=1).mean(axis=0)[places_S])


def points_of(options: Options, stored: Stored) -> list[Point]:
    """The evaluation's other systems of the policy, and --others, in alphabetical order, as policy/system."""
    logs = sorted((options.evaluation / "outcomes" / stored.policy).glob("*.jsonl"))
    names = [f"{stored.policy}/{path.stem}" for path in logs if path.stem not in (SINGLE, options.candidates)]
    points = []
    for name in [*names, *options.others]:
        results = OutcomeLog(options.evaluation, name).results()
        found = [results.get(question.id) for question in stored.questions]
        if None in found:
            raise UserError(
                f"{options.evaluation} has {name} of {len(found) - found.count(None)} of the {len(found)} questions; "
                "re-run the evaluation with it"
            )
        whole = [result for result in found if result]
        values_Q1 = values_of(
            stored.questions, [[result.episode] for result in whole], functions(stored.embedder)[options.score]
        )
        tokens = float(np.mean([cost_of(options, result.cost) for result in whole]))
        points.append(Point(name, tokens, values_Q1[:, 0]))
    return points


def tokens_of(options: Options, episode: Episode) -> int:
    return len(episode.ids) if options.tokens == "all" else episode.sampled


def cost_of(options: Options, cost: Cost) -> int:
    return cost.sampled + (cost.read if options.tokens == "all" else 0)


def curve_table(curves: Mapping[str, Curve]) -> list[str]:
    """Markdown: a line for each way of choosing, a column for each size."""
    tokens_S = curves[BEFORE].tokens_S
    lines = ["| tokens a question | " + " | ".join(f"{tokens:,.0f}" for tokens in tokens_S) + " |"]
    lines.append("|---" * (len(tokens_S) + 1) + "|")
    for name, curve in curves.items():
        lines.append(f"| {name} | " + " | ".join(f"{score:.3f}" for score in curve.scores_QS.mean(axis=0)) + " |")
    return lines


def point_table(points: Sequence[Point], curve: Curve) -> list[str]:
    """Markdown: a line for each system, the best difference first."""
    lines = ["| system | tokens a question | score | best-of-n for as many | difference |", "|---|---|---|---|---|"]
    rows = []
    for point in points:
        beside_Q = curve.at(point.tokens)
        over = bootstrapped((point.score_Q - beside_Q).tolist())
        said = f"{over['mean']:+.3f}"
        more = " (n at its most)" if point.tokens > curve.tokens_S[-1] else ""
        more = " (one sample, which has more)" if point.tokens < curve.tokens_S[0] else more
        rows.append(
            (
                -over["mean"],
                f"| {point.name} | {point.tokens:,.0f} | {point.score_Q.mean():.3f} | {beside_Q.mean():.3f}{more} | "
                f"{f'**{said}**' if clear(over) else said} ({over['low']:+.3f} to {over['high']:+.3f}) |",
            )
        )
    return lines + [line for _, line in sorted(rows)]


def draw(curves: Mapping[str, Curve], points: Sequence[Point], options: Options) -> Figure:
    figure = Figure(figsize=(WIDTH, 5.5), layout="constrained")
    axes = figure.subplots()
    for number, (name, curve) in enumerate(curves.items()):
        color = GREY if name == ORACLE else COLORS[number]
        axes.plot(curve.tokens_S, curve.scores_QS.mean(axis=0), color=color, marker=".", label=f"best of n: {name}")
    for number, point in enumerate(points, len(curves)):
        found = bootstrapped(point.score_Q.tolist())
        axes.errorbar(
            point.tokens, found["mean"], [[found["mean"] - found["low"]], [found["high"] - found["mean"]]],
            fmt=MARKERS[number // len(COLORS) % len(MARKERS)], color=COLORS[number % len(COLORS)],
            markersize=7, capsize=2, elinewidth=0.8, label=point.name,
        )  # fmt: skip
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(f"tokens a question, {'sampled' if options.tokens == 'sampled' else 'sampled and read'}")
    axes.set_ylabel(options.score)
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), fontsize=9)
    return figure


if __name__ == "__main__":
    run_script(main, __doc__)
