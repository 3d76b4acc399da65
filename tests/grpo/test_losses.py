"""Losses and advantages: values by hand, and micro-batches that add up to the whole, however it is cut."""

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forage.grpo.losses import (
    ScoredBatch,
    Totals,
    add_stats,
    advantages,
    count_totals,
    loss_sums,
    loss_terms,
    overlong_penalty,
    policy_loss,
    summary,
    widest,
)
from forage.grpo.options import LossOptions
from forage.policy.packing import pack
from tests.factories import Sequence
from tests.refusals import refused

LOG2 = math.log(2)


# Prompt, two of the policy's tokens, a tool's, one of the policy's; and a shorter episode with a single one.
LONG, SHORT = Sequence((5, 6, 7, 8, 9), (0, 1, 1, 0, 1)), Sequence((5, 9), (0, 1))


def rows(*episodes):
    [batch] = pack(episodes, 100)
    return batch


def loss_of(batch, advantage, options, *, logprobs, old=None, sampler=None, reference=None, totals=None, **more):
    """Loss, gradient by log-probability and summary; what is left out is as the log-probabilities are."""
    logprobs = torch.tensor(logprobs).view(batch.ids_BT.shape).requires_grad_()
    given = [logprobs.detach() if v is None else torch.tensor(v).view_as(logprobs) for v in (old, sampler or old)]
    if reference is not None:
        more["reference_BT"] = torch.tensor(reference).view_as(logprobs)
    totals = totals or Totals(int(batch.sampled_BT.sum()), len(advantage))
    terms = loss_terms(ScoredBatch(batch, torch.tensor(advantage), logprobs, *given, **more), options, totals)
    loss = policy_loss(terms, options)
    loss.backward()
    return loss.item(), logprobs.grad.flatten().tolist(), summary(loss_sums(terms))


def close(values):
    return pytest.approx(values, abs=1e-6)


def test_the_excess_of_tokens_over_draws_by_hand():
    """Log-probabilities -1, -3, -.5 in distributions of 1.5, 1 and .5 nats: .5, -2 and 0; the squares sum to 4.25."""
    batch = rows(LONG)
    old, entropy = [0.0, -1.0, -3.0, 9.0, -0.5], torch.tensor([[7.0, 1.5, 1.0, 7.0, 0.5]])
    figures = loss_of(batch, [1.0], LossOptions(), logprobs=[0.0, -2.0, -2.0, 9.0, -2.0], old=old, entropy_BT=entropy)[
        2
    ]
    assert figures["excess"] == close(-0.5)
    assert figures["excess_error"] == close(4.25**0.5 / 3)


# Advantages


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        # Means 1/2 and 1; deviations of the sample sqrt(1/3) and, for the pair, sqrt(2).
        ("grpo", [-0.5 / (3**-0.5 + 1e-4), 0.5 / (3**-0.5 + 1e-4), -1 / (2**0.5 + 1e-4)]),
        ("dr_grpo", [-0.5, 0.5, -1]),
        ("rloo", [0 - 2 / 3, 1 - 1 / 3, 0 - 2]),
        # All differences: four of 1/2 and two of 1, and zeros of the flat group and of the group of one.
        ("reinforce++", [x / (math.sqrt((4 * 0.25 + 2) / 9) + 1e-4) for x in (-0.5, 0.5, -1)]),
    ],
)
def test_advantages_by_hand(method, expected):
    rewards = [0, 0, 1, 1, 0, 2, 0.1, 0.1, 0.1, 7]
    groups = ["a", "a", "a", "a", "c", "c", "d", "d", "d", "e"]
    low, high, pair = expected
    found = advantages(rewards, groups, method)
    assert found.dtype == torch.float64
    assert found.tolist()[:6] == pytest.approx([low, low, high, high, pair, -pair], abs=1e-12)
    assert found.tolist()[6:] == [0.0] * 4  # exactly: 0.1 + 0.1 + 0.1 is not 0.3


def test_rare_successes_count_more():
    rewards, groups = [0, 0, 0, 1, 0, 1, 1, 1], "aaaabbcc"
    assert advantages(rewards, groups, "maxrl").tolist() == [-1, -1, -1, 3, -1, 1, 0, 0]
    with refused("rewards of 0 or 1 alone"):
        advantages([0, 0.5, 1], "aaa", "maxrl")


