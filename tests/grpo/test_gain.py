"""Rewards that the trainer measures: values by hand, likelihoods against nano's, and that a run learns from them."""

import json
import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from forage.agent.episode import Episode, Search, Turn, read_episodes
from forage.agent.rewards import MEASURED, get_evidence, get_information_gain, get_mrr, rewards_of
from forage.grpo.gain import (
    MEASURES,
    Gains,
    answer_after,
    evidence,
    information_gain,
    likelihoods,
    results_of,
    shortened,
)
from forage.grpo.learner import Learner
from forage.policy.manifest import read_policy_manifest
from forage.policy.packing import Row, pack, pack_trees
from forage.policy.policy import load_policy
from nano_grpo import token_logprobs
from tests.refusals import refused
from tests.tiny_training import adapter_bytes, stats_of, tiny_options, train

OPENING = (9,)


def episode(name, ids, *turns, stop="answer"):
    """Sampled are the turns' tokens but for their first, which is given."""
    spans = [Turn(start, end) for start, end in turns]
    mask = tuple(int(any(t.start < place < t.end for t in spans)) for place in range(len(ids)))
    searches = (Search(0, "gout", ("a", "b")),)
    return Episode(name, name[0], ids, mask, (0.0,) * len(ids), tuple(spans), searches, "", stop, "v000000")


def gains(**answers):
    return Gains({}, answers, OPENING)


def known(**values):
    """How likely rows are, told by their tokens as a word: `_123` stands for (1, 2, 3)."""
    table = {tuple(map(int, name[1:])): value for name, value in values.items()}

    def likely(rows):
        likely.asked = [(row.ids, row.mask) for row in rows]
        return [table[row.ids] for row in rows]

    return likely


def test_the_gain_is_of_the_reference_after_the_last_result_over_the_prompt():
    """A prompt 1, a search 2 3, its result 4, an answer 5 6. The reference 7 8 stands in the answer's place."""
    likely = known(_1978=0.2, _1234978=0.6)
    answered = episode("a/0", (1, 2, 3, 4, 5, 6), (1, 3), (4, 6))
    ended = episode("a/1", (1, 2, 3, 4), (1, 3), stop="search")
    nothing = episode("a/2", (1,), stop="tokens")
    unread = episode("a/3", (1, 2, 3), (1, 3), stop="turns")  # its search was not run
    found = information_gain(gains(a=(7, 8)), [answered, ended, nothing, unread], likely)
    assert found == pytest.approx([0.7, 0.7, 0.5, 0.5])
    assert likely.asked == [((1, 9, 7, 8), (0, 0, 1, 1)), ((1, 2, 3, 4, 9, 7, 8), (0, 0, 0, 0, 0, 1, 1))]  # once each
    assert information_gain(gains(a=()), [answered], likely) == [None]


def test_what_is_opened_for_is_what_is_measured():
    assert MEASURES.keys() == MEASURED.keys()


def test_evidence_is_the_answers_own_over_that_with_another_questions_results():
    first = episode("a/0", (1, 2, 3, 4, 5, 6), (1, 3), (4, 6))
    longer = episode("b/0", (1, 2, 3, 7, 2, 3, 8, 5, 6), (1, 3), (4, 6), (7, 9))
    again = episode("c/0", (1, 2, 3, 4, 5, 6), (1, 3), (4, 6))
    silent = episode("c/1", (1, 2, 3, 4), (1, 3), stop="turns")
    likely = known(_123456=0.9, _123756=0.3, _123723856=0.5, _123423456=0.8)
    # a reads b's first result, b reads c's only one twice, c reads a's, which is its own.
    assert evidence(gains(), [first, longer, again, silent], likely) == pytest.approx([0.6, 0.0, 0.0, 0.0])
    assert likely.asked[0] == ((1, 2, 3, 4, 5, 6), (0, 0, 0, 0, 0, 1))  # the answer alone is marked
    assert likely.asked[4] == ((1, 2, 3, 4, 2, 3, 4, 5, 6), (0,) * 8 + (1,))
    assert evidence(gains(), [first, replace(first, id="a/1")], likely) == [None, None]
    assert evidence(gains(), [first, replace(again, searches=())], likely) == [None, None]  # it found nothing


