"""VLLMEngine against a small HTTP server that fails in many ways; tests/integration has a real vLLM server."""

import asyncio

import numpy as np
from safetensors.numpy import save_file

from forage.engines.base import EngineOptions, Request
from forage.engines.vllm import VLLMEngine, login_of
from tests.misbehaving_vllm import REQUEST, RIGHT, MisbehavingVLLM, with_engine
from tests.refusals import refused


def test_a_request_says_all_that_matters(fake):
    assert with_engine(lambda engine: engine.generate(REQUEST), fake) == RIGHT
    [body] = fake.bodies
    wanted = {
        "model": "policy", "prompt": [1, 2, 3], "max_tokens": 4, "temperature": 0.5, "top_p": 1.0, "top_k": -1,
        "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0,
        "frequency_penalty": 0.0, "watermarking": False, "seed": 7, "stop_token_ids": [2], "ignore_eos": True,
        "logprobs": 0, "return_token_ids": True, "skip_special_tokens": False,
    }  # fmt: skip
    assert body == wanted


def test_what_the_server_refuses_is_told_at_once(fake):
    fake.plan = [400]
    with refused("refuses the request: status 400"):
        with_engine(lambda engine: engine.generate(REQUEST), fake)
    assert len(fake.bodies) == 1


def test_an_adapter_of_the_same_name_with_other_weights_is_loaded_anew(fake, tmp_path):
    """For example from another run, or from a run started over, while the server stayed up."""

    async def act(engine):
        await engine.load_adapter("run-v000000", tmp_path)
        await engine.generate(REQUEST)
        return engine.adapter

    save_file({"lora_B": np.zeros(1, np.float32)}, tmp_path / "adapter_model.safetensors")
    assert with_engine(act, fake) == "run-v000000"
    save_file({"lora_B": np.ones(1, np.float32)}, tmp_path / "adapter_model.safetensors")
    assert with_engine(act, fake) == "run-v000000"
    first, second = (body["model"] for body in fake.bodies)
    assert first != second
    assert fake.adapters == [first, second]
    assert first.startswith("run-v000000-")


def test_an_adapter_that_another_worker_loads_at_the_same_moment_is_loaded(fake, tmp_path):
    fake.raced = True

    async def swap(engine):
        await engine.load_adapter("run-v000001", tmp_path)
        return engine.adapter

    assert with_engine(swap, fake) == "run-v000001"
    fake.refused = True
    with refused(r"can't load adapter run-v000002 \(has already been loaded\)"):
        with_engine(lambda engine: engine.load_adapter("run-v000002", tmp_path), fake)


def test_episodes_stay_with_a_server_and_move_when_it_dies(fake):
    other = MisbehavingVLLM()

    async def act(engine):
        requests = [Request((1,), 2, (2,), episode=f"q{n % 10}/{n}") for n in range(40)]
        await asyncio.gather(*map(engine.generate, requests))
        share = len(fake.bodies)
        other.stop()
        await asyncio.gather(*map(engine.generate, requests))
        return share

    share = with_engine(act, fake, other)
    assert 0 < share < 40
    assert share % 4 == 0  # the four episodes of a question share a server
    assert len(fake.bodies) == share + 40


def test_servers_of_different_models_are_refused(fake):
    other = MisbehavingVLLM()
    other.base = "another"
    with refused("serve different models: another, policy"):
        with_engine(lambda engine: engine.generate(REQUEST), fake, other)


def test_a_server_that_does_not_see_the_adapter_yet_is_waited_for(fake, tmp_path):
    fake.loading = [404, 404]
    assert with_engine(lambda engine: load(engine, tmp_path), fake) == "run-v000001"
    assert fake.adapters == ["run-v000001"]


async def load(engine, folder):
    await engine.load_adapter("run-v000001", folder)
    return engine.adapter


def test_an_address_keeps_its_password_to_itself(capsys):
    """It is sent, and neither printed nor in an error."""
    with refused(r"no vLLM server answers at http://127\.0\.0\.1:9 ") as error:
        asyncio.run(opened(VLLMEngine(EngineOptions(urls=("http://me:secret@127.0.0.1:9",), patience=0.1))))
    assert "secret" not in str(error.value) + capsys.readouterr().out
    assert (login_of("http://me:secret@a:1"), login_of("http://a:1")) == (("me", "secret"), None)


async def opened(engine):
    async with engine:
        pass
