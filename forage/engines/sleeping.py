"""SleepingEngine: a VLLMEngine whose servers sleep while nothing is played, so that a trainer may use their GPU.

vLLM's level 1: the weights, and adapters with them, wait in the host's memory; keys and values are dropped. Level 2 is
never used, as it drops weights and adapters. A server has the routes only with VLLM_SERVER_DEV_MODE=1. Without
--enable-sleep-mode it answers them too, says that it sleeps, and frees nothing, so its configuration is asked first.
"""

from __future__ import annotations

import httpx

from forage.engines.base import Sample
from forage.engines.completion import UnreadyError, message_of
from forage.engines.options import EngineOptions
from forage.engines.served import Wanted
from forage.engines.sleep_routes import (
    CONFIGURATION,
    IS_SLEEPING,
    SLEEP,
    WAKE,
    asleep_of,
    has_sleep_mode,
    waking,
    without_sleep_mode,
)
from forage.engines.vllm import VLLMEngine
from forage.errors import UserError

ROUNDING = 0.05  # nats; in bf16 a token's log-probability differs by about .03 from one batch to another


class SleepingEngine(VLLMEngine):
    """Wakes the servers when it is opened and when it is closed; in between, `sleep()` and `wake()`."""

    def __init__(self, options: EngineOptions, wanted: Wanted | None = None) -> None:
        super().__init__(options, wanted)
        self._before: dict[httpx.AsyncClient, Sample] = {}  # what each sleeping server answered last to COMPARED

    async def __aexit__(self, *details: object) -> None:
        """Wake the servers for whoever comes next. One attempt: this may be the end by an error or a signal."""
        for client in self._clients:
            try:
                await self._rouse(client)
            except (UnreadyError, UserError) as error:
                print(f"{client.base_url} may be asleep still ({error}); wake it: {waking(client)}", flush=True)
        await super().__aexit__(*details)

    async def sleep(self) -> None:
        """Put every server to sleep, and return once all say that they are."""
        for client in self._clients:
            await self._patiently(client, self._sleep, "can't be put to sleep")

    async def wake(self) -> None:
        """Wake every server; then each answers as it did before, with the adapter in use."""
        for client in self._clients:
            await self._patiently(client, self._resume, "can't be woken", "free memory on its GPU, or restart it")

    async def fall_asleep(self) -> None:
        """Put every server to sleep before anything is played, once it is up."""
        for client in self._clients:
            await self._wait_for(client)
            await self._patiently(client, self._check_sleep_mode, "can't say how it was started")
            await self._patiently(client, self._lay_down, "can't be put to sleep")

    async def _ready(self, client: httpx.AsyncClient) -> None:
        """A trainer that was killed may have left the server asleep."""
        await self._check_sleep_mode(client)
        await self._rouse(client)

    async def _check_sleep_mode(self, client: httpx.AsyncClient) -> None:
        """Without --enable-sleep-mode, a server with the routes would say that it sleeps, and free nothing."""
        if not has_sleep_mode(await self._call(client, "GET", CONFIGURATION), client):
            raise without_sleep_mode(client)

    # One server

    async def _sleep(self, client: httpx.AsyncClient) -> None:
        if not await self._asleep(client):
            model = self._served.get(self.adapter)
            if model:
                await self._restored(client)
            self._before[client] = await self._compared(client, model.name if model else self._base)
        elif client not in self._before:
            raise UserError(f"{client.base_url} is asleep already; give each trainer a server of its own")
        await self._lay_down(client)

    async def _lay_down(self, client: httpx.AsyncClient) -> None:
        if not await self._asleep(client):
            await self._post(client, SLEEP)
            if not await self._asleep(client):
                raise UnreadyError("it does not fall asleep")

    async def _resume(self, client: httpx.AsyncClient) -> None:
        """Wake a server, and check that its memory is what it was.

        One that was started again meanwhile has not slept: it is probed, and loads the adapter from its file.
        """
        await self._rouse(client)
        if not await self._restored(client) and client in self._before:
            await self._check_memory(client, self._before[client])
        self._before.pop(client, None)

    async def _rouse(self, client: httpx.AsyncClient) -> None:
        if await self._asleep(client):
            await self._post(client, WAKE)
            if await self._asleep(client):
                raise UnreadyError("it does not wake")

    async def _restored(self, client: httpx.AsyncClient) -> bool:
        """Load the adapter in use if the server doesn't have it, as after a restart; says whether it did."""
        served = self._served.get(self.adapter)
        if served is None or await self._has(client, served.name):
            return False
        await self._load(client, served, probe=True)
        return True

    async def _check_memory(self, client: httpx.AsyncClient, before: Sample) -> None:
        """Load the adapter again if it does not answer as before; refuse a server that still doesn't."""
        served = self._served.get(self.adapter)
        if alike(await self._compared(client, served.name if served else self._base), before):
            return
        if served:
            print(f"{client.base_url} woke with other weights; loading adapter {served.name} again", flush=True)
            await self._call(client, "POST", "/v1/unload_lora_adapter", json={"lora_name": served.name})
            await self._load(client, served)
            if alike(await self._compared(client, served.name), before):
                return
        raise UserError(
            f"{client.base_url} gives other answers than before it slept, so its memory was corrupted; restart it, "
            "then re-run the same command to resume, without --vllm-sleep if it happens again"
        )

    # HTTP

    async def _asleep(self, client: httpx.AsyncClient) -> bool:
        answer = await self._call(client, "GET", IS_SLEEPING)
        if answer.status_code == 404:
            raise without_sleep_mode(client)
        if (asleep := asleep_of(answer)) is None:
            raise UnreadyError(f"status {answer.status_code}, but no word on whether it sleeps")
        return asleep

    async def _post(self, client: httpx.AsyncClient, path: str) -> None:
        answer = await self._call(client, "POST", path)
        if answer.status_code == 404:
            raise without_sleep_mode(client)
        if answer.status_code != 200:
            raise UserError(f"{client.base_url} refuses {path} ({message_of(answer)}); is its version supported?")


def alike(one: Sample, other: Sample) -> bool:
    """Whether two greedy answers come from the same weights, up to rounding.

    A GPU adds some sums in an order that changes from run to run, which may turn a later token into another.
    """
    return one.ids[:1] == other.ids[:1] and abs(one.logprobs[0] - other.logprobs[0]) < ROUNDING


async def fall_asleep(options: EngineOptions) -> None:
    """Put the servers to sleep before a policy is loaded on their GPU, so that the room for it can be measured."""
    engine = SleepingEngine(options)
    try:
        await engine.fall_asleep()
    finally:
        await engine.close()
