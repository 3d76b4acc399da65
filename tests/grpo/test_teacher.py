"""A teacher's marks: whose tokens they are, where they stand, what gradient they make, and that a run keeps its own."""

import shutil
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

import grpo_rollout
from forage.agent.episode import read_episodes
from forage.grpo.learner import Learner
from forage.grpo.teacher import open_teacher
from forage.grpo.update import UpdateContext, prepare, update
from forage.policy.manifest import read_policy_manifest, write_policy_manifest
from forage.policy.packing import pack, pack_trees
from forage.policy.policy import load_policy
from nano_grpo import token_logprobs
from tests.factories import QUESTION
from tests.options import with_options
from tests.refusals import refused
from tests.tiny_training import adapter_bytes, stats_of, tiny_options, train

WEIGHT, CAP = 0.7, 0.02  # a cap that some of the tiny model's marks meet


@pytest.fixture(scope="module")
def played(tiny, tmp_path_factory):
    """(a finished run, whose last adapter is a teacher; its first step's episodes, some of whose groups are flat)."""
    run_dir = tmp_path_factory.mktemp("teacher") / "run"
    train(tiny_options(tiny, run_dir, max_steps=2, eval_every=0))
    episodes = list(read_episodes(run_dir / "episodes" / "000000" / "trainer.jsonl"))
    rewards = [0, 0.4, 1, 1] + [0.5] * 8
    return run_dir, [replace(e, reward=r, rewards={"even": r}) for e, r in zip(episodes, rewards, strict=True)]


def opened(tiny, name, learner):
    questions = [replace(QUESTION, id=f"q{number}") for number in range(12)]
    return asked_of(tiny, name, questions, learner)


def asked_of(tiny, name, questions, learner, **more):
    rollout = with_options(tiny_options(tiny, tiny / "unused").rollout, **more)
    settings = rollout.search.settle()
    return open_teacher(name, rollout, read_policy_manifest(tiny / "policy"), settings, questions, learner)


def learner_of(tiny):
    return Learner(load_policy(read_policy_manifest(tiny / "policy")).train())


@pytest.mark.parametrize("advantage", ["grpo", "none"])
@pytest.mark.parametrize("share_prompts", [False, True])
def test_an_adapters_marks_have_the_gradient_of_nanos_few_lines(tiny, played, advantage, share_prompts):
    run_dir, episodes = played
    options = tiny_options(
        tiny, tiny / "unused", advantage=advantage, teacher=str(run_dir), teacher_weight=WEIGHT, teacher_cap=CAP
    ).update
    learner = learner_of(tiny)
    batch, teacher = prepare(episodes, options), opened(tiny, str(run_dir), learner)
    figures = update(learner, batch, UpdateContext(options, 1.0, share_prompts, teacher=teacher))
    assert figures["taught"] == len(episodes)  # also of groups that earned the same
    assert figures["teacher_kl"] > 0

    policy = load_policy(read_policy_manifest(tiny / "policy")).train()
    policy.load_adapter(str(run_dir / "adapters" / "v000002"), adapter_name="other")
    marked, tokens = set(), sum(sum(episode.mask[1:]) for episode in episodes)
    for episode, advantage_of in zip(episodes, batch.advantages_N.tolist(), strict=True):
        with torch.no_grad():
            policy.set_adapter("other")
            teachers_T = token_logprobs(policy, episode.ids, 1.0)
            policy.set_adapter("default")
        logprobs_T = token_logprobs(policy, episode.ids, 1.0)
        marks_T = (teachers_T - logprobs_T.detach()).clamp(-CAP, CAP)
        marked |= set(marks_T.abs().tolist())
        mask_T, sampler_T = torch.tensor([episode.mask[1:], episode.logprobs[1:]])
        correction_T = (logprobs_T.detach() - sampler_T).exp().clamp(max=2.0)
        (-(advantage_of + WEIGHT * marks_T) * correction_T * mask_T * logprobs_T / tokens).sum().backward()
    assert 0 < sum(mark < CAP * 0.999 for mark in marked) < len(marked)
    check_step(policy, learner, figures)


