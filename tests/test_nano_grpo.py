"""nano_grpo.py trains, and its gradients are the road's: two implementations of GRPO that share no line of the loss."""

import re
import shutil

import pytest
import torch

import nano_grpo
from forage.agent.episode import Episode, Turn, read_episodes, write_episodes
from forage.agent.options import AgentSettings, read_agent, write_agent
from forage.agent.protocol import write_answer, write_call
from forage.data.records import read_questions
from forage.grpo.learner import Learner
from forage.grpo.update import UpdateContext, prepare, update
from forage.policy.adapters import versions
from forage.policy.manifest import read_policy_manifest
from forage.policy.policy import load_policy
from forage.store.document_store import DocumentStore
from tests.tiny import VOCABULARY, rewards_of_tokens
from tests.tiny_training import tiny_options

TEMPERATURE = 0.8
SETTINGS = AgentSettings(mode="sparse", max_turn_tokens=12, max_turns=2)


def test_trains_and_leaves_a_policy(tiny, tmp_path, capsys):
    folder, warm = tmp_path / "nano", shutil.copytree(tiny / "policy", tmp_path / "warm")
    write_agent(SETTINGS, warm)
    options = nano_grpo.Options(tiny / "data", warm, folder, max_steps=2, batch_size=2, num_rollouts=4)
    nano_grpo.main(options, rewards_of_tokens)
    assert re.search(r"step 1: even 0\.\d+  low 0\.\d+  gradient \d\.\d+", capsys.readouterr().out)
    assert versions(folder) == [2]
    assert read_agent(folder) == SETTINGS
    policy = load_policy(read_policy_manifest(warm))
    for episode in read_episodes(folder / "episodes_000000.jsonl"):
        assert episode.rewards.keys() == {"even", "low"}
        assert sum(episode.mask) == sum(turn.end - turn.start for turn in episode.turns)
        sampled_T = torch.tensor(episode.mask[1:]) == 1
        with torch.no_grad():  # what generate says of its tokens is what the policy gives them
            logprobs_T = nano_grpo.token_logprobs(policy, episode.ids, 1.0)
        torch.testing.assert_close(logprobs_T[sampled_T], torch.tensor(episode.logprobs[1:])[sampled_T])


def test_what_a_search_finds_is_read_and_has_no_gradient(tiny, tiny_protocol, monkeypatch):
    """Two turns as a policy writes them that has learnt to search."""
    turns = [tiny_protocol.turn_ids(text) for text in (write_call("remedy 3"), write_answer("Rest."))]
    sampled = iter(turns)
    monkeypatch.setattr(nano_grpo, "sample_turns", lambda player, rows: [(ids := next(sampled), [-1.0] * len(ids))])
    player = nano_grpo.Player(None, tiny_protocol, DocumentStore.open(tiny / "data" / "store"), SETTINGS, 1.0)
    question = read_questions(tiny / "data" / "train.jsonl")[3]
    [episode] = nano_grpo.play(player, question, 1)
    assert (episode.stop, episode.answer, episode.well_formed) == ("answer", "Rest.", True)
    assert episode.hits[0] == "d3#0"
    given = [token for token, sampled in zip(episode.ids, episode.mask, strict=True) if not sampled]
    assert [episode.ids[turn.start : turn.end] for turn in episode.turns] == list(map(tuple, turns))
    assert "Disease 3 is mended" in tiny_protocol.tokenizer.decode(given)


# Beside the road


def stored_episodes():
    """Three questions with four episodes of two turns, a result between them; those of "flat" earn the same."""
    random = torch.Generator().manual_seed(5)
    rewards = {"one": (0.1, 0.9, 0.3, 0.6), "flat": (0.1, 0.1, 0.1, 0.1), "two": (1.0, 0.0, 0.0, 0.0)}
    for question, earned in rewards.items():
        prompt = torch.randint(3, VOCABULARY, (7,), generator=random).tolist()
        for number, reward in enumerate(earned):
            first, result, second = 3 + number, 6, 4
            ids = [*prompt, *torch.randint(3, VOCABULARY, (first + result + second,), generator=random).tolist()]
            mask = (0,) * len(prompt) + (1,) * first + (0,) * result + (1,) * second
            drawn = torch.randn(len(ids), generator=random).tolist()
            logprobs = tuple(-9 + 3 * value if sampled else 0.0 for value, sampled in zip(drawn, mask, strict=True))
            turns = (Turn(7, 7 + first), Turn(len(ids) - second, len(ids)))
            yield Episode(
                f"{question}/{number}", question, tuple(ids), mask, logprobs, turns, (), "", "answer", "base",
                rewards={"mrr": reward, "format": reward / 2}, reward=reward * 0.75,
            )  # fmt: skip


@pytest.mark.parametrize("share_prompts", [False, True])
def test_a_step_is_the_roads(tiny, tmp_path, share_prompts):
    """Two epochs, in the second of which the policy has moved, so that ratios are not 1: gradients, clipping, AdamW."""
    write_episodes(tmp_path / "episodes.jsonl", stored_episodes())
    episodes = list(read_episodes(tmp_path / "episodes.jsonl"))
    policies = [load_policy(read_policy_manifest(tiny / "policy")) for _ in range(2)]
    options = tiny_options(tiny, tmp_path, token_budget=80, epochs=2).update
    batch = prepare(episodes, options)
    context = UpdateContext(options, TEMPERATURE, share_prompts=share_prompts)
    figures = update(Learner(policies[0].train()), batch, context)
    assert min(figures["clip_low_share"], figures["clip_high_share"], figures["corrected_share"]) > 0
    assert figures["micro_batches"] > 1

    trained = [weight for weight in policies[1].parameters() if weight.requires_grad]
    advantages_N = nano_grpo.advantages([e.reward for e in episodes], [e.question_id for e in episodes])
    torch.testing.assert_close(advantages_N, batch.advantages_N)
    assert advantages_N[4:8].tolist() == [0.0] * 4
    optimizer = torch.optim.AdamW(trained, 0.01, weight_decay=0.0)
    mine = nano_grpo.Options(temperature=TEMPERATURE, epochs=2)
    norm = nano_grpo.update(policies[1], optimizer, episodes, advantages_N, mine)
    assert norm == pytest.approx(figures["grad_norm"], rel=1e-4)
    for weight, roads in zip(policies[1].parameters(), policies[0].parameters(), strict=True):
        assert (weight - roads).abs().mean() < 1e-5
