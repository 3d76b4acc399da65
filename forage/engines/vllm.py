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
from pathlib import Path
from typing import Any

import httpx

from forage.engines.base import EngineError, Request, Sample
from forage.engines.options import EngineOptions
from forage.errors import UserError
from forage.heartbeat import beat
from forage.policy.adapters import weights_digest

RETRIED = {408, 409, 425, 429, 500, 502, 503, 504}


class VLLMEngine:
    """Samples through one or several servers of the same base model. Use it as `async with VLLMEngine(options)`."""

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self.adapter = "base"
        self.base_root = ""
        """Where the servers loaded their base from: a folder on their machine, or a hub name."""
        self._base = ""
        self._served: dict[str, tuple[str, Path]] = {}  # adapter: its name on the servers, its folder
        headers = {"Authorization": f"Bearer {options.api_key}"} if options.api_key else {}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._clients = [
            httpx.AsyncClient(base_url=url, headers=headers, timeout=options.timeout, limits=limits)
            for url in options.urls
        ]
        self._loading = asyncio.Lock()

    async def __aenter__(self) -> VLLMEngine:
        """Wait until every server answers; refuse servers of different models."""
        bases = [await self._wait_for(client) for client in self._clients]
        if len(set(bases)) != 1:
            raise UserError(f"the servers serve different models: {', '.join(sorted(set(bases)))}")
        self._base = bases[0]
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._clients:
            await client.aclose()

    async def _wait_for(self, client: httpx.AsyncClient) -> str:
        """The name of the base on a server, once it answers."""
        deadline = time.monotonic() + self.options.patience
        while True:
            beat()
            try:
                answer = await client.get("/v1/models", timeout=10)
                if answer.status_code == 200:
                    base = next(model for model in answer.json()["data"] if not model.get("parent"))
                    self.base_root = str(base.get("root") or "")
                    return str(base["id"])
                if answer.status_code in (401, 403):
                    raise UserError(f"{client.base_url} refuses the API key; set VLLM_API_KEY to the server's")
                why = f"status {answer.status_code}"
            except httpx.TransportError as error:
                why = type(error).__name__
            if time.monotonic() > deadline:
                raise UserError(f"no vLLM server answers at {client.base_url} ({why}); start one: make vllm-cpu")
            await asyncio.sleep(1)

    # Sampling

    async def generate(self, request: Request) -> Sample:
        """Ask the episode's server, or the next one if it doesn't answer; retry with growing pauses."""
        adapter = self.adapter
        body = self._body(request, adapter)
        # A question's episodes share their prompt, so they share a server and its prefix cache.
        first = zlib.crc32(request.episode.partition("/")[0].encode())
        deadline: float | None = None
        attempt = 0
        while True:
            client = self._clients[(first + attempt) % len(self._clients)]
            try:
                answer = await client.post("/v1/completions", json=body)
                if answer.status_code == 200:
                    return read_sample(answer.json()["choices"][0], request)
                if answer.status_code == 404 and adapter != "base":  # a restarted server has no adapters
                    await self._load(client, adapter)
                elif answer.status_code not in RETRIED:
                    raise UserError(f"{client.base_url} refuses the request: {message_of(answer)}")
                why = f"status {answer.status_code}"
            except (httpx.TransportError, ValueError) as error:  # ValueError: a cut-off answer isn't JSON
                why = f"{type(error).__name__} {error}".strip()
            attempt += 1
            deadline = deadline or time.monotonic() + self.options.patience
            if time.monotonic() > deadline:
                raise EngineError(f"no vLLM server answered in {self.options.patience:g} s ({why})")
            if attempt % len(self._clients) == 0:
                await asyncio.sleep(min(10, 0.2 * 2 ** min(attempt, 6)) * random.uniform(0.5, 1))

    def _body(self, request: Request, adapter: str) -> dict[str, Any]:
        sampling = request.sampling
        return {
            "model": self._base if adapter == "base" else self._served[adapter][0],
            "prompt": list(request.ids),
            "max_tokens": request.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "repetition_penalty": 1.0,  # the model's generation settings may differ
            "min_p": 0.0,
            "seed": request.seed,
            "stop_token_ids": list(request.stop_ids),
            "ignore_eos": True,  # only the request's own stop tokens end it
            "logprobs": 0,  # only the sampled token's
            "return_token_ids": True,
            "skip_special_tokens": False,
        }

    def release(self, episode: str) -> None:
        """Nothing to do: the server's prefix cache drops its oldest blocks by itself."""

    # Adapters

    async def load_adapter(self, name: str, folder: Path) -> None:
        """Load the adapter on every server and use it, then unload the previous one.

        A server may still have another run's adapter of this name, so the name there ends in a digest of the weights.
        """
        if name == self.adapter:
            return
        before = self.adapter
        self._served[name] = f"{name}-{weights_digest(folder)[:8]}".removesuffix("-"), folder.resolve()
        for client in self._clients:
            await self._load_patiently(client, name)
        self.adapter = name
        if before != "base":
            for client in self._clients:
                with contextlib.suppress(httpx.TransportError):  # a server that is down has none
                    await client.post("/v1/unload_lora_adapter", json={"lora_name": self._served[before][0]})

    async def _load_patiently(self, client: httpx.AsyncClient, name: str) -> None:
        """Load the adapter, waiting if the server is restarting."""
        deadline = time.monotonic() + self.options.patience
        while True:
            try:
                return await self._load(client, name)
            except httpx.TransportError as error:
                if time.monotonic() > deadline:
                    why = f"{client.base_url} doesn't answer ({type(error).__name__})"
                    raise UserError(f"{why}, so it can't load adapter {name}; restart it") from error
            await asyncio.sleep(0.5)

    async def _load(self, client: httpx.AsyncClient, name: str) -> None:
        served, folder = self._served[name]
        async with self._loading:
            if await has(client, served):
                return
            answer = await client.post("/v1/load_lora_adapter", json={"lora_name": served, "lora_path": str(folder)})
            if answer.status_code != 200 and await has(client, served):  # another worker loaded it first
                return
        if answer.status_code == 404 and answer.json().get("detail") == "Not Found":  # the server lacks this route
            raise UserError(f"{client.base_url} can't load adapters at run time; start it as scripts/vllm_cpu.sh does")
        if answer.status_code != 200:
            raise UserError(f"{client.base_url} can't load adapter {name} ({message_of(answer)})")


