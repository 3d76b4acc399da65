"""Every kind of causal language model that transformers has is computed right, or refused with one line."""

import pytest

from forage.policy.logprobs import SHARING
from tests.policy.model_kinds import apart, kinds

PARTS = 8


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.timeout(900)
def test_each_kind_is_right_or_refused(part):
    for kind in kinds()[part::PARTS]:
        both = [apart(kind, window) for window in (True, False)]
        wrong = [f"{name}: {said}" for found in both for name, said in found.items() if said.startswith("wrong")]
        assert not wrong, (kind, wrong)
        # Some kinds can't be made without a window, and with one nothing is shared.
        assert kind not in SHARING or {"rows": "right", "trees": "right", "engine": "right"} in both, (kind, both)


def test_the_kinds_that_may_share_are_known_ones():
    assert set(kinds()) >= SHARING
