"""A merged policy behind a real vLLM server with tool calling, asked by the openai package."""

import asyncio
import json
from types import SimpleNamespace

import pytest
import torch
from openai import OpenAI
from transformers import AutoModelForCausalLM, AutoTokenizer

import merge_lora
from forage.agent.options import AgentSettings, read_agent, write_agent
from forage.agent.prompts import MEDICAL_TASK
from forage.agent.protocol import Protocol, read_turn, write_call
from forage.engines.base import EngineOptions, Sampling
from forage.engines.vllm import VLLMEngine
from forage.grpo.teacher import Teacher, check_tokens
from forage.policy.adapters import publish_adapter
from forage.policy.packing import pack
from nano_grpo import token_logprobs
from tests.factories import Sequence, stir
from tests.integration.agreement import adapted, differences, mismatch_bound, requests_of
from tests.refusals import refused

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
QUESTION, RESULT = "What is gout?", "[1] Gout: a disease\n[2] Gout: crystals"
# A server that takes adapters crashes when it is asked for the log-probabilities of a prompt.
TOOLS = (
    "--no-enable-lora",
    "--enable-auto-tool-choice",
    "--tool-call-parser",
    "hermes",
    "--tool-strict-level",
    "parameter",
)


@pytest.fixture(scope="module")
def merged(model_folder, tmp_path_factory):
    """A policy over the packaged model, which its adapter changes a little, as one plain checkpoint."""
    folder = tmp_path_factory.mktemp("serving")
    torch.manual_seed(1)
    policy = adapted(model_folder, ["q_proj", "v_proj"])
    stir(policy, 0.01)
    publish_adapter(policy, folder / "policy", 0)
    settings = AgentSettings(mode="sparse", task=MEDICAL_TASK, max_turns=2, max_turn_tokens=48)
    write_agent(settings, folder / "policy")
    merge_lora.main(merge_lora.Options(
        folder / "policy", folder / "merged", base_model=str(model_folder), dtype="float32", prove=False
    ))  # fmt: skip
    return folder / "merged"


@pytest.fixture(scope="module")
def trained(model_folder, merged):
    """The protocol of the training, with the base's own template."""
    settings = read_agent(merged)
    return Protocol.playing(AutoTokenizer.from_pretrained(model_folder), settings)


@pytest.fixture(scope="module")
def server(start_server, merged):
    return start_server(merged, *TOOLS)


@pytest.fixture(scope="module")
def ask(server, trained):
    """Asks for a chat completion; the prompt's and the reply's tokens come with it."""
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none")

    def completion(messages, **more):
        asked = {"tools": trained.described_tools, "temperature": 0, "max_tokens": 48} | more
        return client.chat.completions.create(
            model="policy", messages=messages, extra_body={"return_token_ids": True},
            **{name: value for name, value in asked.items() if value is not None},
        )  # fmt: skip

    return completion


def test_the_server_shows_the_policy_the_tokens_of_its_training(ask, trained):
    asked = {"role": "user", "content": QUESTION}
    prompt = trained.prompt(QUESTION)
    assert ask([asked], max_tokens=1).prompt_token_ids == prompt
    assert ask([asked], max_tokens=1, tools=None).prompt_token_ids == prompt
    called = {"id": "a", "type": "function", "function": {"name": "search", "arguments": '{"query": "gout"}'}}
    turn = {"role": "assistant", "content": None, "tool_calls": [called]}
    found = {"role": "tool", "tool_call_id": "a", "content": RESULT}
    later = [*trained.turn_ids(write_call("gout")), *trained.join([RESULT], trained.end_of_turn)]
    assert ask([asked, turn, found], max_tokens=1).prompt_token_ids == [*prompt, *later]
    # A client's own system prompt, which the tool's description follows.
    task = {"role": "system", "content": trained.system_prompt.partition("\n")[0]}
    assert ask([task, asked], max_tokens=1).prompt_token_ids == prompt
    assert ask([task, asked], max_tokens=1, tools=None).prompt_token_ids != prompt


def test_a_teachers_marks_are_those_of_the_model_that_it_serves(server, merged, trained, tiny_protocol):
    options, model = (
        EngineOptions(urls=(server.url,)),
        AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32),
    )
    rows = [Sequence(request.ids, ()) for request in requests_of(trained, count=4)]
    marks_NT = Teacher(options).logprobs(SimpleNamespace(device="cpu"), rows, 1.0, pack)
    with torch.no_grad():
        wanted = [token_logprobs(model, row.ids, 1.0) for row in rows]
    pairs = zip(marks_NT, wanted, strict=True)
    apart = torch.cat([(marks_T[1 : 1 + len(wanted_T)] - wanted_T).abs() for marks_T, wanted_T in pairs])
    print(f"a teacher's marks: {len(apart)} tokens, mean {apart.mean():.2e}")
    assert apart.mean() < mismatch_bound("float32")
    asyncio.run(check_tokens(options, trained))
    with refused("has another tokenizer than the policy"):
        asyncio.run(check_tokens(options, tiny_protocol))


def test_a_call_comes_back_as_a_call(ask, trained):
    choice = ask([{"role": "user", "content": QUESTION}], tool_choice="required").choices[0]
    assert choice.finish_reason == "tool_calls"
    call = choice.message.tool_calls[0]
    assert call.function.name == "search"
    assert list(json.loads(call.function.arguments)) == ["query"]
    written = trained.text(choice.token_ids)
    assert read_turn(written).calls[0].query == " ".join(json.loads(call.function.arguments)["query"].split())
    assert choice.token_ids[-1] == trained.end_of_turn


def test_the_merged_policys_log_probabilities_are_those_of_the_folder(server, merged, trained):
    requests = requests_of(trained, count=4, sampling=Sampling(temperature=0))

    async def run():
        async with VLLMEngine(EngineOptions(urls=(server.url,))) as engine:
            return await asyncio.gather(*map(engine.generate, requests))

    apart = differences(AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32), requests, asyncio.run(run()))
    assert apart.mean() < mismatch_bound("float32")