def test_the_best_of_each_group_alone_is_imitated():
    """The first of several, wherever the group's episodes lie; nothing where all are equal."""
    rewards, groups = [0, 3, 1, 3, 1, 0.1, 0.1, 0.1, -2, -1], ["a", "a", "b", "a", "a", "d", "d", "d", "b", "b"]
    assert advantages(rewards, groups, "best").tolist() == [0, 1, 1, 0, 0, 0, 0, 0, 0, 0]
    assert advantages([5.0], ["a"], "best").tolist() == [0]  # nothing to compare with


def test_the_widest_of_a_group_by_hand():
    rewards, groups = [0.9, 0.0, 0.5, 1.0, 0.1, 0.9, 0.0, 0.1, 0.0], ["a"] * 5 + ["b"] * 4
    chosen = [n for n, wide in enumerate(widest(rewards, groups, 2).tolist()) if wide]
    assert chosen == [1, 3, 5, 6]
    assert widest(rewards[5:], groups[5:], 3).tolist() == [True, True, False, True]
    assert widest(rewards, groups, 9).all()
    mixed = widest([1.0, 5.0, 0.0, 6.0, 0.5, 7.0], ["a", "b", "a", "b", "a", "b"], 2)
    assert mixed.tolist() == [True, True, True, False, False, True]


def test_overlong_penalty_by_hand():
    assert overlong_penalty([1, 80, 85, 90, 100, 500], 100, 20).tolist() == [0, 0, -0.25, -0.5, -1, -1]


# The loss


# Ratios 2, 1/2 and 1 of the long episode's tokens, 1/2 of the short one's.
OLD = [0.0, -3, -3, 0, -3, 0, -3, 0, 0, 0]
NEW = [0.0, LOG2 - 3, -LOG2 - 3, 0, -3, 0, -LOG2 - 3, 0, 0, 0]


@pytest.mark.parametrize(
    ("aggregation", "weights"), [("token", (4, 4)), ("sequence", (3 * 2, 1 * 2)), ("constant", (2 * 10, 2 * 10))]
)
def test_clip_by_hand(aggregation, weights):
    options = LossOptions(aggregation=aggregation, constant_length=10)
    loss, gradient, found = loss_of(rows(LONG, SHORT), [1.0, -3.0], options, logprobs=NEW, old=OLD)
    # Advantage 1: 2 is cut to 1.2, 1/2 stays for it is the worse one. Advantage -3: 1/2 is cut to .8.
    long, short = weights
    assert loss == close(-(1.2 + 0.5 + 1) / long + 0.8 * 3 / short)
    assert gradient == close([0, 0, -0.5 / long, 0, -1 / long, 0, 0, 0, 0, 0])
    assert found["clip_high_share"] == found["clip_low_share"] == 0.25
    assert (found["ratio_mean"], found["ratio_min"], found["ratio_max"]) == close((1, 0.5, 2))
    assert found["tokens"] == 4
    assert found["policy_loss"] == close(loss)


def test_gspo_by_hand():
    options = LossOptions(loss="gspo", aggregation="sequence", clip_low=0.2, clip_high=0.2)
    # Log-ratios 2 log 2, -log 2 and -log 2 / 2: the mean is -log 2 / 6 and the ratio .891, within the bounds.
    new = [0.0, 2 * LOG2 - 3, -LOG2 - 3, 0, -LOG2 / 2 - 3, 0, -LOG2 - 3, 0, 0, 0]
    old = [0.0, -3, -3, 0, -3, 0, -3, 0, 0, 0]
    ratio = math.exp(LOG2 / 6)
    loss, gradient, found = loss_of(rows(LONG, SHORT), [1.0, -3.0], options, logprobs=new, old=old)
    assert loss == close(-(ratio - 0.8 * 3) / 2)
    assert gradient == close([0, -ratio / 6, -ratio / 6, 0, -ratio / 6, 0, 0, 0, 0, 0])
    assert found["clip_low_share"] == 0.25  # of the tokens: one of four is in the clipped episode
    by_token = loss_of(rows(LONG, SHORT), [1.0, -3.0], LossOptions(loss="gspo"), logprobs=new, old=old)
    assert by_token[0] == close((-3 * ratio + 0.8 * 3) / 4)
    assert by_token[1] == close([0, -ratio / 4, -ratio / 4, 0, -ratio / 4, 0, 0, 0, 0, 0])


