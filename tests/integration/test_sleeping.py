"""The sleep routes of a real vLLM server for CPUs, which frees nothing: vLLM refuses --enable-sleep-mode there.

With VLLM_SERVER_DEV_MODE=1 it has the routes even so: the scheduler really stops, requests really wait, and it says
that it sleeps. So all but the memory is real. What a GPU does about the memory has not been seen.
"""

import asyncio

import httpx
import pytest

from forage.engines.base import EngineOptions, Request, Sampling
from forage.engines.vllm import SLEEP, VLLMEngine
from tests.refusals import refused

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
GREEDY = Request((11, 22, 33, 44), 16, (2,), sampling=Sampling(0), episode="q/0")


@pytest.fixture
def pretending(monkeypatch):
    """As if it had been started with --enable-sleep-mode."""
    real = VLLMEngine._check_sleep_mode

    async def check(self, client):
        with refused("no sleep mode"):  # its configuration is read
            await real(self, client)

    monkeypatch.setattr(VLLMEngine, "_check_sleep_mode", check)


def options_of(server, **more):
    return EngineOptions(urls=(server.url,), **more)


async def awake(server):
    async with VLLMEngine(options_of(server), sleeps=True):
        pass


def says_that_it_sleeps(server):
    return httpx.get(f"{server.url}/is_sleeping").json()["is_sleeping"]


def test_a_server_that_would_free_nothing_is_refused(server):
    with refused(r"has no sleep mode; start it with --enable-sleep-mode"):
        asyncio.run(awake(server))
    assert not says_that_it_sleeps(server)


@pytest.mark.usefixtures("pretending")
def test_a_step_in_turns(server, adapters):
    """The adapter is known after waking, and answers as before."""

    async def run():
        async with VLLMEngine(options_of(server), sleeps=True) as engine:
            await engine.load_adapter("run-v000001", adapters / "v000001")
            before = await engine.generate(GREEDY)
            await engine.sleep()
            assert says_that_it_sleeps(server)
            await engine.wake()
            assert not says_that_it_sleeps(server)
            assert await engine.generate(GREEDY) == before
            await engine.sleep()
        assert not says_that_it_sleeps(server)  # awake for whoever comes next

    asyncio.run(run())


@pytest.mark.usefixtures("pretending")
def test_what_a_killed_trainer_left_asleep_is_woken_by_the_next_and_waited_for_by_others(server):
    httpx.post(f"{server.url}{SLEEP}")
    assert says_that_it_sleeps(server)

    async def run(sleeps, **more):
        async with VLLMEngine(options_of(server, **more), sleeps=sleeps) as engine:
            return await engine.generate(GREEDY)

    with refused("asleep until its trainer wakes it"):
        asyncio.run(run(False, patience=0.5))
    assert len(asyncio.run(run(True)).ids) > 1
    assert not says_that_it_sleeps(server)