def read_sample(choice: dict[str, Any], request: Request) -> Sample:
    """The sampled tokens of a completion, checked against the request."""
    if not choice.get("token_ids") or not choice.get("logprobs"):
        raise UserError("the vLLM server returned no token log-probabilities; is its version supported?")
    ids, logprobs = tuple(choice["token_ids"]), tuple(choice["logprobs"]["token_logprobs"])
    if choice.get("prompt_token_ids") not in (None, list(request.ids)):
        raise UserError("the vLLM server did not continue the tokens it was given; is its version supported?")
    if len(ids) != len(logprobs) or not ids:
        raise UserError(f"the vLLM server returned {len(ids)} tokens but {len(logprobs)} log-probabilities")
    finish = choice["finish_reason"]
    if finish not in ("stop", "length") or (finish == "stop" and ids[-1] not in request.stop_ids):
        raise UserError(f"the vLLM server stopped with {finish!r} at token {ids[-1]}, which was not requested")
    return Sample(ids, logprobs, finish)


async def has(client: httpx.AsyncClient, name: str) -> bool:
    """Does the server have a model or adapter of this name?"""
    listed = await client.get("/v1/models")
    if listed.status_code != 200:  # a server that is starting, or a proxy in front of it
        raise httpx.RemoteProtocolError(f"status {listed.status_code}")
    return name in {model["id"] for model in listed.json()["data"]}


def message_of(answer: httpx.Response) -> str:
    """The message of an error response, on one line."""
    try:
        error = answer.json()
        text = (error.get("error") or error).get("message") or str(error)
    except (ValueError, AttributeError):
        text = answer.text
    return " ".join(str(text).split())[:300]