def test_cispo_by_hand():
    options = LossOptions(loss="cispo", clip_low=0.2, clip_high=0.5)
    loss, gradient, found = loss_of(rows(LONG, SHORT), [1.0, -3.0], options, logprobs=NEW, old=OLD)
    # Ratios 2, 1/2, 1 and 1/2 become weights 1.5, .8, 1 and .8 of the log-probabilities: none loses its gradient.
    weights = [0, -1.5 / 4, -0.8 / 4, 0, -1 / 4, 0, 0.8 * 3 / 4, 0, 0, 0]
    assert gradient == close(weights)
    assert loss == close(sum(w * x for w, x in zip(weights, NEW, strict=True)))
    assert (found["clip_high_share"], found["clip_low_share"]) == (0.25, 0.5)
    unbounded = LossOptions(loss="cispo", clip_low=1, clip_high=0.5)
    assert loss_of(rows(LONG, SHORT), [1.0, -3.0], unbounded, logprobs=NEW, old=OLD)[1][2] == close(-0.5 / 4)


def test_dppo_by_hand():
    # Of a loss, probabilities go from .4 to .2 and from .4 to .5, which may come back; of a gain, from .1 to .2.
    new, old = ([0, *map(math.log, some), 0] for some in ((0.2, 0.5, 1, 0.2), (0.4, 0.4, 1, 0.1)))
    batch = rows(Sequence((5, 6, 7), (0, 1, 1)), SHORT)
    options = LossOptions(loss="dppo", clip_low=0.15, clip_high=0.15)
    loss, gradient, found = loss_of(batch, [-1.0, 1.0], options, logprobs=new, old=old)
    assert gradient == close([0, 0, 1.25 / 3, 0, -2 / 3, 0])  # the ratio of 2 is kept, the fall by .2 is not
    assert loss == close((-2 + 1.25) / 3)
    assert (found["clip_low_share"], found["clip_high_share"]) == (close(1 / 3), 0)


@pytest.mark.parametrize(("unbiased", "gradient"), [(False, -1.0), (True, -1 + (2 - LOG2 - 1))])
def test_kl_to_the_reference(unbiased, gradient):
    batch, options = rows(SHORT), LossOptions(beta=0.5, unbiased_kl=unbiased)
    # The reference finds the token twice as likely: k3 is 2 - log 2 - 1 = .307, its gradient 1 - 2.
    loss, by_logprob, found = loss_of(batch, [0.0], options, logprobs=[0.0, -3], reference=[0.0, LOG2 - 3])
    assert loss == close(0.5 * (1 - LOG2))
    assert by_logprob == close([0, 0.5 * gradient])
    assert found["kl"] == close(1 - LOG2)
    assert found["policy_loss"] == 0
    with pytest.raises(ValueError, match="reference_BT"):
        loss_of(batch, [0.0], options, logprobs=[0.0, -3])


@pytest.mark.parametrize(
    ("correction", "weights", "share"),
    [
        # Trainer over engine: 4, 1/2, 1/8 and 1 by token; 1/4 for the long episode, 1 for the short one.
        ("none", (1, 1, 1, 1), 0),
        ("token_truncate", (3, 0.5, 0.125, 1), 0.25),
        ("token_mask", (0, 0.5, 0, 1), 0.5),
        ("sequence_truncate", (0.25, 0.25, 0.25, 1), 0),
        ("sequence_mask", (0, 0, 0, 1), 0.75),
    ],
)
@pytest.mark.parametrize("loss", ["clip", "cispo"])
def test_corrections_by_hand(correction, weights, share, loss):
    options = LossOptions(loss=loss, correction=correction, correction_cap=3.0)
    logs = [2 * LOG2, -LOG2, -3 * LOG2, 0.0]
    sampler = [-3 - log for log in logs]
    logprobs = [0.0, -3, -3, 0, -3, 0, -3, 0, 0, 0]
    placed = [0.0, sampler[0], sampler[1], 0, sampler[2], 0, sampler[3], 0, 0, 0]
    _, gradient, found = loss_of(rows(LONG, SHORT), [1.0, 1.0], options, logprobs=logprobs, sampler=placed)
    assert [gradient[n] for n in (1, 2, 4, 6)] == close([-w / 4 for w in weights])
    assert found["corrected_share"] == share
    assert found["mismatch_mean_abs"] == close(6 * LOG2 / 4)
    assert found["mismatch_kl"] == close(sum(math.exp(x) - x - 1 for x in logs) / 4)


