"""Against a real vLLM server: adapters and merged folders are served, and its log-probabilities are the trainer's."""

import asyncio
from dataclasses import replace

import httpx
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from forage.agent.agent import Agent, BatchedSearch
from forage.agent.options import AgentSettings
from forage.data.records import Question
from forage.engines.base import EngineOptions, Request, Sampling
from forage.engines.vllm import VLLMEngine
from forage.grpo.served import PART, STALE, TOKENS, on_the_way
from tests.integration.agreement import QUESTIONS, differences, mismatch_bound, requests_of, scored
from tests.scripted_engine import search_many


class RoundedHead(torch.nn.Module):
    """An output layer whose logits are rounded to its weight's type; token_logprobs and LocalEngine keep them fp32."""

    def __init__(self, head):
        super().__init__()
        self.weight = head.weight

    def forward(self, hidden):
        return torch.nn.functional.linear(hidden, self.weight)


pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
GREEDY = Sampling(temperature=0)


@pytest.fixture(scope="module")
def base(model_folder):
    return model_folder


def policy_of(base, adapters=None, version=1, dtype=torch.float32):
    model = AutoModelForCausalLM.from_pretrained(base, dtype=dtype)
    return model if adapters is None else PeftModel.from_pretrained(model, adapters / f"v{version:06d}")


def with_engine(server, action, **options):
    async def run():
        async with VLLMEngine(EngineOptions(urls=(server.url,), **options)) as engine:
            return await action(engine)

    return asyncio.run(run())


@pytest.mark.parametrize(("adapted", "temperature"), [(False, 1.0), (True, 0.7)])
def test_sampled_logprobs_are_the_trainers(server, base, adapters, protocol, adapted, temperature):
    requests = requests_of(protocol, sampling=Sampling(temperature))

    async def act(engine):
        if adapted:
            await engine.load_adapter(f"logprobs-{temperature}", adapters / "v000001")
        return await asyncio.gather(*map(engine.generate, requests))

    samples = with_engine(server, act)
    apart = differences(policy_of(base, adapters if adapted else None), requests, samples, temperature)
    what = f"adapter {adapted}, temperature {temperature}: {len(apart)} tokens"
    print(f"{what}, mean {apart.mean():.2e}, most {apart.max():.2e}")
    assert apart.mean() < mismatch_bound("float32")


def test_in_bf16_sampler_and_trainer_differ_by_rounding_only(start_server, base, adapters, protocol):
    """Both have an output layer in fp32: the server's log-probabilities are nearer to those of such a trainer."""
    requests = requests_of(protocol, count=16)

    async def act(engine):
        await engine.load_adapter("bf16-v000001", adapters / "v000001")
        return await asyncio.gather(*map(engine.generate, requests))

    server = start_server(base, DTYPE="bfloat16")
    try:
        samples = with_engine(server, act)
    finally:
        server.kill()
    first, policy = [policy_of(base, adapters, dtype=torch.bfloat16) for _ in range(2)]
    apart = differences(first, requests, samples)
    model = policy.get_base_model()
    model.set_output_embeddings(RoundedHead(model.get_output_embeddings()))
    rounded = differences(policy, requests, samples)
    print(f"bf16: {len(apart)} tokens, mean {apart.mean():.2e}; with rounded logits {rounded.mean():.2e}")
    assert apart.mean() < mismatch_bound("bfloat16")
    assert apart.mean() < rounded.mean()
    # The tokens are of version 1. A trainer of version 1 hears that, one of version 2 that it was given the one before.
    second = policy_of(base, adapters, 2, dtype=torch.bfloat16)
    given = torch.tensor([logprob for sample in samples for logprob in sample.logprobs])
    alone = policy_of(base, dtype=torch.bfloat16)
    by_first, by_second, by_base = (scored(each, requests, samples) for each in (first, second, alone))
    assert (by_second - given).abs().mean() > 2 * mismatch_bound("bfloat16")  # .15 where it was measured
    for tokens in (TOKENS, len(given)):
        stale = on_the_way(by_second[:tokens], by_first[:tokens], given[:tokens])
        right = [on_the_way(by_first[:tokens], other[:tokens], given[:tokens]) for other in (by_second, by_base)]
        print(f"{tokens} tokens: {stale}; {right}")
        assert stale.surely > STALE
        assert all(way.surely < PART for way in right)


