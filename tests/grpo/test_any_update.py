"""Any options and any small batch: an update's gradients are those of nano_grpo.py's loss, token by token.

nano_grpo.py knows no masks, credits and the like: it gets an episode for each token that is to count, with that token's
advantage by the plain formulas of this file. With --loss gspo and cispo see test_trl_parity.py.
"""

from dataclasses import replace
from itertools import combinations
from statistics import mean, pvariance, stdev
from types import SimpleNamespace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import nano_grpo
from forage.agent.episode import Episode
from forage.grpo.learner import Learner
from forage.grpo.options import LossOptions, UpdateOptions
from forage.grpo.update import UpdateContext, prepare, taught_episodes, update
from forage.optimizer import MemoryOptions
from forage.policy.logprobs import TokenScores

LIMIT = 8  # --max-tokens: an episode of so many is punished by 1, one of half as many by .5
REWARDS = st.sampled_from([0.0, 0.5, 1.0])
BATCH = st.lists(
    st.tuples(
        st.sampled_from("abc"), REWARDS, REWARDS, st.integers(1, 6), st.sampled_from(["answer", "answer", "tokens"]),
        st.lists(st.sampled_from([0.0, 0.25, -0.125]), min_size=6, max_size=6),
    ), min_size=1, max_size=9,
)  # fmt: skip
OPTIONS = st.fixed_dictionaries({
    "advantage": st.sampled_from(["grpo", "dr_grpo", "rloo", "reinforce++", "best"]),
    "learn_from": st.sampled_from([0, 2, 3]), "overlong": st.sampled_from(["keep", "mask", "punish"]),
    "word_cost": st.sampled_from([0.0, 0.125]),
})  # fmt: skip


def episodes_of(rows):
    for number, (question, first, second, sampled, stop, credits) in enumerate(rows):
        ids, mask = (9, number, *range(sampled)), (0, 0) + (1,) * sampled
        given_credits = (0.0, 0.0, *credits[:sampled]) if any(credits[:sampled]) else ()
        yield Episode(
            f"{question}/{number}", question, ids, mask, (0.0, 0.0) + (-1.0,) * sampled, (), (), "", stop, "v000000",
            rewards={"first": first, "second": second}, reward=(first * 3 + second) / 4, credits=given_credits,
        )  # fmt: skip


class Known(Learner):
    """A policy of known log-probabilities; after its first step, of others."""

    def __init__(self, before_NT, after_NT, reference_NT, numbers):
        self.device, self.now_NT, self.after_NT = torch.device("cpu"), before_NT, after_NT
        self.reference_NT, self.numbers = reference_NT, torch.tensor(numbers)

    def of(self, values_NT, batch):
        return values_NT[self.numbers[batch.sequence_BT], batch.positions_BT]

    def score(self, batch, temperature):
        return TokenScores(self.of(self.now_NT, batch), torch.zeros(batch.ids_BT.shape))

    def score_frozen(self, batch, temperature):
        return self.score(batch, temperature).logprobs_BT.detach()

    def kept(self, name, batch, temperature):
        return self.of(self.reference_NT, batch)

    def step(self, learning_rate):
        self.now_NT = self.after_NT
        return 0.0


# By the book


def lessons(episodes, options, replaces_flat):
    """(advantage of each token, of those episodes that are kept), by episode."""
    means = {e.id: (e.rewards["first"] * 3 + e.rewards["second"]) / 4 for e in episodes}
    groups = [[e for e in episodes if e.question_id == name] for name in dict.fromkeys(e.question_id for e in episodes)]
    if replaces_flat:
        groups = [group for group in groups if len({means[e.id] for e in group}) > 1]
    masked = {e.id for e in episodes if options.overlong == "mask" and e.stop == "tokens"}
    if options.learn_from or options.advantage == "best":
        groups = [[e for e in group if e.id not in masked] for group in groups]
    if options.overlong == "punish":
        means = {e.id: means[e.id] - min(1, len(e.ids) / LIMIT) for e in episodes}
    groups = [chosen(group, means, options.learn_from) for group in groups if group]
    advantages = {}
    for group in groups:
        advantages |= dict(zip((e.id for e in group), compared([means[e.id] for e in group], options), strict=True))
    if options.advantage == "reinforce++" and len(advantages) > 1:
        spread = (sum(a * a for a in advantages.values()) / (len(advantages) - 1)) ** 0.5 + 1e-4
        advantages = {name: a / spread for name, a in advantages.items()}
    kept = [e for group in groups for e in group if e.id not in masked]
    worth = [c + options.word_cost for e in kept for c in e.credits if c and abs(c + options.word_cost) > 1e-9]
    size = max(0.05, mean(w * w for w in worth) ** 0.5) if worth else 0.05
    return {e.id: [advantages[e.id] + c / size for c in e.credits or [0.0] * len(e.ids)] for e in kept}


