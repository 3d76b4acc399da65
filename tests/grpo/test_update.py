"""An update that runs out of memory goes on where it was: no epoch is repeated, whatever the micro-batches become."""

from dataclasses import replace

import pytest
import torch

from forage.agent.episode import Episode, Segment, read_episodes
from forage.grpo.learner import REFERENCE, Learner
from forage.grpo.losses import ScoredBatch, count_totals, loss_terms, policy_loss
from forage.grpo.options import UpdateOptions
from forage.grpo.update import UpdateContext, prepare, scaled_credits, taught_episodes, update
from forage.policy.manifest import read_policy_manifest
from forage.policy.packing import pack, values_like
from forage.policy.policy import load_policy
from tests.refusals import refused
from tests.tiny_training import tiny_options, train

LARGE, SMALL = 440, 220


@pytest.fixture(scope="module")
def episodes(tiny, tmp_path_factory):
    """A real step's, rewarded so that all of them have a gradient."""
    run_dir = tmp_path_factory.mktemp("episodes") / "run"
    train(tiny_options(tiny, run_dir, max_steps=1, eval_every=0))
    played = read_episodes(run_dir / "episodes" / "000000" / "trainer.jsonl")
    return [
        replace(episode, reward=reward, rewards=dict.fromkeys(episode.rewards, reward))
        for episode, reward in zip(played, (0.0, 0.1, 0.3, 0.9) * 3, strict=True)
    ]


class Watched(Learner):
    """A learner that notes what it computes and runs out of memory when told."""

    def __init__(self, tiny, short_in=None):
        super().__init__(load_policy(read_policy_manifest(tiny / "policy")))
        self.short_in, self.updates, self.sizes = short_in, 0, [[]]

    def score(self, batch, temperature):
        if self.updates == self.short_in and len(self.sizes[-1]) == 1 and batch.tokens > SMALL:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        if torch.is_grad_enabled():  # not what is scored once more after the update
            self.sizes[-1].append(batch.tokens)
        return super().score(batch, temperature)

    def step(self, learning_rate):
        self.updates += 1
        self.sizes.append([])
        return super().step(learning_rate)

    def weights_now(self):
        return {name: weight.detach().clone() for name, weight in self.policy.named_parameters()}


def updated(learner, tiny, episodes, budget, epochs=1):
    options = tiny_options(tiny, tiny / "unused", token_budget=budget, epochs=epochs).update
    figures = update(learner, prepare(episodes, options), UpdateContext(options, 1.0, share_prompts=False))
    return figures, learner.weights_now()


def test_the_second_epoch_compares_with_the_log_probabilities_of_the_first(tiny, episodes):
    """Bit for bit, with another way to keep them: by hand, epoch 1 with 440 tokens, epoch 2 with 220."""
    learner = Watched(tiny, short_in=1)
    _, weights = updated(learner, tiny, episodes, LARGE, epochs=2)
    assert learner.sizes[1][1:] == [batch.tokens for batch in pack(episodes, SMALL)]

    by_hand, totals = Learner(load_policy(read_policy_manifest(tiny / "policy"))), count_totals(episodes)
    options = tiny_options(tiny, tiny / "unused").update
    advantages_N = prepare(episodes, options).advantages_N
    before = {}  # by episode and position
    for budget in (LARGE, SMALL):
        for part in pack(episodes, budget):
            scores = by_hand.score(part, 1.0)
            places = list(zip(part.sequence_BT.flatten().tolist(), part.positions_BT.flatten().tolist(), strict=True))
            if budget == LARGE:
                sampled = part.sampled_BT.flatten().tolist()
                values = zip(places, scores.logprobs_BT.flatten().tolist(), sampled, strict=True)
                before |= {place: value for place, value, counts in values if counts}
            old_BT = torch.tensor([before.get(place, 0.0) for place in places]).view(part.ids_BT.shape)
            sampler_BT = values_like(part, [episode.logprobs for episode in episodes])
            scored = ScoredBatch(part, advantages_N, scores.logprobs_BT, old_BT, sampler_BT)
            policy_loss(loss_terms(scored, options.loss, totals), options.loss).backward()
        by_hand.step(0.01)
    for name, weight in by_hand.policy.named_parameters():
        assert torch.equal(weight, weights[name]), name


# What an update did to the likelihood of what it rewarded


@pytest.mark.parametrize("share_prompts", [False, True])
def test_the_likelihood_gained_is_that_of_sampled_tokens_of_better_episodes(tiny, episodes, share_prompts):
    """Of 12 episodes an eighth, so 2, of the 3 above their group's mean: the last ones of the first two groups.

    By hand: each of them by itself, before the update and after it.
    """
    learner = Learner(load_policy(read_policy_manifest(tiny / "policy")))
    options = tiny_options(tiny, tiny / "unused", token_budget=LARGE, learning_rate=0.003).update
    context = UpdateContext(options, 1.0, share_prompts=share_prompts)
    before = [sampled_logprobs(learner, episode) for episode in episodes]
    found = update(learner, prepare(episodes, options), context)["likelihood_gain"]
    gains = [sampled_logprobs(learner, e) - logprobs for e, logprobs in zip(episodes, before, strict=True)]
    assert found == pytest.approx(torch.cat([gains[3], gains[7]]).mean().item(), abs=1e-5)
    assert found > 0.01  # such an update makes them likelier, and it is another number for all, or for the worst
    assert torch.cat([gains[0], gains[4]]).mean() < 0
    assert abs(torch.cat(gains).mean() - found) > 0.01

    alike = [replace(episode, rewards={"even": 0.5}) for episode in episodes]  # nothing is learnt
    assert "likelihood_gain" not in update(learner, prepare(alike, options), context)


