"""A vLLM server that fails or lies: each request is asked again until the answer is right, or ends in one line."""

import asyncio
import math
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import save_file

from forage.agent.agent import Agent, BatchedSearch
from forage.agent.options import AgentSettings
from forage.data.records import Question
from forage.engines.base import EngineError
from forage.engines.vllm import Wanted
from forage.errors import UserError
from forage.policy.manifest import PolicyManifest
from tests.misbehaving_vllm import REQUEST, RIGHT, with_engine
from tests.refusals import refused
from tests.scripted_engine import search_many


def sample(fake, wanted=None, **later):
    """`later` are options of the request alone: however slow this machine is, the server is found to be there."""

    async def act(engine):
        engine.options = replace(engine.options, **later)
        return await engine.generate(REQUEST)

    return with_engine(act, fake, wanted=wanted)


WANTED = Wanted(PolicyManifest(None, "base", "base", False), 512, 2048)


# What passes: the same request is asked again, and the answer is the right one.

TROUBLE = {
    "errors": [500, 502, 503, 429],
    "cut off, and a proxy's page with status 200": ["cut", "html"],
    "hangs half-way": ["hang"],
    "a byte at a time, without end": ["drip"],
    "shuts down in the middle": [{"finish_reason": "abort"}, {"finish_reason": None}, {"finish_reason": "error"}],
}


@pytest.mark.parametrize("plan", TROUBLE.values(), ids=TROUBLE)
def test_trouble_that_passes_is_waited_out(fake, plan):
    fake.plan = list(plan)
    stuck = {"hang", "drip"} & set(map(str, plan))
    assert sample(fake, timeout=0.3 if stuck else 60) == RIGHT
    # A slow machine may time out an answer that was on its way, too.
    assert len(fake.bodies) > len(plan) if stuck else len(fake.bodies) == len(plan) + 1
    assert all(body == fake.bodies[0] for body in fake.bodies)


@pytest.mark.parametrize("forever", ["html", "drip"])
def test_trouble_that_does_not_pass_ends_in_one_line(fake, forever):
    fake.plan = [forever] * 1000
    with pytest.raises(EngineError, match=r"no vLLM server answered in 0\.5 s") as error:
        sample(fake, patience=0.5, timeout=0.2)
    assert "\n" not in str(error.value)


# What is wrong in itself: no second attempt could mend it, and no episode is made of it.

LIES = {
    "log-probabilities missing": ({"logprobs": None}, "returned no token log-probabilities"),
    "one is null": ({"logprobs": {"token_logprobs": [-0.5, None]}}, "returned None as a token's log-probability"),
    "one is -infinity": ({"logprobs": {"token_logprobs": [-math.inf, -0.5]}}, "returned -inf as a token's log-prob"),
    "one is positive": ({"logprobs": {"token_logprobs": [0.5, -0.5]}}, "returned 0.5 as a token's log-probability"),
    "fewer tokens than log-probabilities": ({"token_ids": [2]}, "returned 1 tokens but 2 log-probabilities"),
    "other prompt tokens": ({"prompt_token_ids": [1, 2, 4]}, "did not continue the tokens it was given"),
    "a token outside the vocabulary": ({"token_ids": [512, 2]}, "sampled token 512, which the policy's model lacks"),
    "more tokens than asked for": (
        {"token_ids": [5] * 9 + [2], "logprobs": {"token_logprobs": [-1.0] * 10}}, "returned 10 tokens where 4 were",
    ),
    "cut off before the limit": ({"token_ids": [5, 5], "finish_reason": "length"}, "--generation-config vllm"),
    "a stop token that was not asked for": ({"token_ids": [5, 9]}, "stopped with 'stop' at token 9"),
    "goes on after a stop token": (
        {"token_ids": [2, 5, 5, 5], "logprobs": {"token_logprobs": [-1.0] * 4}, "finish_reason": "length"},
        "went on after token 2, which ends a turn",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("change", "says"), LIES.values(), ids=LIES)
def test_no_episode_is_made_of_a_lie(fake, tiny_protocol, change, says):
    """The agent's loop plays eight episodes through the server, which lies in the fourth answer."""
    fake.plan = [{}, {}, {}, change]

    async def play(engine):
        settings = AgentSettings(max_turns=1, max_turn_tokens=4)
        agent = Agent(engine, tiny_protocol, BatchedSearch(search_many), settings)
        games = [agent.play(Question(str(n), "What is gout?", ""), n) for n in range(8)]
        return await asyncio.gather(*games, return_exceptions=True)

    ends = with_engine(play, fake, wanted=WANTED)
    [lied] = [end for end in ends if isinstance(end, UserError)]
    assert says in str(lied)
    assert "\n" not in str(lied)
    played = [end for end in ends if end is not lied]
    assert len(played) == 7
    assert all((end.ids[-2:], end.logprobs[-2:]) == ((5, 2), (-0.5, -0.25)) for end in played)


# The probe at the start


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logits"])
def test_log_probabilities_of_another_distribution_are_refused_at_the_start(fake, mode):
    fake.mode = mode
    with refused(f"{fake.url} .*start it with --logprobs-mode processed_logprobs"):
        sample(fake)
    assert not fake.bodies  # nothing was sampled


@pytest.mark.parametrize(
    ("card", "says"),
    [({"root": "another/base"}, "serves another/base, not base"), ({"max_model_len": 100}, "with --max-model-len")],
)
def test_a_server_of_another_policy_is_refused_at_the_start(fake, card, says):
    fake.card |= card
    with refused(says):
        sample(fake, wanted=WANTED)
    assert not fake.bodies


# Adapters


def adapter_of(folder, size):
    folder.mkdir()
    save_file({"q.lora_B.weight": np.full((4, 4), size, np.float32)}, folder / "adapter_model.safetensors")
    return folder


def load(fake, folder):
    async def act(engine):
        await engine.load_adapter("run-v000001", folder)
        return engine.adapter

    return with_engine(act, fake)


def test_an_adapter_that_the_server_says_it_loaded_but_does_not_use_is_noticed(fake, tmp_path):
    fake.ignores_adapters = True
    with refused(r"has loaded adapter run-v000001-.* but samples from the base"):
        load(fake, adapter_of(tmp_path / "trained", 0.01))
    # A fresh adapter, or one after a few small steps, may sample as the base does.
    assert load(fake, adapter_of(tmp_path / "fresh", 0.0)) == "run-v000001"
    assert load(fake, adapter_of(tmp_path / "barely", 1e-4)) == "run-v000001"
