"""The adapter is swapped while episodes are being played: each is sampled to its end by the adapter it names."""

import asyncio

import numpy as np
import pytest
from peft import LoraConfig, get_peft_model
from safetensors.numpy import save_file

from forage.agent.agent import Agent, BatchedSearch
from forage.agent.options import AgentSettings
from forage.data.records import Question
from forage.engines.local import LocalEngine
from tests.misbehaving_vllm import with_engine
from tests.scripted_engine import search_many
from tests.tiny import make_model

QUESTION = Question("q", "What is gout?", "")
SETTINGS = AgentSettings(max_turns=2, max_turn_tokens=4)


@pytest.fixture
def adapters(tmp_path):
    """Two adapters of other weights under the names of two runs."""
    for number in (1, 2):
        (tmp_path / f"v{number}").mkdir()
        save_file(
            {"lora_B": np.full(4, number / 1e6, np.float32)}, tmp_path / f"v{number}" / "adapter_model.safetensors"
        )
    return tmp_path


async def played_around_a_swap(engine, protocol, swap):
    """An episode of two turns, with a swap between them, as while it waits for its search."""
    agent = Agent(engine, protocol, BatchedSearch(search_many), SETTINGS)
    episode = agent.begin(QUESTION, "q/0")
    await agent.play_turn(episode, 0)
    await swap()
    if not episode.stop:
        await agent.play_turn(episode, 0)
    return agent.finish(episode)


def test_an_episode_is_played_to_its_end_with_the_adapter_it_began_with(fake, adapters, tiny_protocol):
    async def act(engine):
        await engine.load_adapter("run-v000001", adapters / "v1")
        swapped = await played_around_a_swap(
            engine, tiny_protocol, lambda: engine.load_adapter("run-v000002", adapters / "v2")
        )
        return swapped, await Agent(engine, tiny_protocol, BatchedSearch(search_many), SETTINGS).play(QUESTION, 1)

    before, after = with_engine(act, fake)
    assert (before.adapter, after.adapter) == ("run-v000001", "run-v000002")
    assert [len(before.turns), len(after.turns)] == [2, 2]
    models = [body["model"].rpartition("-")[0] for body in fake.bodies]
    # The server had unloaded the first one, so the second turn was answered once it was loaded again.
    assert models == ["run-v000001"] * 3 + ["run-v000002"] * 2


def test_in_this_process_an_episode_that_lost_its_adapter_is_not_kept(tiny_protocol, tmp_path):
    config = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    get_peft_model(make_model(), config).save_pretrained(tmp_path)
    engine = LocalEngine(make_model(), 2)
    agent = Agent(engine, tiny_protocol, BatchedSearch(search_many), AgentSettings(max_turns=3, max_turn_tokens=64))

    async def until_it_waits():
        """A turn that ends by itself, so that another follows."""
        for number in range(200):
            episode = agent.begin(QUESTION, f"q/{number}")
            await agent.play_turn(episode, 0)
            if not episode.stop:
                return episode
        raise AssertionError("every turn ran to its limit")

    async def run():
        episode = await until_it_waits()
        await engine.load_adapter("run-v000001", tmp_path)
        await agent.play_turn(episode, 0)
        return agent.finish(episode)

    episode = asyncio.run(run())
    assert (episode.stop, episode.adapter, len(episode.turns)) == ("engine", "base", 1)
    assert "began with adapter base, not run-v000001" in episode.cause