def test_other_results_are_no_longer_than_the_own():
    """What both end with is the beginning of the next turn, which stays."""
    assert shortened((1, 2, 3, 4, 9), (7, 8, 9)) == (1, 2, 9)
    assert shortened((1, 9), (7, 8, 9)) == (1, 9)
    long = episode("b/0", (1, 2, 3, 7, 7, 7, 7, 8, 5, 6), (1, 3), (8, 10))
    row = answer_after(results_of(long), episode("a/0", (1, 2, 3, 4, 4, 8, 5, 6), (1, 3), (6, 8)))
    assert row == ((1, 2, 3, 7, 7, 8, 5, 6), (0, 0, 0, 0, 0, 0, 0, 1))


def test_the_names_are_kept_for_what_is_measured():
    for name, function in (("evidence", get_mrr), ("gain", get_information_gain), ("evidence", get_information_gain)):
        with refused(r"the trainer measures information_gain and evidence by these names alone"):
            rewards_of(lambda embedder, name=name, function=function: {name: partial(function)}, None, None)
    assert rewards_of(lambda embedder: {"evidence": get_evidence}, None, None)


def test_evidence_wants_answers(tiny, tmp_path):
    with refused(r"evidence is of an answer, and this policy only searches"):
        train(tiny_options(tiny, tmp_path / "run", weights=("evidence=1", "even=1"), max_turns=1))


@pytest.mark.parametrize("packing", [pack, pack_trees])
def test_likelihoods_are_geometric_means_by_the_policy_without_dropout(tiny, packing):
    policy = load_policy(read_policy_manifest(tiny / "policy")).train()
    rows = [Row((5, 6, 7, 8), (0, 0, 1, 1)), Row((5, 6, 9), (0, 0, 1)), Row((5, 6, 7, 8, 4), (0, 1, 0, 1, 0))]
    found = likelihoods(rows, Learner(policy), 0.7, lambda rows: packing(rows, 6))
    for row, value in zip(rows, found, strict=True):
        with torch.no_grad():
            logprobs_T = token_logprobs(policy.eval(), row.ids, 0.7)[torch.tensor(row.mask[1:]) == 1]
        assert value == pytest.approx(math.exp(logprobs_T.mean().item()), rel=1e-5)


WEIGHED = {"weights": ("information_gain=3", "evidence=1", "even=1"), "search_first": True, "max_turns": 3}


def test_a_run_learns_from_what_only_its_trainer_measures_and_resumes_exactly(tiny, tmp_path):
    train(tiny_options(tiny, tmp_path / "whole", **WEIGHED))
    whole, evaluations = stats_of(tmp_path / "whole"), json.loads((tmp_path / "whole/evaluations.json").read_text())
    assert len(set(whole[0]["rewards"]["information_gain"])) == 3  # one a question, whose search is written for it
    for stats in whole:
        for gain, proof, even, overall in zip(
            *(stats["rewards"][name] for name in ("information_gain", "evidence", "even", "overall")), strict=True
        ):
            assert overall == pytest.approx((3 * gain + proof + even) / 5)
    assert 0 < evaluations["2"]["information_gain"]["mean"] < 1
    played = read_episodes(tmp_path / "whole" / "episodes" / "000000" / "trainer.jsonl")
    assert [each.reward for each in played] == whole[0]["rewards"]["overall"]  # what verdicts and pages read
    train(tiny_options(tiny, tmp_path / "parts", max_steps=2, **WEIGHED))
    train(tiny_options(tiny, tmp_path / "parts", **WEIGHED))
    assert stats_of(tmp_path / "parts") == whole
    assert adapter_bytes(tmp_path / "parts", 3) == adapter_bytes(tmp_path / "whole", 3)


def test_flat_groups_are_not_replaced_by_rewards_that_come_later(tiny, tmp_path):
    with refused(r"--replace-flat looks at episodes before (evidence|information_gain) is measured"):
        train(tiny_options(tiny, tmp_path / "run", replace_flat=2, **WEIGHED))