def sampled_logprobs(learner, episode):
    [part] = pack([episode], 10_000)
    return learner.score_frozen(part, 1.0)[part.sampled_BT > 0]


# Credits of single tokens


def test_credits_by_hand():
    assert scaled_credits([(0.0, 3.0, 4.0), ()]) == [close((0, 3 / 12.5**0.5, 4 / 12.5**0.5)), ()]
    assert scaled_credits([(0.0, 0.0), ()]) == []
    assert scaled_credits([(1e-12, 0.0)]) == [close((2e-11, 0))]  # worth nothing: over .05, not over itself


def test_what_words_cost_is_not_scaled_up_where_they_are_worth_little():
    """Words worth .002 that cost .005: -.003 each, over .05 and not over .003, which would be an advantage of -1."""
    assert scaled_credits([(0.0, -0.003, -0.003)], 0.005) == [close((0, -0.06, -0.06))]
    # Worth .3, .4 and, said again, nothing: over the root of (.09 + .16) / 2 = .354.
    assert scaled_credits([(0.295, 0.395, -0.005)], 0.005) == [close([v / 0.125**0.5 for v in (0.295, 0.395, -0.005)])]


def close(values):
    return pytest.approx(values, abs=1e-6)


def test_a_lowered_budget_is_remembered(tiny, episodes, capsys):
    """The next step runs out of memory no more: it begins with what fitted, and is what that budget alone gives."""
    learner, other = Watched(tiny, short_in=0), Watched(tiny)
    for _ in range(2):
        _, weights = updated(learner, tiny, episodes, LARGE)
        _, others = updated(other, tiny, episodes, SMALL)
    assert learner.sizes[1] == [batch.tokens for batch in pack(episodes, SMALL)]
    told = capsys.readouterr().out
    assert told.count("out of memory") == told.count("continuing with micro-batches of 220 tokens, in later steps") == 1
    assert learner.lowered_budget == SMALL
    assert all(torch.equal(weight, others[name]) for name, weight in weights.items())
    updated(learner, tiny, episodes, 120)  # a lower one that is asked for stays
    assert learner.sizes[2] == [batch.tokens for batch in pack(episodes, 120)]
    assert Watched(tiny).lowered_budget is None  # another run, or the same one resumed


def test_out_of_memory_in_the_optimizer_stops_the_run(tiny, episodes, monkeypatch):
    """Half of the weights may have been changed, so nothing can be repeated; the checkpoint has them all."""

    def short(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    learner = Watched(tiny)
    monkeypatch.setattr(learner, "step", short)
    with refused(r"out of memory in the optimizer.*--sharding"):
        updated(learner, tiny, episodes, LARGE)


# The reference


def test_the_reference_is_scored_without_dropout(tiny, episodes):
    learner = learner_of_dropout(tiny)
    [batch] = pack(episodes[:3], 10_000)
    first, second = (learner.kept(REFERENCE, batch, 1.0) for _ in range(2))
    assert torch.equal(first, second)
    assert learner.policy.training  # again
    with torch.no_grad():  # a fresh adapter is the reference: in training, dropout takes the two apart
        assert not torch.equal(learner.score(batch, 1.0).logprobs_BT, first)
        learner.policy.eval()
        torch.testing.assert_close(learner.score(batch, 1.0).logprobs_BT, first)


def learner_of_dropout(tiny):
    """Half of what goes into each adapter is dropped, and a first update has made them count."""
    policy = load_policy(read_policy_manifest(tiny / "policy"))
    torch.manual_seed(1)
    for name, weight in policy.named_parameters():
        if "lora_B" in name:
            weight.data.normal_(std=0.5)
    learner = Learner(policy.train())
    learner.keep(REFERENCE, tiny / "policy" / "adapters" / "v000000")
    for module in policy.modules():
        if hasattr(module, "lora_dropout"):
            module.lora_dropout["default"] = module.lora_dropout["reference"] = torch.nn.Dropout(0.5)
            module.lora_A["reference"].load_state_dict(module.lora_A["default"].state_dict())
            module.lora_B["reference"].load_state_dict(module.lora_B["default"].state_dict())
    return learner


def test_all_segments_of_an_episode_are_learnt_from_with_its_advantage():
    """Rewards 1 and 0 in a group: advantages of +1/s and -1/s, and the better one has two segments."""
    other = Segment((5, 6, 7), (0, 1, 1), (0.0, -0.1, -0.2))
    better = Episode("q/0", "q", (5, 8), (0, 1), (0.0, -0.3), (), (), "", "answer", "v000001", earlier=(other,))
    worse = replace(better, id="q/1", ids=(5, 9, 9, 9), mask=(0, 1, 1, 1), logprobs=(0.0,) * 4, earlier=())
    failed = replace(better, id="q/2", stop="agent")
    rewarded = [replace(each, rewards={"r": r}) for each, r in ((better, 1.0), (worse, 0.0), (failed, 0.5))]
    batch = prepare(rewarded, UpdateOptions())
    assert (len(batch.episodes), batch.failed) == (2, 1)
    with refused(r"the engine didn't finish 1 episodes, such as q/2 \(lost\)"):
        prepare([*rewarded[:2], replace(failed, stop="engine", cause="lost")], UpdateOptions())
    taught = taught_episodes(batch, UpdateOptions().loss)
    assert [each.ids for each in taught.episodes] == [(5, 6, 7), (5, 8), (5, 9, 9, 9)]
    first, second, third = taught.advantages_N.tolist()
    assert first == second == -third > 0
    assert taught.totals == (2 + 1 + 3, 3)
    assert taught.episodes[0].logprobs == (0.0, -0.1, -0.2)