def chosen(group, means, count):
    """The `count` of widest rewards. Where several are equally wide, either will do, and is not tested."""
    ordered = sorted(group, key=lambda e: means[e.id])
    if not count or count >= len(group):
        return group
    ends = [ordered[:low] + ordered[len(ordered) - (count - low) :] for low in range(count + 1)]
    widths = [pvariance([means[e.id] for e in some]) for some in ends]
    assert max(widths) == pytest.approx(max(pvariance([means[e.id] for e in c]) for c in combinations(group, count)))
    assume(sum(width > max(widths) - 1e-9 for width in widths) == 1)
    picked = ends[widths.index(max(widths))]
    return [e for e in group if e in picked]


def compared(rewards, options):
    if len(set(rewards)) == 1:
        return [0.0] * len(rewards)
    if options.advantage == "best":
        return [float(n == rewards.index(max(rewards))) for n in range(len(rewards))]
    size, middle = len(rewards), mean(rewards)
    divisor = {"grpo": stdev(rewards) + 1e-4, "rloo": (size - 1) / size}.get(options.advantage, 1.0)
    return [(reward - middle) / divisor for reward in rewards]


@settings(max_examples=100, deadline=None)
@given(
    rows=BATCH, given_options=OPTIONS, aggregation=st.sampled_from(["token", "sequence", "constant"]),
    beta=st.sampled_from([0.0, 0.5]), replaces_flat=st.booleans(), share_prompts=st.booleans(),
    budget=st.integers(9, 40), seed=st.integers(0, 99),
)  # fmt: skip
def test_the_gradients_are_nanos(rows, given_options, aggregation, beta, replaces_flat, share_prompts, budget, seed):
    episodes, random = list(episodes_of(rows)), torch.Generator().manual_seed(seed)
    before_NT, after_NT, reference_NT = (-1 + torch.randn(len(rows), 8, generator=random) / 2 for _ in range(3))
    loss = LossOptions(aggregation=aggregation, beta=beta)
    options = UpdateOptions(loss, memory=MemoryOptions(budget), epochs=2, credit="words", **given_options)
    batch = prepare(episodes, options, {"first": 3.0, "second": 1.0}, LIMIT, replaces_flat=replaces_flat)
    numbers = [e.ids[1] for e in taught_episodes(batch, loss).episodes]
    learner = Known(before_NT.clone().requires_grad_(), after_NT.clone().requires_grad_(), reference_NT, numbers)
    update(learner, batch, UpdateContext(options, 1.0, share_prompts=share_prompts))

    taught = lessons(episodes, options, replaces_flat)
    kept = [e for e in episodes if e.id in taught]
    tokens = [(e, place) for e in kept for place in range(2, len(e.ids))]
    single = [
        replace(
            e, mask=tuple(int(n == place) for n in range(len(e.ids))), credits=(),
            logprobs=tuple(given * (n == place) for n, given in enumerate(e.logprobs)),
        )
        for e, place in tokens
    ]  # fmt: skip
    old = {n: before_NT[e.ids[1], 1 : len(e.ids)] for n, e in enumerate(single)}
    found_NT = after_NT.clone().requires_grad_()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nano_grpo, "token_logprobs", lambda _, ids, __: found_NT[ids[1], 1 : len(ids)])
        advantages_N = torch.tensor([taught[e.id][place] for e, place in tokens])
        nano_grpo.add_gradients(SimpleNamespace(device="cpu"), single, advantages_N, old, 1.0)
    expected_NT = torch.zeros(len(rows), 8) if found_NT.grad is None else found_NT.grad * len(tokens)
    for e, place in tokens:
        share = {"token": len(tokens), "sequence": len(kept) * (len(e.ids) - 2), "constant": len(kept) * 512}
        apart = (reference_NT - after_NT)[e.ids[1], place].exp()
        expected_NT[e.ids[1], place] = (expected_NT[e.ids[1], place] + beta * (1 - apart)) / share[aggregation]
    grad = learner.after_NT.grad
    torch.testing.assert_close(torch.zeros(len(rows), 8) if grad is None else grad, expected_NT, atol=1e-5, rtol=1e-4)