@pytest.mark.parametrize("sampled", [0, 1, 2])
def test_a_teachers_mark_by_hand_on_a_vocabulary_of_three(sampled):
    """The policy gives .5, .3 and .2, the teacher .2, .3 and .5; the episode's advantage is .1, a mark's weight 2."""
    policy, teacher = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.3, 0.5])
    logits = policy.log().requires_grad_()
    logprobs = torch.stack([torch.zeros(()), logits.log_softmax(0)[sampled]])[None]
    given, marks = logprobs.detach(), torch.tensor([[0.0, teacher[sampled].log()]])
    scored = ScoredBatch(rows(SHORT), torch.tensor([0.1]), logprobs, given, given, teacher_BT=marks)
    options = LossOptions(teacher_weight=2.0)
    terms = loss_terms(scored, options, Totals(1, 1))
    policy_loss(terms, options).backward()
    gains = (0.1 + 2 * math.log(0.2 / 0.5), 0.1, 0.1 + 2 * math.log(0.5 / 0.2))
    by_hand = [-gains[sampled] * ((place == sampled) - share) for place, share in enumerate(policy.tolist())]
    assert logits.grad.tolist() == close(by_hand)
    mark = (math.log(0.2 / 0.5), 0, math.log(0.5 / 0.2))[sampled]
    assert summary(loss_sums(terms))["teacher_kl"] == close(math.exp(mark) - mark - 1)


def test_marks_of_all_tokens_add_up_to_the_gradient_of_the_divergence():
    """Each token as often as the policy samples it: KL(policy, teacher), differentiated as it is."""
    logits = torch.tensor([0.3, -0.2, 0.9], requires_grad=True)
    teacher = torch.tensor([-0.5, 0.4, 0.1]).log_softmax(0)
    own = logits.log_softmax(0)
    divergence = torch.autograd.grad((own.exp() * (own - teacher)).sum(), logits, retain_graph=True)[0]
    total, batch = torch.zeros(3), rows(SHORT)
    for token, share in enumerate(own.exp().tolist()):
        logprobs = torch.stack([torch.zeros(()), own[token]])[None]
        given, marks = logprobs.detach(), torch.stack([torch.zeros(()), teacher[token]])[None]
        scored = ScoredBatch(batch, torch.tensor([0.0]), logprobs, given, given, teacher_BT=marks)
        loss = policy_loss(loss_terms(scored, LossOptions(), Totals(1, 1)), LossOptions())
        total += share * torch.autograd.grad(loss, logits, retain_graph=True)[0]
    torch.testing.assert_close(total, divergence, atol=1e-6, rtol=1e-5)


def test_a_mark_counts_up_to_its_cap_and_never_where_a_tool_spoke():
    marks = torch.tensor([[9.0, -1.5, -9.0, 9.0, 4.0], [9.0, -1.0, 9.0, 9.0, 9.0]])  # 9 or more: nothing was sampled
    logprobs = [0.0, -1, -1, 0, -1, 0, -1, 0, 0, 0]
    options = LossOptions(teacher_cap=3.0)
    _, gradient, _ = loss_of(rows(LONG, SHORT), [1.0, -1.0], options, logprobs=logprobs, teacher_BT=marks)
    # Of log-probability -1: marks -.5, -8 and 5, of which -3 and 3 count; and 0.
    assert gradient == close([0, -0.5 / 4, 2 / 4, 0, -4 / 4, 0, 1 / 4, 0, 0, 0])


def test_a_credit_counts_for_its_own_token_alone():
    """Advantage 1 for the long episode, -1 for the short: with credits .5 and -3 its tokens have 1.5, -2 and 1."""
    credits_BT = torch.tensor([[9.0, 0.5, -3.0, 9.0, 0.0], [9.0, 0.0, 9.0, 9.0, 9.0]])  # 9: where nothing was sampled
    logprobs = [0.0, -1, -1, 0, -1, 0, -1, 0, 0, 0]
    loss, gradient, _ = loss_of(rows(LONG, SHORT), [1.0, -1.0], LossOptions(), logprobs=logprobs, credits_BT=credits_BT)
    assert loss == close(-(1.5 - 2 + 1 - 1) / 4)
    assert gradient == close([0, -1.5 / 4, 2 / 4, 0, -1 / 4, 0, 1 / 4, 0, 0, 0])


