"""Episodes come again from adapter and seed: those of our own loop, and those of an own agent."""

import asyncio
import re
from dataclasses import replace

import pytest

import grpo_rollout
from forage.agent.agent import Agent, BatchedSearch, turn_seed
from forage.agent.episode import Turn, read_episodes
from forage.agent.protocol import Protocol
from forage.engines.base import Sample
from forage.extras.gateway.own_agent import recorded
from forage.extras.gateway.replay import Again, Options, compared, difference, instead, main, side_by_side
from forage.store.fusion import Hit
from tests.extras.gateway.own_agents import Spelling, as_our_loop
from tests.refusals import refused
from tests.scripted_engine import QUESTION
from tests.tiny import make_tokenizer
from tests.tiny_training import tiny_options, train


@pytest.fixture(scope="module", params=["our loop", "an own agent"])
def run_dir(request, tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("replay") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Protocol, "stop_ids", (2, *range(300, 420)))
        if request.param == "an own agent":
            patch.setattr(grpo_rollout, "get_agent", lambda: recorded(as_our_loop))
        train(tiny_options(tiny, folder, max_steps=2, eval_every=0))
        yield folder


def replayed(capsys, *options, **more):
    main(Options(*options, **more))
    return capsys.readouterr().out


def test_tokens_come_again(run_dir, capsys):
    episodes = list(read_episodes(run_dir / "episodes" / "000001" / "trainer.jsonl"))
    longest = max(episodes, key=lambda episode: len(episode.turns))
    said = replayed(capsys, run_dir, longest.id)
    assert said.startswith(f"step 1, episode {longest.id}, adapter {longest.adapter}")
    rows = re.findall(r"^\| (\d) \| (\d+) \| (\d+) \| (\S+) \|$", said, re.MULTILINE)
    assert [int(tokens) for _, tokens, _, _ in rows] == [turn.end - turn.start for turn in longest.turns]
    assert len(rows) == 2
    assert all(tokens == same and float(apart) < 1e-4 for _, tokens, same, apart in rows)
    assert said.endswith("all tokens are the same\n")


def test_passages_stand_where_what_was_found_stood(tiny):
    """By hand: the first turn's tokens, then the passages in the tool's form, then a turn that is sampled again."""
    protocol = Protocol(make_tokenizer())
    call = '<tool_call>{"name": "search", "arguments": {"query": "gout"}}</tool_call>'
    was, _ = played_by_us(protocol, call, "<answer>Crystals.</answer>")
    other, engine = played_by_us(protocol, "<answer>Ice.</answer>", was=was)
    first = was.turns[0]
    results = protocol.encode(
        "\n<|im_start|>user\n<tool_response>\n[1] Gout: Rest and ice.\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert other.ids[: first.end + len(results)] == (*was.ids[: first.end], *results)
    assert (other.mask[: first.end], other.logprobs[: first.end]) == (was.mask[: first.end], was.logprobs[: first.end])
    assert (other.answer, [r.seed for r in engine.requests]) == ("Ice.", [turn_seed(7, "q1/0", 1)])
    with refused("has one turn, after which nothing was read"):
        played_by_us(protocol, was=replace(was, turns=was.turns[:1]))
    assert side_by_side(protocol, was, other).splitlines()[2:] == [
        f"| 1 | {call} | {call} |", "| 2 | <answer>Crystals.</answer> | <answer>Ice.</answer> |"
    ]  # fmt: skip


def played_by_us(protocol, *says, was=None):
    """(episode, engine) of our own loop: as it was, or with another passage after its first turn."""
    hit = Hit("d", "d", "Gout", "Rest and ice." if was else "Crystals in a joint.", 0.0, 1)
    engine = Spelling(protocol, *says)
    agent = Agent(engine, protocol, BatchedSearch(lambda queries: [[hit]] * len(queries), in_line=True))
    return asyncio.run(instead(agent, was, 7) if was else agent.play(QUESTION, 0, 7)), engine


def test_where_a_turn_differs_by_hand(run_dir):
    episode = next(read_episodes(run_dir / "episodes" / "000001" / "trainer.jsonl"))
    made = replace(episode, ids=(1, 5, 6, 7), mask=(0, 1, 1, 1), logprobs=(0.0, -1.0, -2.0, -3.0), credits=())
    turn = Turn(1, 4)
    assert compared(turn, made, 1, Sample((5, 6, 8), (-1.0, -2.5, -3.0), "stop")) == Again(turn, 2, 3, 0.5)
    assert compared(turn, made, 1, Sample((5, 6), (-1.0, -2.0), "length")) == Again(turn, 2, 3, 0.0)
    turns = [Again(turn, 3, 3, 0.9), Again(turn, 2, 3, 0.01), Again(turn, 0, 3, 0.0)]
    assert difference(turns).startswith("turn 2 differs from its token 3 on, which rounding may")
    assert difference([Again(turn, 2, 3, 0.5)]).startswith("turn 1 differs from its token 3 on, by more")
