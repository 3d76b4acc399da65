"""Combining rewards: every method by hand, degenerate cases defined, broken rewards told by name."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forage.agent.rewards import combine_rewards, first_component, reward_matrix, rewarded, rewards_of, weights_by_name
from tests.factories import EPISODE as EXAMPLE
from tests.refusals import refused


def test_uniform_by_hand():
    rewards = np.array([[1.0, 0.0], [0.0, 0.0], [0.5, 1.0]])
    assert combine_rewards(rewards).tolist() == [0.5, 0.0, 0.75]
    assert combine_rewards(rewards, "uniform", [3, 1]).tolist() == [0.75, 0.0, 0.625]


def test_std_by_hand():
    # Deviations: first column .5, second 0 (a constant), third .25. Weights 2/3, 0, 1/3.
    rewards = np.array([[1.0, 0.7, 0.5], [0.0, 0.7, 0.0]])
    np.testing.assert_allclose(combine_rewards(rewards, "std"), [2 / 3 + 0.5 / 3, 0])
    # Nothing varies: as uniform.
    np.testing.assert_allclose(combine_rewards(np.array([[0.2, 0.6], [0.2, 0.6]]), "std"), [0.4, 0.4])
    # The user's weights count too: .5 * 1 and .25 * 2 are equal.
    np.testing.assert_allclose(combine_rewards(rewards, "std", [1, 1, 2]), [0.75, 0])


def test_pca_by_hand():
    # Two columns that go together and one constant: loadings .707, .707, 0.
    rewards = np.array([[0.0, 0.0, 0.3], [1.0, 0.5, 0.3], [0.5, 0.25, 0.3]])
    np.testing.assert_allclose(first_component(rewards), [2**-0.5, 2**-0.5, 0], atol=1e-12)
    np.testing.assert_allclose(combine_rewards(rewards, "pca"), [0, 0.75, 0.375], atol=1e-12)
    # Columns that go against each other: no loading is negative.
    against = np.array([[0.0, 1.0], [1.0, 0.0]])
    np.testing.assert_allclose(combine_rewards(against, "pca"), [0.5, 0.5])
    # One varies, or none, or there is one episode: as uniform.
    np.testing.assert_allclose(combine_rewards(np.array([[0.0, 0.4], [1.0, 0.4]]), "pca"), [0.2, 0.7])
    np.testing.assert_allclose(combine_rewards(np.array([[0.0, 0.4]]), "pca"), [0.2])


def test_l2_by_hand():
    rewards = np.array([[1.0, 0.0], [0.6, 0.8], [1.0, 1.0]])
    np.testing.assert_allclose(combine_rewards(rewards, "l2"), [2**-0.5, 2**-0.5, 1])
    np.testing.assert_allclose(combine_rewards(rewards, "l2", [3, 4])[0], 0.6)


@given(
    st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=1, max_size=8),
    st.sampled_from(["uniform", "std", "pca", "l2"]),
)
def test_rewards_in_0_to_1_stay_there_and_more_is_never_worse(rows, method):
    rewards = np.array(rows)
    combined = combine_rewards(rewards, method)
    assert ((combined >= -1e-9) & (combined <= 1 + 1e-9)).all()
    for better in range(len(rows)):
        for worse in range(len(rows)):
            if (rewards[better] >= rewards[worse]).all():
                assert combined[better] >= combined[worse] - 1e-9


# A reward that does not exist


NAN = float("nan")


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("uniform", [0.75, 0.25, 1.0, 0.2]),  # weights 3 and 1; of the last two the second reward alone
        ("l2", [3 / 10**0.5, 1 / 10**0.5, 1.0, 0.2]),
    ],
)
def test_a_missing_reward_has_no_weight(method, expected):
    rewards = np.array([[1.0, 0.0], [0.0, 1.0], [NAN, 1.0], [NAN, 0.2]])
    np.testing.assert_allclose(combine_rewards(rewards, method, [3, 1]), expected)


def test_a_missing_reward_is_absent_from_the_episode():
    functions = {"a": lambda e, q: [None, None], "b": lambda e, q: [0.5, 1]}
    first, second = rewarded(functions, [EXAMPLE, EXAMPLE], [])
    assert (first.rewards, first.reward, second.reward) == ({"b": 0.5}, 0.5, 1.0)


def test_weights_are_told_with_their_rewards():
    assert weights_by_name(["a", "b"], ()) == {"a": 1, "b": 1}
    assert weights_by_name(["a", "b"], ("b=2",)) == {"a": 0, "b": 2}
    for wrong in (("2", "1"), ("a=-1",), ("a=much",), ("a=nan",), ("a=0", "b=0")):
        with refused(r"--weights .*(name|above 0)"):
            weights_by_name(["a", "b"], wrong)


def halves(episodes, questions):
    return [0.5] * len(episodes)


def given_both(episodes, questions, *, searcher, embedder):
    return [embedder, searcher]


def test_weights_name_own_functions_beside_the_dictionary_and_the_library():
    names = [f"{__name__}:halves=1", "one=2", "format=1"]
    functions = rewards_of(lambda embedder: {"one": len, "two": len}, None, None, names)
    assert list(functions) == [f"{__name__}:halves", "one", "format"]
    assert reward_matrix({"halves": functions[f"{__name__}:halves"]}, [EXAMPLE], []).tolist() == [[0.5]]
    [given] = rewards_of(lambda embedder: {}, "an embedder", "a searcher", [f"{__name__}:given_both=1"]).values()
    assert given([], []) == ["an embedder", "a searcher"]
    for wrong in (f"{__name__}:gone=1", "three=1"):
        with refused(r"--weights.*(gone|three)"):
            rewards_of(lambda embedder: {}, None, None, [wrong])


def raising(episodes, questions):
    raise KeyError("gone")


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (raising, r"reward 'mine' raised KeyError: 'gone' \(.*/test_combination.py:\d+\)"),
        (lambda episodes, questions: [0.5], r"reward 'mine' gave \(1,\) values for 2 episodes"),
        (
            lambda episodes, questions: [0.5, 1.5],
            "reward 'mine' gave 1.5 for episode q/0; scale it to lie between",
        ),
        (lambda episodes, questions: [None, 1], "reward 'mine' gave None for some episodes of question q only"),
    ],
)
def test_a_broken_reward_is_told_by_name(function, says):
    with refused(says):
        reward_matrix({"good": lambda e, q: [1, 1], "mine": function}, [EXAMPLE, EXAMPLE], [])
