"""Measures: each metric is an array over the questions of an evaluation, so systems are compared question by question.

Where a question has no value of a metric (there is no reference to compare the answer with), it is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import ir_measures
import numpy as np
from ir_measures import RR, R, nDCG
from numpy.typing import NDArray

from forage.agent.rewards import RewardFunction, reward_matrix
from forage.data.records import Question, documents_of
from forage.evaluation.outcomes import Outcome
from forage.metrics import Interval, bootstrapped, rouge_l, token_f1

Floats = NDArray[np.float64]
Grades = Mapping[str, int]
"""The chunks or documents that answer a question, by id, with their grades; the lowest grade is 1."""

# A system's costs, by their names in Outcome. Every other metric is a score from 0 to 1; higher is better.
COSTS = ("searches", "turns", "sampled_tokens", "read_tokens", "seconds")

# What each measure is, in the words below the tables; a reward of the user's has its docstring's first line there.
MEANINGS = {
    "mrr": "1 / rank of the first passage that answers, among all that were found",
    "recall": "share of the passages that answer that is among the first k",
    "ndcg": "how far up among the first k the passages that answer are",
    "token_f1": "words shared with the reference answer",
    "rouge_l": "words shared with the reference answer in the same order",
    "answered": "share of questions with an answer",
}


def meanings(names: Iterable[str], functions: Mapping[str, RewardFunction]) -> str:
    """Example: answered: share of questions with an answer; brevity: 1 for at most 40 words."""
    docs = {
        name: (getattr(f, "func", f).__doc__ or "a reward of get_reward_functions") for name, f in functions.items()
    }
    told = {name: docs[name].strip().splitlines()[0].rstrip(".") for name in docs} | MEANINGS
    families = dict.fromkeys(name if name in told else name.partition("@")[0] for name in names)
    return "; ".join(f"{name}: {told[name]}" for name in families)


def grades_of(questions: Iterable[Question]) -> list[Grades]:
    """The chunks that answer each question, all with grade 1."""
    return [dict.fromkeys(question.relevant_chunk_ids, 1) for question in questions]


def retrieval_measures(
    found: Sequence[Sequence[str]], grades: Sequence[Grades], cutoffs: Sequence[int]
) -> dict[str, Floats]:
    """MRR, recall@k and nDCG@k (by ir_measures) of each question's hits, best first; 0 without hits.

    `mrr` counts all hits; mrr@k compares systems on the same number of hits, however often they searched.
    Example: hits (a, b, c) with grades {b: 1} have mrr 1/2, mrr@1 0, recall@1 0, recall@3 1, ndcg@3 1 / log2 3 = .631.
    """
    cut = {"mrr": RR, "recall": R, "ndcg": nDCG}
    measures = {RR: "mrr"} | {metric @ k: f"{name}@{k}" for name, metric in cut.items() for k in cutoffs}
    # Scores are falling whole numbers, all different: trec_eval would order equal scores by id.
    run = {str(n): {unit: -float(place) for place, unit in enumerate(units)} for n, units in enumerate(found) if units}
    # A grade under 1 means judged and not relevant, which counts the same as not judged.
    judged = {str(n): {unit: g for unit, g in graded.items() if g > 0} for n, graded in enumerate(grades)}
    judged = {n: graded for n, graded in judged.items() if graded}
    arrays = {name: np.zeros(len(found)) for name in measures.values()}
    for metric in ir_measures.iter_calc(list(measures), judged, run):
        arrays[measures[metric.measure]][int(metric.query_id)] = metric.value
    return arrays


def answer_measures(outcomes: Sequence[Outcome], questions: Sequence[Question]) -> dict[str, Floats]:
    """Token F1 and ROUGE-L where there is a reference answer, and whether there is an answer."""
    pairs = [(outcome.episode.answer, question.answer) for outcome, question in zip(outcomes, questions, strict=True)]
    arrays = {
        name: np.array([score(*pair) if pair[1].strip() else math.nan for pair in pairs])
        for name, score in (("token_f1", token_f1), ("rouge_l", rouge_l))
    }
    return arrays | {"answered": np.array([float(bool(answer)) for answer, _ in pairs])}


def measure(
    outcomes: Sequence[Outcome], questions: Sequence[Question], grades: Sequence[Grades], cutoffs: Sequence[int],
    functions: Mapping[str, RewardFunction], *, by_document: bool = False,
) -> dict[str, Floats]:  # fmt: skip
    """Every metric of one system, in the order of the table: retrieval, answers, cost.

    Retrieval is measured on the chosen episode's chunks, each once, in the order the policy saw them; with
    `by_document` on their documents, and then `grades` must be those of documents. A reward with the name of another
    measure is left out.
    """
    hits = [outcome.episode.hits for outcome in outcomes]
    found = [documents_of(ids) for ids in hits] if by_document else hits
    retrieval, answers = retrieval_measures(found, grades, cutoffs), answer_measures(outcomes, questions)
    costs = {name: np.array([getattr(outcome, name) for outcome in outcomes], np.float64) for name in COSTS}
    own = {name: function for name, function in functions.items() if name not in {*retrieval, *answers, *costs}}
    rewards_QM = reward_matrix(own, [outcome.episode for outcome in outcomes], questions) if own else np.zeros((0, 0))
    return {**retrieval, **dict(zip(own, rewards_QM.T, strict=True)), **answers, **costs}


def interval(values_Q: Floats) -> Interval | None:
    """Mean and 95 % bootstrap interval over the questions that have a value; None if none has.

    For a paired comparison of two systems, give it the difference of their arrays.
    """
    known = values_Q[~np.isnan(values_Q)]
    return bootstrapped(known.tolist()) if len(known) else None