@pytest.mark.parametrize("packing", [pack, pack_trees])
def test_a_hint_is_read_by_the_teacher_alone_and_its_marks_stand_at_their_tokens(
    tiny, tiny_protocol, played, packing, monkeypatch
):
    """Each episode by itself, with the words put into its prompt by hand."""
    monkeypatch.setattr(grpo_rollout, "get_hints", lambda questions: [f"say {q.id}" for q in questions])
    run_dir, episodes = played
    asked = {episode.question_id: tiny_protocol.question_in(episode.ids[: prompt_of(episode)]) for episode in episodes}
    learner = learner_of(tiny)
    questions = [replace(QUESTION, id=name, question=text) for name, text in asked.items()]
    teacher = asked_of(tiny, "hint", questions, learner)
    marks_NT = teacher.logprobs(learner, episodes, 1.0, lambda read: packing(read, 300))
    plain_NT = asked_of(tiny, str(run_dir / "adapters" / "v000000"), questions, learner)
    plain_NT = plain_NT.logprobs(learner, episodes, 1.0, lambda read: packing(read, 300))
    for number, episode in enumerate(episodes):
        start = prompt_of(episode)
        told = tiny_protocol.prompt(f"{asked[episode.question_id]}\n\nsay {episode.question_id}")
        assert len(told) > start
        with torch.no_grad():
            wanted_T = token_logprobs(learner.policy.eval(), (*told, *episode.ids[start:]), 1.0)[len(told) - 1 :]
            own_T = token_logprobs(learner.policy, episode.ids, 1.0)[start - 1 :]
        sampled_T = torch.tensor(episode.mask[start:]) == 1
        for found_NT, by_hand_T in ((marks_NT, wanted_T), (plain_NT, own_T)):
            found_T = found_NT[number, start : len(episode.ids)]
            torch.testing.assert_close(found_T[sampled_T], by_hand_T[sampled_T], atol=1e-5, rtol=1e-5)
            assert not found_T[~sampled_T].any()
        assert (wanted_T - own_T).abs().max() > 1e-3


def check_step(policy, learner, figures):
    """By the gradients that the policy has here, it comes to the learner's weights, from as large a norm."""
    weights = [weight for name, weight in policy.named_parameters() if weight.requires_grad and "other" not in name]
    norm = torch.nn.utils.clip_grad_norm_(weights, 1.0).item()
    assert figures["grad_norm"] == pytest.approx(norm, rel=1e-4)
    torch.optim.AdamW(weights, 0.01, weight_decay=0.0).step()
    roads = [weight for name, weight in learner.policy.named_parameters() if "lora" in name and "default" in name]
    for weight, road in zip(weights, roads, strict=True):
        assert (weight - road).abs().mean() < 1e-5


def prompt_of(episode):
    return episode.turns[0].start


@pytest.mark.parametrize("name", ["hint", "adapter"])
@pytest.mark.parametrize("share_prompts", [False, True])
def test_all_of_the_vocabulary_is_taught_by_its_divergence(tiny, tiny_protocol, played, name, share_prompts):
    """Against the whole distributions of nano's model, an episode at a time, whose hints are of different lengths."""
    run_dir, episodes = played
    told = {f"q{number}": "say it " * number for number in range(12)}
    with patch.object(grpo_rollout, "get_hints", lambda questions: [told[q.id] for q in questions]):
        asked = {e.question_id: tiny_protocol.question_in(e.ids[: prompt_of(e)]) for e in episodes}
        questions = [replace(QUESTION, id=each, question=text) for each, text in asked.items()]
        named = {"hint": "hint", "adapter": str(run_dir)}[name]
        learner = learner_of(tiny)
        teacher = asked_of(tiny, named, questions, learner)
    options = tiny_options(
        tiny, tiny / "unused", advantage="none", teacher=named, teach="all", teacher_weight=WEIGHT
    ).update
    context = UpdateContext(options, 0.7, share_prompts, teacher=teacher)
    figures = update(learner, prepare(episodes, options), context)

    policy = load_policy(read_policy_manifest(tiny / "policy")).train()
    policy.load_adapter(str(run_dir / "adapters" / "v000002"), adapter_name="other")
    divergence, tokens = 0.0, sum(sum(episode.mask[1:]) for episode in episodes)
    for episode in episodes:
        start, question = prompt_of(episode), asked[episode.question_id]
        hinted = tiny_protocol.prompt(f"{question}\n\n{told[episode.question_id]}")
        prompt = hinted if name == "hint" else episode.ids[:start]
        sampled_T = torch.tensor(episode.mask[start:]) == 1
        with torch.no_grad():
            policy.set_adapter("default" if name == "hint" else "other")
            theirs_TV = distributions(policy, prompt, episode.ids[start:])[sampled_T]
            policy.set_adapter("default")
        own_TV = distributions(policy, episode.ids[:start], episode.ids[start:])[sampled_T]
        kl = torch.nn.functional.kl_div(own_TV, theirs_TV, reduction="sum", log_target=True)
        (WEIGHT * kl / tokens).backward()
        divergence += kl.item()
    assert figures["teacher_kl"] == pytest.approx(divergence / tokens, rel=1e-4)
    check_step(policy, learner, figures)