def test_after_a_swap_no_token_is_the_old_adapters(server, base, adapters, protocol):
    """Both adapters get the same prompts, so a prefix cache that mixed them up would show."""
    requests = requests_of(protocol, sampling=GREEDY)

    async def act(engine):
        samples = {}
        for version in (1, 2, 1):
            await engine.load_adapter(f"swap{len(samples)}-v{version:06d}", adapters / f"v{version:06d}")
            samples[version, len(samples)] = await asyncio.gather(*map(engine.generate, requests))
        return samples

    swapped = with_engine(server, act)
    assert [version for version, _ in swapped] == [1, 2, 1]
    for (version, _), samples in swapped.items():
        own = differences(policy_of(base, adapters, version), requests, samples)
        other = differences(policy_of(base, adapters, 3 - version), requests, samples)
        assert own.mean() < other.mean() / 4  # the test can tell them apart
        assert own.mean() < mismatch_bound("float32")


def test_a_request_in_flight_during_a_swap_ends_with_its_own_adapters_tokens(server, base, adapters, protocol):
    request = Request(tuple(protocol.prompt(QUESTIONS[0])), 96, (), 3, Sampling(), "0/0")

    async def running():
        async with httpx.AsyncClient(base_url=server.url) as client:
            lines = (await client.get("/metrics")).text.splitlines()
        return any(line.startswith("vllm:num_requests_running") and not line.endswith(" 0.0") for line in lines)

    async def act(engine):
        await engine.load_adapter("flight-v000001", adapters / "v000001")
        # Long enough that it outlasts the swap on a busy machine too.
        early = asyncio.create_task(engine.generate(replace(request, max_tokens=240, adapter=engine.adapter)))
        while not await running():
            await asyncio.sleep(0.01)
        await engine.load_adapter("flight-v000002", adapters / "v000002")
        assert not early.done()
        later = await engine.generate(request)
        # The next turn of an episode that began before the swap: its adapter is loaded again for it.
        return await early, later, await engine.generate(replace(request, max_tokens=24, adapter="flight-v000001"))

    early, later, next_turn = with_engine(server, act)
    for sample, version in ((early, 1), (later, 2), (next_turn, 1)):
        own, other = (differences(policy_of(base, adapters, v), [request], [sample]) for v in (version, 3 - version))
        assert own.mean() < mismatch_bound("float32") < other.mean()


def test_a_sample_ends_with_the_token_that_stopped_it_and_seeds_repeat(server, protocol):
    stop = protocol.tokenizer(" the", add_special_tokens=False)["input_ids"]
    request = Request(tuple(protocol.prompt(QUESTIONS[0])), 200, tuple(stop), 5, Sampling(), "a/0")
    first, again = with_engine(
        server, lambda engine: asyncio.gather(engine.generate(request), engine.generate(request))
    )
    assert first.finish == "stop"
    assert first.ids[-1] == stop[0]
    assert stop[0] not in first.ids[:-1]
    assert first.ids == again.ids


def test_killed_and_started_again_nothing_is_lost_and_nothing_twice(server, adapters, protocol):
    """SIGKILL in mid-rollout: all episodes come to their end, with tokens of the adapter, each once."""

    async def act(engine):
        await engine.load_adapter("kill-v000001", adapters / "v000001")
        generate, answered = engine.generate, asyncio.Event()

        async def heard(request):
            sample = await generate(request)
            answered.set()
            return sample

        engine.generate = heard
        agent = Agent(engine, protocol, BatchedSearch(search_many), AgentSettings(max_turns=3, max_turn_tokens=48))
        games = [asyncio.create_task(agent.play(Question(str(n), QUESTIONS[n % 4], ""), 0)) for n in range(12)]
        await answered.wait()
        assert not all(game.done() for game in games)
        server.kill()
        server.start()
        return await asyncio.gather(*games)

    episodes = with_engine(server, act, patience=400)
    assert sorted(int(episode.question_id) for episode in episodes) == list(range(12))
    assert {episode.stop for episode in episodes} <= {"answer", "no_action", "turns", "tokens", "turn_tokens"}
    assert all(episode.adapter == "kill-v000001" for episode in episodes)
