"""VLLMEngine: samples through the HTTP API of vLLM servers, tokens in and tokens out.

Every version of an adapter is served under its own name: under a reused name, vLLM would answer from prefix-cache
blocks that the old weights computed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from forage.engines.base import Engine, EngineError, Request, Sample
from forage.engines.completion import UnreadyError, body_of, choice_of, message_of, read_sample
from forage.engines.options import EngineOptions
from forage.engines.probe import COLD, COMPARED, PROMPTS, check_differences, difference, listed_logprobs, probe_body
from forage.engines.served import Wanted, check_served
from forage.engines.sleep_routes import IS_SLEEPING, asleep_of, waking
from forage.errors import UserError
from forage.heartbeat import beat
from forage.policy.adapters import changes_tokens, weights_digest

SEEN_WITHIN = 120.0  # seconds until a server sees what another machine wrote; NFS's longest by default is 60
RETRIED = {408, 409, 425, 429, 500, 502, 503, 504}


@dataclass(frozen=True)
class Served:
    """An adapter on the servers."""

    name: str
    """There it has another name than here: it ends in a digest of the weights, as another run may use the same name."""
    folder: Path


class UnseenError(UnreadyError):
    """The server does not see an adapter's folder, or not yet: another machine wrote it."""


class VLLMEngine(Engine):
    """Samples through one or several servers of the same base model. Use it as `async with VLLMEngine(options)`."""

    exact = False  # a server batches requests as they come, and rounds by batch

    def __init__(self, options: EngineOptions, wanted: Wanted | None = None) -> None:
        self.options, self.wanted = options, wanted
        self.adapter = "base"
        self._base = ""
        self._served: dict[str, Served] = {}
        self._plain: dict[httpx.AsyncClient, Sample] = {}  # what each server's base answers to COMPARED
        self._waited: set[httpx.AsyncClient] = set()  # servers that were found asleep
        headers = {"Authorization": f"Bearer {options.api_key}"} if options.api_key else {}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        try:
            self._clients = [
                httpx.AsyncClient(base_url=url, headers=headers, timeout=options.timeout, limits=limits)
                for url in options.urls
            ]
        except (httpx.InvalidURL, ValueError) as error:
            raise UserError(f"--urls {' '.join(options.urls)}: {error}; give addresses as http://HOST:PORT") from error
        self._loading = asyncio.Lock()

    async def __aenter__(self) -> VLLMEngine:
        """Wait until every server answers; refuse servers of different models, and those that the probe refuses."""
        bases = [await self._wait_for(client) for client in self._clients]
        if len(set(bases)) != 1:
            raise UserError(f"the servers serve different models: {', '.join(sorted(set(bases)))}")
        self._base = bases[0]
        for client in self._clients:
            await self._patiently(client, self._ready, "can't be used", "if no trainer runs that wakes it, restart it")
            await self._patiently(client, self._probe, "can't be probed")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        for client in self._clients:
            await client.aclose()

    async def _wait_for(self, client: httpx.AsyncClient) -> str:
        """The name of the base on a server, once it answers."""
        deadline = time.monotonic() + self.options.patience
        while True:
            beat()
            try:
                base = next(model for model in await self._models(client, timeout=10) if not model.get("parent"))
            except UnreadyError as error:
                if time.monotonic() > deadline:
                    raise UserError(
                        f"no vLLM server answers at {client.base_url} ({error}); start one: make vllm-cpu"
                    ) from error
            else:
                if self.wanted:
                    check_served(base, self.wanted, f"the server at {client.base_url}")
                return str(base["id"])
            await asyncio.sleep(1)

    async def _ready(self, client: httpx.AsyncClient) -> None:
        """A server that sleeps belongs to a trainer, on whose GPU it would wake; until then it answers nothing."""
        if await self._asleep(client):
            if client not in self._waited:
                self._waited.add(client)
                print(
                    f"{client.base_url} is asleep: waiting until the trainer that put it to sleep wakes it; if that "
                    f"was killed: {waking(client)}",
                    flush=True,
                )
            raise UnreadyError("it is asleep")

    async def _asleep(self, client: httpx.AsyncClient) -> bool:
        return asleep_of(await self._call(client, "GET", IS_SLEEPING)) is True  # most servers lack the route

    async def _probe(self, client: httpx.AsyncClient) -> None:
        """Refuse a server whose log-probabilities are not those of the distribution that it samples from."""
        server = f"the server at {client.base_url}"
        found = []
        for prompt in PROMPTS:
            warm, cold = [
                listed_logprobs(choice_of(await self._complete(client, probe_body(prompt, t, self._base))), server)
                for t in (1.0, COLD)
            ]
            found.append(difference(warm, cold))
        check_differences(found, server)
        self._plain[client] = await self._compared(client, self._base)

    # Sampling

    async def generate(self, request: Request) -> Sample:
        """Ask the episode's server, or the next one if it doesn't answer; retry with growing pauses."""
        served = self._served_for(request)
        # A question's episodes share their prompt, so they share a server and its prefix cache.
        first = zlib.crc32(request.episode.partition("/")[0].encode())
        deadline: float | None = None
        attempt = 0
        while True:
            client = self._clients[(first + attempt) % len(self._clients)]
            try:
                return await self._sample(client, request, served)
            except UnreadyError as error:
                why = error
            attempt += 1
            deadline = deadline or time.monotonic() + self.options.patience
            if time.monotonic() > deadline:
                raise EngineError(f"no vLLM server answered in {self.options.patience:g} s ({why})")
            if attempt % len(self._clients) == 0:
                await asyncio.sleep(min(10, 0.2 * 2 ** min(attempt, 6)) * random.uniform(0.5, 1))

    def _served_for(self, request: Request) -> Served | None:
        """The adapter that the request asks for, or else the one in use; None for the base."""
        adapter = request.adapter or self.adapter
        if adapter != "base" and adapter not in self._served:
            raise EngineError(f"episode {request.episode} began with adapter {adapter}, which was never loaded here")
        return None if adapter == "base" else self._served[adapter]

    async def _sample(self, client: httpx.AsyncClient, request: Request, served: Served | None) -> Sample:
        """One attempt at one server."""
        answer = await self._complete(client, body_of(request, served.name if served else self._base))
        if answer.status_code == 404 and served:  # a restarted server has no adapters, and maybe other settings
            await self._load(client, served, probe=True)
            raise UnreadyError("it had lost the adapter")
        sample = read_sample(choice_of(answer), request, self.wanted.vocabulary if self.wanted else 0)
        return replace(sample, server=address(client.base_url))

    async def _complete(self, client: httpx.AsyncClient, body: dict[str, Any]) -> httpx.Response:
        """The answer, of status 200, or 404 where the server doesn't have the model."""
        answer = await self._call(client, "POST", "/v1/completions", json=body)
        if answer.status_code not in (200, 404) or (answer.status_code == 404 and body["model"] == self._base):
            raise UserError(f"{client.base_url} refuses the request: {message_of(answer)}")
        return answer

    # Adapters

    async def load_adapter(self, name: str, folder: Path) -> None:
        """Load the adapter on every server and use it, then unload the previous one."""
        before = self._served.get(self.adapter)
        served = Served(f"{name}-{weights_digest(folder)[:8]}".removesuffix("-"), folder.resolve())
        if name == self.adapter and served == before:
            return
        await self._load_everywhere(name, served)
        self._served[name], self.adapter = served, name
        if before and before.name != served.name:
            await self._unload(before, self._clients)

    async def _load_everywhere(self, name: str, served: Served) -> None:
        """Load an adapter on every server, or on none: if one can't, those that this call gave it to lose it again."""
        given: list[httpx.AsyncClient] = []

        async def load(client: httpx.AsyncClient) -> None:
            if await self._load(client, served):
                given.append(client)

        try:
            for client in self._clients:
                await self._patiently(client, load, f"can't load adapter {name}")
        except UserError:
            await self._unload(served, given)
            raise

    async def _unload(self, served: Served, clients: Sequence[httpx.AsyncClient]) -> None:
        for client in clients:
            with contextlib.suppress(UnreadyError):  # a server that is down has none
                await self._call(client, "POST", "/v1/unload_lora_adapter", json={"lora_name": served.name})

    async def _load(self, client: httpx.AsyncClient, served: Served, *, probe: bool = False) -> bool:
        """Load an adapter, after a probe where the server may have been started again with other settings.

        False if it was there.
        """
        async with self._loading:
            if await self._has(client, served.name):
                return False
            if await self._asleep(client):  # its memory for adapters is not there, and writing to it would end it
                raise UnreadyError("it is asleep")
            if probe:
                await self._probe(client)
            path = {"lora_name": served.name, "lora_path": str(served.folder)}
            answer = await self._call(client, "POST", "/v1/load_lora_adapter", json=path)
            if answer.status_code != 200 and await self._has(client, served.name):  # another worker loaded it first
                return False
        if answer.status_code == 404 and message_of(answer) == NO_ROUTE:
            raise UserError(f"{client.base_url} can't load adapters at run time; start it as scripts/vllm_cpu.sh does")
        if answer.status_code == 404:
            raise UnseenError(f"it does not see {served.folder}")
        if answer.status_code != 200:
            raise UserError(f"{client.base_url} can't load adapter {served.name} ({message_of(answer)})")
        await self._check_effect(client, served)
        return True

    async def _check_effect(self, client: httpx.AsyncClient, served: Served) -> None:
        """Refuse a server that has loaded an adapter but samples from the base.

        The base was asked at the start, not now: beside requests with an adapter, a vLLM for CPUs (0.32) may apply
        that adapter to requests for the base too (vLLM's pull request 48421).
        """
        if changes_tokens(served.folder) and await self._compared(client, served.name) == self._plain[client]:
            raise UserError(
                f"{client.base_url} has loaded adapter {served.name} but samples from the base; is its version "
                "supported, and does it support adapters of this model?"
            )

    async def _compared(self, client: httpx.AsyncClient, model: str) -> Sample:
        return read_sample(choice_of(await self._complete(client, body_of(COMPARED, model))), COMPARED)

    async def _has(self, client: httpx.AsyncClient, name: str) -> bool:
        """Does the server have a model or adapter of this name?"""
        return name in {model["id"] for model in await self._models(client)}

    # HTTP

    async def _models(self, client: httpx.AsyncClient, timeout: float | None = None) -> list[dict[str, Any]]:
        """The models and adapters of a server."""
        answer = await self._call(client, "GET", "/v1/models", timeout=timeout)
        try:
            models = answer.json()["data"]
            if all(isinstance(model["id"], str) for model in models) and not all(m.get("parent") for m in models):
                return list(models)
        except (ValueError, KeyError, TypeError, AttributeError):
            pass  # a proxy's page, for one
        raise UnreadyError(f"status {answer.status_code}, but no list of models")

    async def _call(
        self, client: httpx.AsyncClient, method: str, path: str, timeout: float | None = None, **body: Any
    ) -> httpx.Response:
        """One request. Raises UnreadyError where asking again may help."""
        try:
            async with asyncio.timeout(timeout or self.options.timeout):  # httpx itself times each piece of an answer
                answer = await client.request(method, path, **body)
        except (httpx.RequestError, TimeoutError) as error:
            raise UnreadyError(f"{type(error).__name__} {error}".strip()) from error
        if answer.status_code in (401, 403):
            raise UserError(f"{client.base_url} refuses the API key; set VLLM_API_KEY to the server's")
        if answer.is_redirect:
            there = answer.headers.get("Location")
            raise UserError(f"{client.base_url} redirects to {there}; give --urls the address of the server itself")
        if answer.status_code in RETRIED:
            raise UnreadyError(f"status {answer.status_code}")
        return answer

    async def _patiently(
        self, client: httpx.AsyncClient, action: Any, what: str, way_out: str = "restart it"
    ) -> None:  # fmt: skip
        """Do something on a server, waiting if it is restarting."""
        deadline = time.monotonic() + self.options.patience
        within = min(self.options.patience, SEEN_WITHIN)
        seen_by = deadline - self.options.patience + within
        while True:
            try:
                await action(client)
                return
            except UnseenError as error:
                if time.monotonic() > seen_by:
                    raise UserError(
                        f"{client.base_url} {what}: {error} after {within:.0f} s; mount the shared folder on its "
                        "machine at the same path"
                    ) from error
            except UnreadyError as error:
                if time.monotonic() > deadline:
                    why = f"{client.base_url} doesn't answer ({error}), so it {what}; {way_out}"
                    raise UserError(why) from error
            beat()
            await asyncio.sleep(0.5)


def address(url: httpx.URL) -> str:
    """Host, port and path, without a password. Example: http://me:secret@gpu1:8100/ gives gpu1:8100."""
    return f"{url.netloc.decode()}{url.path}".rstrip("/")


NO_ROUTE = "{'detail': 'Not Found'}"  # FastAPI's answer where a route doesn't exist
