"""Rewards by hand, a user's own, and those that can't be used."""

import math

import pytest

from forage.errors import UserError
from forage.metrics import ndcg, recall, reciprocal_rank
from forage.rewriter.data import Row
from forage.rewriter.options import RewriteOptions
from forage.rewriter.rewards import CustomRewardModel, Scorer, load_reward


def search(queries):
    return [query.split() for query in queries]


def test_measures_by_hand():
    assert recall(["a", "b"], ["b", "c"]) == 0.5
    assert recall(["a"], []) == recall([], ["a"]) == 0
    assert reciprocal_rank(["a", "b"], ["b", "c"]) == 0.5
    assert reciprocal_rank(["a"], ["b"]) == 0
    assert ndcg(["a", "b"], ["b", "c"], 2) == pytest.approx((1 / math.log2(3)) / (1 + 1 / math.log2(3)))
    assert ndcg(["b", "c", "a"], ["b", "c"], 3) == 1  # the best that two can do
    assert ndcg(["a"], ["b"], 5) == ndcg(["a"], [], 5) == 0


class Short(CustomRewardModel):
    def compute_reward(self, query, relevant_doc_ids):
        return recall(self.search([query])[0], relevant_doc_ids) - 0.1 * len(query.split())


class Nan(CustomRewardModel):
    def compute_reward(self, query, relevant_doc_ids):
        return math.nan


def test_a_users_reward_is_loaded_by_its_name():
    reward = load_reward("tests.rewriter.test_rewards:Short", search, 5)
    assert reward("a b", ["a"]) == pytest.approx(0.8)


class NoMethod:
    compute_reward = 1.0


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("recal", "choose recall, ndcg, mrr"),
        ("tests.rewriter.test_rewards:Missing", "no attribute 'Missing'"),
        ("tests.rewriter.test_rewards:NoMethod", "must be a class with a method compute_reward"),
    ],
)
def test_a_reward_that_can_not_be_loaded(name, says):
    with pytest.raises(UserError, match=says):
        load_reward(name, search, 5)


def test_a_reward_that_is_no_number_is_reported_with_its_query(tiny_tokenizer):
    score = Scorer(Nan(search, 5).compute_reward, RewriteOptions(), tiny_tokenizer)
    with pytest.raises(UserError, match="the reward is nan for the query 'q q q'"):
        score([Row("q", ("a",), (5,))], [[2]])
