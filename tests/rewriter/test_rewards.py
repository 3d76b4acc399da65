"""Rewards by hand, a user's own, and the errors of a broken one."""

import math

import pytest

from forage.errors import UserError
from forage.metrics import ndcg, recall, reciprocal_rank
from forage.rewriter.rewards import CustomRewardModel, checked_reward, load_reward


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


class Broken(CustomRewardModel):
    def compute_reward(self, query, relevant_doc_ids):
        return {"zero": 1 / len(relevant_doc_ids[0:0] or ()) if query == "divide" else math.nan}[query]


class Nan(CustomRewardModel):
    def compute_reward(self, query, relevant_doc_ids):
        return math.nan


def test_a_users_reward_is_loaded_by_its_name():
    assert checked_reward(load_reward("tests.rewriter.test_rewards:Short", search, 5), "a b", ["a"]) == pytest.approx(
        0.8
    )


class NoMethod:
    compute_reward = 1.0


class Demanding:
    def __init__(self, index):
        self.index = index

    def compute_reward(self, query, relevant_doc_ids):
        return 0.0


class Abstract(CustomRewardModel):
    """Has no compute_reward."""


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("recal", "choose recall, ndcg, mrr"),
        ("tests.rewriter.test_rewards:Missing", "no attribute 'Missing'"),
        ("tests.rewriter.test_rewards:Abstract", "can't be created: TypeError: Can't instantiate"),
        ("tests.rewriter.test_rewards:NoMethod", "must be a class with a method compute_reward"),
        ("tests.rewriter.test_rewards:Demanding", "can't be created: TypeError"),
    ],
)
def test_a_reward_that_can_not_be_loaded(name, says):
    with pytest.raises(UserError, match=says):
        load_reward(name, search, 5)


def test_a_broken_reward_is_reported_with_its_class_and_query():
    with pytest.raises(UserError, match=r"reward Broken raised ZeroDivisionError: .* \(query 'divide'\)"):
        checked_reward(Broken(search, 5), "divide", ["a"])
    with pytest.raises(UserError, match="reward Nan returned nan for the query 'q'"):
        checked_reward(Nan(search, 5), "q", ["a"])
