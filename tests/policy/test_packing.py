"""Packing: examples by hand; any sequences come out complete, once each, within the budget."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forage.policy.logprobs import token_logprobs, token_scores
from forage.policy.packing import BRANCHES, pack, pack_trees, values_like
from tests.factories import Sequence, tiny_model
from tests.refusals import refused

A, B = Sequence((5, 6, 7, 8), (0, 0, 1, 1)), Sequence((5, 9), (0, 1))


def test_the_example_padded():
    [batch] = pack([B, A], budget=8)
    assert batch.ids_BT.tolist() == [[5, 6, 7, 8], [5, 9, 0, 0]]
    assert batch.attention_BT.tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert batch.sampled_BT.tolist() == [[0, 0, 1, 1], [0, 1, 0, 0]]
    assert batch.sequence_BT.tolist() == [[1, 1, 1, 1], [0, 0, 0, 0]]
    assert len(pack([B, A], budget=7)) == 2


@given(st.lists(st.integers(1, 30), max_size=20), st.integers(1, 60))
def test_all_sequences_are_packed_once_within_the_budget(lengths, budget):
    sequences = [Sequence(tuple(range(1, n + 1)), (0,) + (1,) * (n - 1)) for n in lengths]
    batches = pack(sequences, budget)
    found = []
    for batch in batches:
        real = batch.attention_BT
        inside = batch.sequence_BT[real == 1].unique().tolist()
        assert batch.ids_BT.numel() <= budget or len(inside) == 1
        for number in inside:
            here = (batch.sequence_BT == number) & (real == 1)
            assert tuple(batch.ids_BT[here].tolist()) == sequences[number].ids
            assert tuple(batch.sampled_BT[here].tolist()) == sequences[number].mask
            assert batch.positions_BT[here].tolist() == list(range(lengths[number]))
        found += inside
    assert sorted(found) == list(range(len(lengths)))


# Trees


@given(
    st.lists(st.lists(st.integers(1, 2), min_size=1, max_size=6), min_size=1, max_size=8), st.integers(1, 20)
)  # fmt: skip
def test_all_sequences_are_in_the_trees_and_no_token_twice(rows, budget):
    sequences = [Sequence(tuple(ids), (0,) + (1,) * (len(ids) - 1)) for ids in rows]
    found = []
    for batch in pack_trees(sequences, budget):
        tree, paths = batch.tree, {}
        assert batch.tokens <= budget or len(batch.ids_BT) == 1
        for node, parent in enumerate(tree.parents_N.tolist()):
            paths[node] = [*paths.get(parent, []), node]
            assert tree.positions_N[node] == len(paths[node]) - 1
            assert tree.seen_NN[node].nonzero().flatten().tolist() == sorted(paths[node])
        spelled = {tuple(tree.ids_N[path].tolist()) for path in paths.values()}
        assert len(spelled) == batch.tokens
        for row, number in enumerate(batch.sequence_BT[:, 0].tolist()):
            length = len(rows[number])
            assert paths[int(tree.node_BT[row, length - 1])] == tree.node_BT[row, :length].tolist()
            assert tree.ids_N[tree.node_BT[row, :length]].tolist() == rows[number]
            found.append(number)
    assert sorted(found) == list(range(len(rows)))


def four_of_two_prompts():
    """Three of one prompt, of which two share sampled tokens as well, and one of another; with a weight by token."""
    generator = torch.Generator().manual_seed(3)
    prompt, sequences = (5, 6, 7, 9, 11), []
    for number, length in enumerate((4, 7, 5, 3)):
        more = torch.randint(1, 61, (length,), generator=generator).tolist()
        if number == 1:
            more[:2] = sequences[0].ids[5:7]
        start = (*prompt[:3], 13, 14) if number == 3 else prompt
        sequences.append(Sequence((*start, *more), (0,) * 5 + (1,) * (length - 2) + (0, 1)))
    return sequences, [[(7 * n + m) % 5 - 2.0 for m in range(len(s.ids))] for n, s in enumerate(sequences)]


def scored(model, batches, weights):
    """(sum of weighted log-probabilities and of entropies, gradients)"""
    model.zero_grad()
    scores = [(batch, token_scores(model, batch, chunk=4)) for batch in batches]
    total = sum((score.logprobs_BT * values_like(batch, weights)).sum() for batch, score in scores)
    total.backward()
    entropy = sum((score.entropy_BT * values_like(batch, weights)).sum() for batch, score in scores)
    return total.detach(), entropy, [weight.grad.clone() for weight in model.parameters()]


@pytest.mark.parametrize("budget", [1000, 16, 1])
@pytest.mark.parametrize("kind", ["sdpa", "eager", BRANCHES])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_trees_change_neither_values_nor_gradients(budget, kind, checkpointing):
    model = tiny_model()
    model.set_attn_implementation(kind)
    sequences, weights = four_of_two_prompts()
    total, entropy, gradients = scored(model, pack(sequences, 1000), weights)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
    trees = pack_trees(sequences, budget)
    assert sum(batch.tokens for batch in trees) < 39 or budget == 1  # they are 39 tokens
    tree_total, tree_entropy, tree_gradients = scored(model, trees, weights)
    torch.testing.assert_close(tree_total, total)
    torch.testing.assert_close(tree_entropy, entropy)
    for ours, plain in zip(tree_gradients, gradients, strict=True):
        torch.testing.assert_close(ours, plain, atol=2e-6, rtol=1e-4)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layers of sliding_attention"),
        ({"sliding_window": 4}, "a sliding window"),
        ({"model_type": "new"}, "attention that was not tried here"),
    ],
)
def test_a_model_with_windows_or_of_an_unknown_kind_shares_no_prompts(more, why):
    model = tiny_model()
    for name, value in more.items():
        setattr(model.config, name, value)
    with refused(f"has {why}, so its sequences can't share prompts"):
        token_logprobs(model, pack_trees([A, B], 100)[0])
    assert token_logprobs(model, pack([A, B], 100)[0]).shape == (2, 4)
