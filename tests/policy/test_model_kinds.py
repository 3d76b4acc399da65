"""Kinds of causal language model are computed right, or refused with one line.

`python -m tests.policy.model_kinds` tries every kind that transformers has; here are those that may share what is
computed, and some of each way not to be one of them.
"""

import pytest

from forage.engines.local import WINDOWED
from forage.policy.logprobs import SHARING
from tests.policy.model_kinds import apart, kinds

RIGHT = {"rows": "right", "trees": "right", "engine": "right"}
OTHERS = "bert bloom cpmant falcon gemma3_text gpt2 jetmoe mistral mpt nemotron phi3 rwkv stablelm".split()
PARTS = 4


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.timeout(900)
def test_a_kind_that_shares_is_right(part):
    """Some can't be made without a window, and with one nothing is shared."""
    for kind in sorted(SHARING)[part::PARTS]:
        found = apart(kind, True)
        assert not any(said.startswith("wrong") for said in found.values()), (kind, found)
        assert RIGHT in (found, apart(kind, False) if found != RIGHT else found), (kind, found)


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(WINDOWED))
def test_a_kind_with_windows_is_sampled_right(kind):
    found = apart(kind, True)
    assert (found["rows"], found["engine"]) == ("right", "right")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", OTHERS)
def test_another_kind_is_right_or_refused(kind):
    wrong = [f"{name}: {said}" for name, said in apart(kind, True).items() if said.startswith("wrong")]
    assert not wrong


def test_the_kinds_that_may_share_are_known_ones():
    assert set(kinds()) >= SHARING | WINDOWED
