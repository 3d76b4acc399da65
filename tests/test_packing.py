"""Packing: values by hand, and any sequences come out whole, once, within the budget."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.logprobs import token_logprobs
from core.packing import pack
from tests.test_logprobs import tiny_model


@dataclass
class Sequence:
    ids: tuple
    mask: tuple


A, B = Sequence((5, 6, 7, 8), (0, 0, 1, 1)), Sequence((5, 9), (0, 1))


def test_the_example_padded():
    [batch] = pack([B, A], budget=8)
    assert batch.ids_BT.tolist() == [[5, 6, 7, 8], [5, 9, 0, 0]]
    assert batch.attention_BT.tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert batch.sampled_BT.tolist() == [[0, 0, 1, 1], [0, 1, 0, 0]]
    assert batch.sequence_BT.tolist() == [[1, 1, 1, 1], [0, 0, 0, 0]]
    assert len(pack([B, A], budget=7)) == 2


def test_the_example_in_one_row():
    [batch] = pack([A, B], budget=6, padding_free=True)
    assert batch.ids_BT.tolist() == [[5, 6, 7, 8, 5, 9]]
    assert batch.positions_BT.tolist() == [[0, 1, 2, 3, 0, 1]]
    assert batch.sampled_BT.tolist() == [[0, 0, 1, 1, 0, 1]]
    assert batch.sequence_BT.tolist() == [[0, 0, 0, 0, 1, 1]]
    assert batch.attention_BT is None
    assert len(pack([A, B], budget=5, padding_free=True)) == 2


@given(st.lists(st.integers(1, 30), max_size=20), st.integers(1, 60), st.booleans())
def test_all_sequences_are_packed_once_within_the_budget(lengths, budget, padding_free):
    sequences = [Sequence(tuple(range(1, n + 1)), (0,) + (1,) * (n - 1)) for n in lengths]
    batches = pack(sequences, budget, padding_free=padding_free)
    found = []
    for batch in batches:
        real = torch.ones_like(batch.ids_BT) if batch.attention_BT is None else batch.attention_BT
        inside = batch.sequence_BT[real == 1].unique().tolist()
        assert batch.ids_BT.numel() <= budget or len(inside) == 1
        for number in inside:
            here = (batch.sequence_BT == number) & (real == 1)
            assert tuple(batch.ids_BT[here].tolist()) == sequences[number].ids
            assert tuple(batch.sampled_BT[here].tolist()) == sequences[number].mask
            assert batch.positions_BT[here].tolist() == list(range(lengths[number]))
        found += inside
    assert sorted(found) == list(range(len(lengths)))


@pytest.mark.parametrize("kind", ["sdpa", "eager"])
def test_one_row_gives_the_logprobs_of_rows_of_their_own(kind):
    model = tiny_model()
    model.set_attn_implementation(kind)
    sequences = [Sequence((3, 4, 5, 6, 7), (0, 0, 1, 1, 1)), Sequence((9, 8, 7), (0, 1, 1)), Sequence((3, 4), (0, 1))]
    alone = {}
    for number, sequence in enumerate(sequences):
        [batch] = pack([sequence], 10)
        alone[number] = token_logprobs(model, batch)[0]
    for padding_free in (True, False):
        for batch in pack(sequences, 15, padding_free=padding_free):
            logprobs = token_logprobs(model, batch)
            for number in batch.sequence_BT.unique().tolist():
                here = (batch.sequence_BT == number) & (batch.positions_BT < len(sequences[number].ids))
                torch.testing.assert_close(logprobs[here], alone[number], atol=1e-5, rtol=0)
