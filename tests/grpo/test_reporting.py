"""A step's figures, worked out by hand from its episodes."""

from dataclasses import replace

import pytest

from forage.agent.episode import Search
from forage.grpo.reporting import figures_of, flat_counts
from tests.factories import EPISODE


def test_searches_and_their_distinct_queries():
    """Five searches of three episodes: gout is asked for twice in one and once in another, so three are distinct."""
    asked = [("gout", "gout", "asthma"), (), ("gout", "Gout")]
    figures = figures_of([replace(EPISODE, searches=tuple(Search(0, q) for q in queries)) for queries in asked])
    assert figures["searches"] == pytest.approx(5 / 3)
    assert figures["distinct_queries"] == 3 / 5
    assert figures_of([replace(EPISODE, searches=())])["distinct_queries"] == 0


def test_questions_whose_passages_made_no_difference():
    """Of a: found by one episode only. Of b: by none. Of c: alike. Of d: the reward does not exist."""
    rewards = {"mrr": [0.0, 1.0, 0.0, 0.0, 0.5, 0.5, None, None], "format": [1.0] * 8}
    assert flat_counts(rewards, list("aabbccdd")) == {"mrr": 2, "format": 4}
    assert flat_counts({"mrr": [0.0, 1.0, 1.0, 0.0]}, list("abab")) == {"mrr": 0}  # groups need not be neighbours
