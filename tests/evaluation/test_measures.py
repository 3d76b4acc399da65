"""Measures by hand, and equal to ir_measures called directly on random runs."""

import math
from dataclasses import replace

import numpy as np
import pytest

from forage.data.records import Question
from forage.evaluation.measures import grades_of, interval, measure, retrieval_measures
from forage.evaluation.outcomes import Outcome
from tests.factories import EPISODE as EXAMPLE

QUESTION = Question("q", "What is gout?", "Rest and ice.", relevant_chunk_ids=("c", "z"))


def result(episode, *others, extra_sampled=0, extra_read=0):
    return Outcome(episode, (*others, episode), extra_sampled, extra_read, seconds=0.5)


def test_retrieval_by_hand():
    found = [("a", "b", "c"), ("b",), (), ("x", "b")]
    grades = [{"b": 1}, {"b": 3, "c": 1}, {"b": 1}, {}]
    got = {name: values.tolist() for name, values in retrieval_measures(found, grades, (1, 3)).items()}
    assert got["mrr"] == got["mrr@3"] == [1 / 2, 1, 0, 0]
    assert got["mrr@1"] == [0, 1, 0, 0]
    assert got["recall@1"] == [0, 1 / 2, 0, 0]
    assert got["recall@3"] == [1, 1 / 2, 0, 0]
    # The second: the best order has grade 3 first and grade 1 second; found is the first alone.
    assert got["ndcg@3"] == pytest.approx([1 / math.log2(3), 3 / (3 + 1 / math.log2(3)), 0, 0])
    assert got["ndcg@1"] == [0, 1, 0, 0]


def test_everything_of_two_questions_by_hand():
    # The example searched twice and saw a, b, c; its policy sampled 4 tokens of 10 and was given 6.
    tried = replace(EXAMPLE, answer="Rest.")
    results = [
        result(replace(EXAMPLE, answer="rest and heat"), tried, extra_sampled=5, extra_read=7),
        result(replace(EXAMPLE, question_id="r", answer="", stop="turns")),
    ]
    questions = [QUESTION, replace(QUESTION, id="r", answer="", relevant_chunk_ids=("a",))]
    half = {"format": lambda episodes, questions: [0.5] * len(episodes),
            "answer_similarity": lambda _, questions: [0.25 if q.answer else None for q in questions]}  # fmt: skip
    got = {n: v.tolist() for n, v in measure(results, questions, grades_of(questions), (3,), half).items()}
    sampled, read = EXAMPLE.sampled, len(EXAMPLE.ids) - EXAMPLE.sampled
    searches, turns = len(EXAMPLE.searches), len(EXAMPLE.turns)
    assert (got["mrr"], got["recall@3"]) == ([1 / 3, 1], [1 / 2, 1])
    assert got["token_f1"][0] == got["rouge_l"][0] == pytest.approx(2 / 3)
    assert (got["format"], got["answered"]) == ([0.5, 0.5], [1, 0])
    assert got["answer_similarity"][0] == 0.25
    assert all(math.isnan(got[name][1]) for name in ("answer_similarity", "token_f1", "rouge_l"))
    assert got["sampled_tokens"] == [2 * sampled + 5, sampled]
    assert got["read_tokens"] == [2 * read + 7, read]
    assert (got["searches"], got["turns"]) == ([2 * searches, searches], [2 * turns, turns])
    assert got["seconds"] == [0.5, 0.5]


def test_intervals_leave_out_what_has_no_value():
    assert interval(np.array([1.0, math.nan, 1.0])) == {"mean": 1, "low": 1, "high": 1}
    assert interval(np.array([math.nan])) is None
