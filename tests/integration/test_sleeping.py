"""The sleep routes of a real vLLM server for CPUs, which frees nothing: vLLM refuses --enable-sleep-mode there.

With VLLM_SERVER_DEV_MODE=1 it has the routes even so: the scheduler really stops, requests really wait, and it says
that it sleeps. So all but the memory is real. What a GPU does about the memory has not been seen.
"""

import asyncio

import httpx
import pytest

from forage.engines import vllm
from forage.engines.base import EngineOptions, Request, Sampling
from forage.engines.vllm import VLLMEngine, fall_asleep
from forage.errors import UserError

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
GREEDY = Request((11, 22, 33, 44), 16, (2,), sampling=Sampling(0), episode="q/0")


def says_that_it_sleeps(server):
    return httpx.get(f"{server.url}/is_sleeping").json()["is_sleeping"]


def test_a_server_that_would_free_nothing_is_refused(server):
    with pytest.raises(UserError, match=r"has no sleep mode; start it with --enable-sleep-mode"):
        asyncio.run(fall_asleep(EngineOptions(urls=(server.url,))))
    assert not says_that_it_sleeps(server)


def test_a_step_in_turns(server, adapters, monkeypatch):
    """The adapter is known after waking, and answers as before; as if started with --enable-sleep-mode."""
    monkeypatch.setattr(vllm, "has_sleep_mode", lambda answer, client: True)

    async def run():
        async with VLLMEngine(EngineOptions(urls=(server.url,)), sleeps=True) as engine:
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
