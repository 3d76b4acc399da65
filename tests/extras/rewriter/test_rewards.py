"""Rewards by hand, a user's own, those that can't be used, and the bridge that TRL's own get_reward asks."""

import math

import pytest

from forage.extras.rewriter.data import Row
from forage.extras.rewriter.options import RewriteOptions
from forage.extras.rewriter.rewards import CustomRewardModel, Scorer, load_reward
from forage.metrics import ndcg, recall, reciprocal_rank
from tests.refusals import refused


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


def test_the_gain_of_a_rewrite_is_how_much_nearer_the_top_it_brings_what_answers(tiny_tokenizer):
    """On a log scale of 100 ranks: 1 at rank 1, .5 at rank 10, 0 at rank 100 or where it is not found."""

    def ranked(queries):  # "q" finds a at rank 10 and b at 101, "q q q" a at rank 1 and b at 100
        order = {"q": (9, 100), "q q q": (0, 99)}
        found = []
        for query in queries:
            ids = [f"other{n}" for n in range(110)]
            ids[order[query][0]], ids[order[query][1]] = "a", "b"
            found.append(ids)
        return found

    reward = load_reward("gain", ranked, 5)
    assert reward("q", ["a"]) == pytest.approx(0.5)
    assert reward("q", ["a", "b"]) == pytest.approx(0.25)
    assert reward("q q q", ["a", "b"]) == pytest.approx(0.5)
    score = Scorer(reward, RewriteOptions(), tiny_tokenizer, over_question=True)
    assert score([Row("q", ("a", "b"), (5,))], [[2]]) == [pytest.approx(0.25)]
    # Beside it, the others keep to the best k of a search that finds more.
    assert [load_reward(name, ranked, 5)("q", ["a"]) for name in ("recall", "ndcg", "mrr")] == [0, 0, 0]
    assert len(Short(ranked, 5).search(["q"])[0]) == 5


class NoMethod:
    compute_reward = 1.0


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("recal", "choose recall, ndcg, mrr, gain"),
        ("tests.extras.rewriter.test_rewards:Missing", "no attribute 'Missing'"),
        ("tests.extras.rewriter.test_rewards:NoMethod", "must be a class with a method compute_reward"),
    ],
)
def test_a_reward_that_can_not_be_loaded(name, says):
    with refused(says):
        load_reward(name, search, 5)


def test_a_reward_that_is_no_number_is_reported_with_its_query(tiny_tokenizer):
    score = Scorer(Nan(search, 5).compute_reward, RewriteOptions(), tiny_tokenizer)
    with refused("the reward is nan for the query 'q q q'"):
        score([Row("q", ("a",), (5,))], [[2]])


PAD, EOS = 99, 2
ROWS = [Row("one", ("a",), (5, 6)), Row("two", ("b",), (7,))]


class Words(CustomRewardModel):
    def compute_reward(self, query, relevant_doc_ids):
        return len(query.split()) + (10 if "b" in relevant_doc_ids else 0)


def test_the_scorer_searches_for_what_was_written(tiny_tokenizer):
    tokenizer = tiny_tokenizer
    score = Scorer(
        Words(lambda queries: [], 5).compute_reward, RewriteOptions(rewrite="append", query_weight=2), tokenizer
    )
    tokens = [*tokenizer(" sore toe")["input_ids"], EOS, EOS]
    assert score(ROWS[:2], [tokens, [EOS]]) == [4, 12]
    assert [(e.query, e.written, e.searched, e.reward) for e in score.episodes] == [
        ("one", "sore toe", "one one sore toe", 4),
        ("two", "", "two two", 12),
    ]