def test_nothing_sampled_gives_zeros_and_gradients_of_zero():
    batch = rows(Sequence((5, 6), (0, 0)), Sequence((7,), (1,)))
    for loss, aggregation in product(("clip", "gspo", "cispo", "dppo"), ("token", "sequence")):
        options = LossOptions(loss=loss, aggregation=aggregation)
        loss, gradient, found = loss_of(
            batch, [1.0, 2.0], options, logprobs=[-math.inf] * 4, sampler=[math.nan] * 4, totals=Totals(0, 0)
        )
        assert loss == 0
        assert gradient == [0] * 4
        assert {*found.values()} == {0}


@pytest.mark.parametrize("loss", ["clip", "gspo", "cispo", "dppo"])
def test_probabilities_that_are_worlds_apart_give_finite_gradients(loss):
    for old, new in ((-1000.0, -0.1), (-0.1, -1000.0)):
        for advantage in (1.0, -1.0):
            value, gradient, found = loss_of(
                rows(SHORT), [advantage], LossOptions(loss=loss, beta=0.1), logprobs=[0.0, new], old=[0.0, old],
                reference=[0.0, old], sampler=[0.0, new],
            )  # fmt: skip
            assert all(map(math.isfinite, [value, *gradient, *found.values()]))


def test_a_first_token_that_was_sampled_is_left_out():
    batch = rows(Sequence((5, 6), (1, 1)))
    assert count_totals([Sequence((5, 6), (1, 1))]) == Totals(1, 1)
    assert loss_of(batch, [1.0], LossOptions(), logprobs=[-9.0, -1], totals=Totals(1, 1))[1] == [0, -1]


EPISODES = st.lists(st.lists(st.sampled_from([0, 1]), min_size=0, max_size=6), min_size=1, max_size=6)
OPTIONS = st.builds(
    LossOptions,
    loss=st.sampled_from(["clip", "gspo", "cispo", "dppo"]),
    aggregation=st.sampled_from(["token", "sequence", "constant"]),
    constant_length=st.just(8),
    beta=st.sampled_from([0.0, 0.5]),
    unbiased_kl=st.booleans(),
    correction=st.sampled_from(["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]),
)


@settings(max_examples=200)
@given(EPISODES, OPTIONS, st.integers(1, 30), st.integers(0, 1000))
def test_micro_batches_add_up_to_the_whole(masks, options, budget, seed):
    """Loss, gradient and summary, for any packing into micro-batches, some of them empty."""
    sequences = [Sequence((1,) * (len(mask) + 1), (0, *mask)) for mask in masks]
    width = max(len(s.ids) for s in sequences)
    random = torch.Generator().manual_seed(seed)
    kinds = [torch.randn(len(masks), width, generator=random) * 0.5 - 2 for _ in range(5)]
    advantage = torch.randn(len(masks), generator=random, dtype=torch.float64)
    totals = count_totals(sequences)

    def run(budget):
        leaf = kinds[0].clone().requires_grad_()
        losses, stats = [], []
        for batch in pack(sequences, budget):
            place = (batch.sequence_BT, batch.positions_BT)
            current, old, sampler, reference, entropy = (
                values[place] * batch.sampled_BT for values in (leaf, *kinds[1:])
            )
            scored = ScoredBatch(batch, advantage, current, old, sampler, reference, entropy)
            terms = loss_terms(scored, options, totals)
            loss = policy_loss(terms, options)
            loss.backward()
            losses.append(loss.detach())
            stats.append(loss_sums(terms))
        return torch.stack(losses).sum().item(), leaf.grad, summary(add_stats(stats))

    whole, parts = run(10_000), run(budget)
    assert parts[0] == pytest.approx(whole[0], abs=1e-5, rel=1e-5)
    torch.testing.assert_close(parts[1], whole[1], atol=1e-6, rtol=1e-5)
    assert parts[2] == pytest.approx(whole[2], abs=1e-5, rel=1e-5)
    assert whole[2]["tokens"] == totals.tokens
