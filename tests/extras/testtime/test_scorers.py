"""Scorers by hand; and that none can see what answers the question."""

import asyncio
import math
from dataclasses import replace

import pytest

from forage.agent.agent import Agent, BatchedSearch
from forage.extras.testtime.scorers import (
    Oracle,
    agreement,
    best_index,
    confidence,
    covered,
    looks_good,
    relevance,
    scores_of,
    shown,
    support,
)
from tests.factories import EPISODE as EXAMPLE
from tests.factories import answering
from tests.scripted_engine import QUESTION, library, run, turns


def test_confidence_is_the_geometric_mean_of_the_answer_turn_alone():
    # The answer turn's log-probabilities are -.7 and 0; the first turn's, -.2 and -.1, do not count.
    assert confidence(None, QUESTION, [EXAMPLE]) == [pytest.approx(math.exp(-0.35))]
    forced = replace(EXAMPLE, mask=(0, 0, 0, 1, 1, 0, 0, 0, 1, 0))
    assert confidence(None, QUESTION, [forced, replace(EXAMPLE, answer="")]) == [pytest.approx(math.exp(-0.7)), 0.0]


def test_agreement_by_hand():
    # "b c" shares half its words with "b d": F1 1/2; with "x y" none.
    assert agreement(None, QUESTION, answering("b c", "b d", "x y")) == [0.25, 0.25, 0.0]
    assert agreement(None, QUESTION, answering("b c", "b c", "x y")) == [0.5, 0.5, 0.0]
    assert agreement(None, QUESTION, answering("", "", "x")) == [0.0, 0.0, 0.0]  # no answer is like nothing
    assert agreement(None, QUESTION, answering("x")) == [1.0]


def test_support_is_the_share_of_words_in_what_was_shown(protocol):
    passages = {"gout": {"c#0": "It hurts at night."}}
    outcome, _ = run(plain, protocol, turns({"0": ("gout", "Gout hurts badly")}), passages)
    assert shown(protocol, outcome) == ["[1] T: It hurts at night."]
    assert support(protocol, QUESTION, [outcome]) == [pytest.approx(1 / 3)]
    assert relevance(protocol, QUESTION, [outcome]) == [0.0]  # neither "mends" nor "gout" was shown
    assert covered("hurting", ["it hurts"]) == 1.0
    assert covered("the", ["the"]) == 0.0  # no words
    unsearched, _ = run(plain, protocol, turns({"0": (None, "user tool response")}))
    assert (shown(protocol, unsearched), support(protocol, QUESTION, [unsearched])) == ([], [0.0])
    unplayed = replace(unsearched, turns=(), answer="", stop="engine")  # the engine gave up on its first turn
    assert (shown(protocol, unplayed), looks_good(protocol, QUESTION, [unplayed])) == ([], [0.0])


async def plain(agent, question, seed):
    return await agent.play(question, 0, seed)


def score(scorer, protocol, episodes):
    agent = Agent(None, protocol, BatchedSearch(library({}), in_line=True))
    return asyncio.run(scores_of(agent, scorer, QUESTION, episodes))


def test_no_scorer_sees_what_answers_the_question_but_the_oracle(protocol):
    seen = []

    def peeking(protocol, question, episodes):
        seen.append(question)
        return [0.0] * len(episodes)

    score(peeking, protocol, [EXAMPLE])
    assert seen[0].question == QUESTION.question
    assert "GOLD" not in str(seen[0])
    assert (seen[0].relevant_chunk_ids, seen[0].relevant_doc_ids, seen[0].focus, seen[0].question_type) == (
        (),
        (),
        "",
        "",
    )
    gold = Oracle(lambda episodes, questions: [float("GOLD" in question.answer) for question in questions])
    assert score(gold, protocol, [EXAMPLE]) == [1.0]


def test_the_first_of_equal_ones_is_best_and_what_the_engine_gave_up_on_last():
    failed = replace(EXAMPLE, stop="engine")
    assert best_index([0.2, 0.9, 0.9], [EXAMPLE] * 3) == 1
    assert best_index([0.2, 0.9, 0.9], [EXAMPLE, failed, EXAMPLE]) == 2
    assert best_index([0.2, 0.9], [EXAMPLE, failed]) == 0
