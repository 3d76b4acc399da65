"""Packing: examples by hand; any sequences come out complete, once each, within the budget."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forage.policy.logprobs import token_logprobs
from forage.policy.packing import pack, pack_shared, values_like
from tests.factories import Sequence, tiny_model

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


# Shared prompts

C, D = Sequence((5, 6, 7, 8), (0, 0, 1, 1)), Sequence((5, 6, 9), (0, 0, 1))


def test_the_example_of_a_shared_prompt():
    [batch] = pack_shared([C, D], ["q", "q"], budget=100)
    assert batch.prefix_P.tolist() == [5]
    assert batch.ids_BT.tolist() == [[6, 7, 8], [6, 9, 0]]
    assert batch.positions_BT.tolist() == [[1, 2, 3], [1, 2, 3]]
    assert batch.sampled_BT.tolist() == [[0, 1, 1], [0, 1, 0]]
    assert batch.sequence_BT.tolist() == [[0, 0, 0], [1, 1, 1]]
    assert batch.tokens == 7
    assert len(pack_shared([C, D], ["q", "q"], budget=5)) == 2  # then each computes the prompt
    assert len(pack_shared([C, D], ["q", "r"], budget=100)) == 2
    # A prompt of one token, and one that differs within a group, leave nothing to share.
    assert pack_shared([B], ["q"], budget=100)[0].prefix_P is None
    assert pack_shared([C, Sequence((4, 6, 7), (0, 0, 1))], ["q", "q"], budget=100)[0].prefix_P is None


def test_values_stand_where_the_tokens_are():
    values = [[0.0, 0.1, 0.2, 0.3], [0.5, 0.6, 0.7]]
    [shared] = pack_shared([C, D], ["q", "q"], budget=100)
    torch.testing.assert_close(values_like(shared, values), torch.tensor([[0.1, 0.2, 0.3], [0.6, 0.7, 0.0]]))
    [row] = pack([C, D], budget=100, padding_free=True)
    torch.testing.assert_close(values_like(row, values), torch.tensor([[0.0, 0.1, 0.2, 0.3, 0.5, 0.6, 0.7]]))
    [rows] = pack([D, C], budget=100)
    torch.testing.assert_close(values_like(rows, values[::-1])[1, :3], torch.tensor([0.5, 0.6, 0.7]))


def test_values_of_other_batches_are_not_read():
    """An update asks batch by batch, so reading all values each time would take batches times episodes."""
    long, short = pack([C, D], budget=4)
    assert (len(long.ids_BT), len(short.ids_BT)) == (1, 1)
    torch.testing.assert_close(values_like(short, [None, [0.5, 0.6, 0.7]]), torch.tensor([[0.5, 0.6, 0.7]]))


@pytest.mark.parametrize("budget", [1000, 24, 1])
def test_a_shared_prompt_changes_neither_values_nor_gradients(budget):
    model = tiny_model()
    generator = torch.Generator().manual_seed(3)
    prompt, sequences, groups = (5, 6, 7, 9, 11), [], []
    for number, length in enumerate((4, 7, 5, 3)):
        more = torch.randint(1, 61, (length,), generator=generator).tolist()
        sequences.append(Sequence((*prompt, *more), (0,) * 5 + (1,) * (length - 2) + (0, 1)))
        groups.append(number == 3)
    weights = [[(7 * n + m) % 5 - 2.0 for m in range(len(s.ids))] for n, s in enumerate(sequences)]

    def run(batches):
        model.zero_grad()
        total = sum((token_logprobs(model, b) * values_like(b, weights)).sum() for b in batches)
        total.backward()
        return total.detach(), [weight.grad.clone() for weight in model.parameters()]

    total, gradients = run(pack(sequences, 1000))
    shared_total, shared_gradients = run(pack_shared(sequences, groups, budget))
    torch.testing.assert_close(shared_total, total)
    for ours, plain in zip(shared_gradients, gradients, strict=True):
        torch.testing.assert_close(ours, plain, atol=2e-6, rtol=1e-4)
