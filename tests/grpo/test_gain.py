"""Rewards that the trainer measures: values by hand, likelihoods against nano's, and that a run learns from them."""

import json
import math
from functools import partial

import pytest
import torch

from forage.agent.episode import Episode, Search, Turn, read_episodes
from forage.agent.rewards import get_information_gain, get_mrr, rewards_of
from forage.grpo.gain import Gains, information_gain, likelihoods
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


def test_the_name_is_kept_for_what_is_measured():
    for name, function in (("information_gain", get_mrr), ("gain", get_information_gain)):
        with refused(r"the trainer measures information_gain by this name alone"):
            rewards_of(lambda embedder, name=name, function=function: {name: partial(function)}, None, None)
    assert rewards_of(lambda embedder: {"information_gain": get_information_gain}, None, None)


@pytest.mark.parametrize("packing", [pack, pack_trees])
def test_likelihoods_are_geometric_means_by_the_policy_without_dropout(tiny, packing):
    policy = load_policy(read_policy_manifest(tiny / "policy")).train()
    rows = [Row((5, 6, 7, 8), (0, 0, 1, 1)), Row((5, 6, 9), (0, 0, 1)), Row((5, 6, 7, 8, 4), (0, 1, 0, 1, 0))]
    found = likelihoods(rows, Learner(policy), 0.7, lambda rows: packing(rows, 6))
    for row, value in zip(rows, found, strict=True):
        with torch.no_grad():
            logprobs_T = token_logprobs(policy.eval(), row.ids, 0.7)[torch.tensor(row.mask[1:]) == 1]
        assert value == pytest.approx(math.exp(logprobs_T.mean().item()), rel=1e-5)


WEIGHED = {"weights": ("information_gain=3", "even=1"), "search_first": True, "max_turns": 3}


def test_a_run_learns_from_what_only_its_trainer_measures_and_resumes_exactly(tiny, tmp_path):
    train(tiny_options(tiny, tmp_path / "whole", **WEIGHED))
    whole, evaluations = stats_of(tmp_path / "whole"), json.loads((tmp_path / "whole/evaluations.json").read_text())
    assert len(set(whole[0]["rewards"]["information_gain"])) == 3  # one a question, whose search is written for it
    for stats in whole:
        for gain, even, overall in zip(
            *(stats["rewards"][name] for name in ("information_gain", "even", "overall")), strict=True
        ):
            assert overall == pytest.approx((3 * gain + even) / 4)
    assert 0 < evaluations["2"]["information_gain"]["mean"] < 1
    played = read_episodes(tmp_path / "whole" / "episodes" / "000000" / "trainer.jsonl")
    assert [each.reward for each in played] == whole[0]["rewards"]["overall"]  # what verdicts and pages read
    train(tiny_options(tiny, tmp_path / "parts", max_steps=2, **WEIGHED))
    train(tiny_options(tiny, tmp_path / "parts", **WEIGHED))
    assert stats_of(tmp_path / "parts") == whole
    assert adapter_bytes(tmp_path / "parts", 3) == adapter_bytes(tmp_path / "whole", 3)


def test_flat_groups_are_not_replaced_by_rewards_that_come_later(tiny, tmp_path):
    with refused(r"--replace-flat looks at episodes before information_gain is measured"):
        train(tiny_options(tiny, tmp_path / "run", replace_flat=2, **WEIGHED))