def distributions(policy, prompt, rest):
    """The log-probabilities of the whole vocabulary at each token after the prompt."""
    logits_TV = policy(input_ids=torch.tensor([[*prompt, *rest]])).logits[0, len(prompt) - 1 : -1]
    return (logits_TV.float() / 0.7).log_softmax(dim=1)


@pytest.mark.parametrize(("teacher", "teach"), [("hint", "sampled"), ("adapter", "sampled"), ("hint", "all")])
def test_a_killed_run_with_a_teacher_ends_as_an_undisturbed_one(tiny, tmp_path, played, teacher, teach):
    teaching = {"teacher": "hint" if teacher == "hint" else str(played[0]), "teach": teach}
    more = {**teaching, "advantage": "none", "eval_every": 0}
    train(tiny_options(tiny, tmp_path / "whole", **more))
    train(tiny_options(tiny, tmp_path / "parts", max_steps=2, **more))
    train(tiny_options(tiny, tmp_path / "parts", **more))
    assert stats_of(tmp_path / "whole") == stats_of(tmp_path / "parts")
    assert adapter_bytes(tmp_path / "whole", 3) == adapter_bytes(tmp_path / "parts", 3)
    assert adapter_bytes(tmp_path / "whole", 3) != adapter_bytes(tmp_path / "whole", 0)


def test_teachers_that_cannot_be_meant_are_refused(tiny, tmp_path, played, monkeypatch):
    with refused(r"--advantage none leaves nothing to learn from; add --teacher"):
        train(tiny_options(tiny, tmp_path / "run", advantage="none"))
    with refused(r"--teach all needs a --teacher of this process: a policy, a run or hint"):
        train(tiny_options(tiny, tmp_path / "run", teacher="http://there", teach="all"))
    with refused(r"--teach all works in one process without --sharding"):
        train(tiny_options(tiny, tmp_path / "run", teacher="hint", teach="all", sharding="zero2"))
    other = shutil.copytree(played[0], tmp_path / "other")
    write_policy_manifest(replace(read_policy_manifest(other), full_base="elsewhere", full_base_digest="0"), other)
    learner = learner_of(tiny)
    with refused(r"was made from elsewhere, not from the policy's"):
        opened(tiny, str(other), learner)
    with refused(r"none has no model.json"):
        opened(tiny, str(tmp_path / "none"), learner)
    monkeypatch.setattr(grpo_rollout, "get_hints", lambda questions: ["one"])
    with refused(r"get_hints must return a text for each of the 12 questions"):
        opened(tiny, "hint", learner)


def test_a_run_goes_on_with_its_own_teacher_alone(tiny, tmp_path, played):
    """The teacher's newest adapter is another by then."""
    run_dir = shutil.copytree(played[0], tmp_path / "teacher")
    more = {"teacher": str(run_dir), "eval_every": 0}
    train(tiny_options(tiny, tmp_path / "run", max_steps=1, **more))
    train(tiny_options(tiny, run_dir, eval_every=0))
    with refused(r"was begun with another teacher: give that"):
        train(tiny_options(tiny, tmp_path / "run", **more))
