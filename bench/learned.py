"""What training changed: two policies that evaluate.py played, beside the raw question, and some episodes of both.

    python bench/learned.py runs/eval --before warm --after trained --episodes 5 > learned.md

Prints Markdown. The searches are compared at equal depth: each episode's queries are searched again for --k chunks, in
the order of the episode, cut to --k; the raw question is searched for as many. Which episodes are shown is drawn by a
seed, not chosen.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

from forage.agent.agent import searched_for
from forage.agent.episode import Episode
from forage.cli import run_script
from forage.data.records import Question, read_answerable
from forage.errors import UserError
from forage.evaluation.measures import Floats, grades_of, retrieval_measures
from forage.evaluation.outcomes import OutcomeLog
from forage.statistics import bootstrapped, span
from forage.store.document_store import DocumentStore
from forage.store.options import Mode

SCORES = ("mrr", "answer_similarity", "format")


@dataclass(frozen=True)
class Options:
    """What is compared."""

    evaluation: tyro.conf.Positional[Path]
    """The output folder of evaluate.py."""
    before: str = "warm"
    after: str = "trained"
    """Policies by the names they have there; their system `single` is read."""
    k: int = 10
    """How deep each query is searched again."""
    episodes: int = 5
    """How many are shown, of each policy."""
    seed: int = 1
    """Of the choice of those shown."""


def main(options: Options) -> None:
    if options.before == options.after:
        raise UserError(f"--before and --after are both {options.after}; name two policies of the evaluation")
    config = json.loads((options.evaluation / "config.json").read_text())
    data, mode = Path(config["data"]), config["mode"]
    weight = config["question_weight"]
    logs = {name: OutcomeLog(options.evaluation, f"{name}/single") for name in (options.before, options.after)}
    played = {name: {q: r.episode for q, r in log.results().items()} for name, log in logs.items()}
    both = played[options.before].keys() & played[options.after].keys()
    questions = [q for q in read_answerable(data / f"{config['split']}.jsonl") if q.id in both]
    if not questions:
        raise UserError(f"{options.evaluation} has no question that both {' and '.join(played)} played as `single`")
    store = DocumentStore.open(data / "store")
    rows = {name: [of[q.id] for q in questions] for name, of in played.items()}

    raw = depth_mrr(store, [[q.question] for q in questions], questions, options.k, mode)
    print(f"MRR@{options.k} of {len(questions)} questions of {data}, {mode} search:\n")
    print("| queries | MRR | over the raw question | ratio |\n|---|---|---|---|")
    print(f"| the question itself | {told(raw)} | | |")
    for name, episodes in rows.items():
        searches = [
            [searched_for(q, s.query, weight) for s in e.searches] for q, e in zip(questions, episodes, strict=True)
        ]
        own = depth_mrr(store, searches, questions, options.k, mode)
        print(f"| of {name} | {told(own)} | {told(own - raw)} | {own.mean() / raw.mean():.3f} |")

    scores = scores_of(options.evaluation, list(rows), questions)
    print("\n| | " + " | ".join([*SCORES, "total"]) + " |\n|---|" + "---|" * 4)
    for name, array_QS in scores.items():
        print(f"| {name} | {' | '.join(told(values_Q) for values_Q in array_QS.T)} |")
    before_QS, after_QS = scores.values()
    print(f"| difference | {' | '.join(told(values_Q) for values_Q in (after_QS - before_QS).T)} |")
    ratio = after_QS.mean(axis=0) / before_QS.mean(axis=0)
    print(f"| ratio | {' | '.join(f'{figure:.3f}' for figure in ratio)} |")

    shown = random.Random(options.seed).sample(range(len(questions)), min(options.episodes, len(questions)))
    for place in shown:
        print(f"\n**{questions[place].question}**\n")
        for name, array_QS in scores.items():
            print(shape_of(rows[name][place], name, array_QS[place]))


def scores_of(evaluation: Path, names: Sequence[str], questions: Sequence[Question]) -> dict[str, Floats]:
    """Each policy's scores and their mean, the total reward: (questions, scores + 1)."""
    lines = map(json.loads, (evaluation / "per_question.jsonl").read_text().splitlines())
    systems = {line["id"]: line["systems"] for line in lines}
    arrays = {}
    for name in names:
        found = [[systems[question.id][f"{name}/single"][score] for score in SCORES] for question in questions]
        array_QR = np.array(found, np.float64)
        arrays[name] = np.column_stack([array_QR, array_QR.mean(axis=1)])
    return arrays


def shape_of(episode: Episode, name: str, scores_S: Floats) -> str:
    """An item of a list. Example: "- warm, .5 / .62 / 1: searched "gout symptoms"; answered "It hurts."."""
    searched = "; then ".join(f"`{search.query}`" for search in episode.searches) or "nothing"
    figures = " / ".join(f"{figure:.2f}" for figure in scores_S[:3])
    answer = " ".join(episode.answer.split()) or f"(none: {episode.stop})"
    return f"- {name} ({figures}): searched {searched}; answered \u201c{answer}\u201d"


def depth_mrr(
    store: DocumentStore, queries: Sequence[Sequence[str]], questions: Sequence[Question], k: int, mode: Mode
) -> Floats:
    """Of each question, over its queries' chunks in turn, each once, the first k of them."""
    flat = sorted({query for several in queries for query in several})
    found = {q: [hit.chunk_id for hit in hits] for q, hits in zip(flat, store.search(flat, k, mode), strict=True)}
    ranked = [list(dict.fromkeys(hit for query in several for hit in found[query])) for several in queries]
    return retrieval_measures(ranked, grades_of(questions), (k,))[f"mrr@{k}"]


def told(values_Q: Floats) -> str:
    interval = bootstrapped(values_Q.tolist())
    return f"{interval['mean']:.3f} ({span(interval)})"


if __name__ == "__main__":
    run_script(main, description=__doc__)
