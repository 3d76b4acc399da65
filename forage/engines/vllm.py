"""VLLMEngine: samples through the HTTP API of vLLM servers, tokens in and tokens out.

Every version of an adapter is served under its own name: under a reused name, vLLM would answer from prefix-cache
blocks that the old weights computed.

With `sleeps`, the servers sleep while nothing is played, so that a trainer may use their GPU. That is vLLM's level 1:
the weights, and adapters with them, wait in the host's memory; keys and values are dropped. Level 2 drops weights and
adapters. A server has the routes only with VLLM_SERVER_DEV_MODE=1. Without --enable-sleep-mode it answers them too,
says that it sleeps, and frees nothing, so its configuration is asked first.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import httpx

from forage.engines.base import Engine, EngineError, EngineOptions, Job, Request, Sample, Sampling
from forage.errors import UserError
from forage.heartbeat import beat
from forage.machine import bearer
from forage.policy.adapters import changes_tokens, weights_digest
from forage.policy.base_models import is_copy_of, same_base
from forage.policy.manifest import PolicyManifest
from forage.policy.policy import vocabulary_of
from forage.text import from_json, say, without_passwords

T = TypeVar("T")
SLEEP = "/sleep?level=1&mode=wait"  # wait: what is being sampled is finished first
WAKE = "/wake_up"
IS_SLEEPING = "/is_sleeping"
CONFIGURATION = "/server_info?config_format=json"
NO_ROUTE = "{'detail': 'Not Found'}"  # FastAPI's answer where a route doesn't exist
SAY_EVERY = 120.0  # seconds
ROUNDING = 0.05  # nats; in bf16 a token's log-probability differs by about .03 from one batch to another


@dataclass(frozen=True)
class Served:
    """An adapter on the servers."""

    name: str
    """There it has another name than here: it ends in a digest of the weights, as another run may use the same name."""
    folder: Path


class VLLMEngine(Engine):
    """Samples through one or several servers of the same base model. Use it as `async with VLLMEngine(options)`.

    `sleeps`: it wakes the servers when it is opened and when it is closed; in between, `sleep()` and `wake()`.
    """

    def __init__(self, options: EngineOptions, wanted: Wanted | None = None, *, sleeps: bool = False) -> None:
        self.options, self.wanted, self.sleeps = options, wanted, sleeps
        self._base = ""
        self._served: dict[str, Served] = {}
        self._plain: dict[httpx.AsyncClient, Sample] = {}  # what each server's base answers to COMPARED
        self._laid_down: set[httpx.AsyncClient] = set()  # servers that sleep by this engine's word
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        more: dict[str, Any] = {"headers": bearer("VLLM_API_KEY"), "timeout": options.timeout, "limits": limits}
        try:
            self._clients = [
                httpx.AsyncClient(auth=login_of(url), base_url=without_passwords(url), **more) for url in options.urls
            ]
        except (httpx.InvalidURL, ValueError) as error:
            raise UserError(f"--urls {' '.join(options.urls)}: {error}; give addresses as http://HOST:PORT") from error
        self._loading = asyncio.Lock()

    @classmethod
    @asynccontextmanager
    async def open(cls, options: EngineOptions, job: Job) -> AsyncIterator[VLLMEngine]:
        wanted = Wanted(job.manifest, vocabulary_of(job.manifest), job.tokens)
        async with cls(options, wanted, sleeps=job.sleeps) as engine:
            yield engine

    async def __aenter__(self) -> VLLMEngine:
        """Wait until every server answers; refuse servers of different models, and those that the probe refuses."""
        await self._find_base()
        for client in self._clients:
            way_out = "if no trainer runs that wakes it, restart it"
            await self._patiently(client, self._ready, "can't be used", way_out, at_once=True)
            await self._patiently(client, self._probe, "can't be probed")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Wake servers for whoever comes next. One attempt: this may be the end by an error or a signal."""
        for client in self._clients if self.sleeps else ():
            try:
                await self._put(client, asleep=False)
            except (UnreadyError, UserError) as error:
                say(f"{client.base_url} may be asleep still ({error}); wake it: {waking(client)}")
        for client in self._clients:
            await client.aclose()

    async def _find_base(self) -> None:
        bases = set()
        for client in self._clients:
            models = await self._patiently(client, self._models, "can't be used", "start one: make vllm-cpu")
            found = next(model for model in models if not model.get("parent"))
            if self.wanted:
                check_served(found, self.wanted, f"the server at {client.base_url}")
            bases.add(found["id"])
        if len(bases) != 1:
            raise UserError(f"the servers serve different models: {', '.join(sorted(bases))}")
        [self._base] = bases

    async def _ready(self, client: httpx.AsyncClient) -> None:
        """A server that sleeps belongs to a trainer, on whose GPU it would wake; until then it answers nothing.

        With `sleeps` it is this trainer's: one that was killed may have left it asleep.
        """
        if self.sleeps:
            await self._check_sleep_mode(client)
            await self._put(client, asleep=False)
        elif await self._asleep(client):
            raise UnreadyError(f"asleep until its trainer wakes it; if that was killed: {waking(client)}")

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
        adapter = request.adapter or self.adapter
        if adapter != "base" and adapter not in self._served:
            raise EngineError(f"episode {request.episode} began with adapter {adapter}, which was never loaded here")
        # A question's episodes share their prompt, so they share a server and its prefix cache.
        first = zlib.crc32(request.episode.partition("/")[0].encode())
        deadline: float | None = None
        attempt = 0
        while True:
            client = self._clients[(first + attempt) % len(self._clients)]
            try:
                return await self._sample(client, request, self._served.get(adapter))
            except UnreadyError as error:
                why = error
            attempt += 1
            deadline = deadline or time.monotonic() + self.options.patience
            if time.monotonic() > deadline:
                raise EngineError(f"no vLLM server answered in {self.options.patience:g} s ({why})")
            if attempt % len(self._clients) == 0:
                await asyncio.sleep(min(10, 0.2 * 2 ** min(attempt, 6)) * random.uniform(0.5, 1))

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

    async def scores(self, ids: tuple[int, ...]) -> list[float]:
        """The first server's log-probability of each token but the first, by its base, at temperature 1."""
        body = body_of(Request(ids, 1, ()), self._base) | {"prompt_logprobs": 0}

        async def ask(client: httpx.AsyncClient) -> dict[str, Any]:
            return choice_of(await self._complete(client, body))

        choice = await self._patiently(self._clients[0], ask, "can't score tokens")
        return read_scores(choice, ids)

    async def tokens(self, text: str) -> list[int]:
        """A text as the first server's tokenizer cuts it, control tokens included."""
        body = {"model": self._base, "prompt": text, "add_special_tokens": False}
        answer = await self._patiently(
            self._clients[0],
            lambda client: self._call(client, "POST", "/tokenize", json=body),
            "can't be asked for its tokens",
        )
        try:
            return [*map(int, from_json(answer.content)["tokens"])]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{self._clients[0].base_url} cuts no text ({message_of(answer)}); is its version supported?"
            ) from error

    async def _compared(self, client: httpx.AsyncClient, model: str) -> Sample:
        return read_sample(choice_of(await self._complete(client, body_of(COMPARED, model))), COMPARED)

    # Adapters

    async def load_adapter(self, name: str, folder: Path) -> None:
        """Load the adapter on every server and use it, then unload the previous one."""
        before = self._served.get(self.adapter)
        served = Served(f"{name}-{weights_digest(folder)[:8]}".removesuffix("-"), folder.resolve())
        if name == self.adapter and served == before:
            return
        for client in self._clients:
            await self._patiently(client, lambda each: self._load(each, served), f"can't load adapter {name}")
        self._served[name], self.adapter = served, name
        if before and before.name != served.name:
            for client in self._clients:
                with contextlib.suppress(UnreadyError):  # a server that is down has none
                    await self._unload(client, before)

    async def _unload(self, client: httpx.AsyncClient, served: Served) -> None:
        await self._call(client, "POST", "/v1/unload_lora_adapter", json={"lora_name": served.name})

    async def _load(self, client: httpx.AsyncClient, served: Served, *, probe: bool = False) -> None:
        """Load an adapter, after a probe where the server may have been started again with other settings."""
        async with self._loading:
            if await self._has(client, served.name):
                return
            if await self._asleep(client):  # its memory for adapters is not there, and writing to it would end it
                raise UnreadyError("it is asleep")
            if probe:
                await self._probe(client)
            path = {"lora_name": served.name, "lora_path": str(served.folder)}
            answer = await self._call(client, "POST", "/v1/load_lora_adapter", json=path)
            if answer.status_code != 200 and await self._has(client, served.name):  # another worker loaded it first
                return
        if answer.status_code == 404 and message_of(answer) == NO_ROUTE:
            raise UserError(f"{client.base_url} can't load adapters at run time; start it as scripts/vllm_cpu.sh does")
        if answer.status_code == 404:  # another machine wrote it, and a shared file system may be late
            raise UnreadyError(f"it does not see {served.folder}; mount the shared folder there at the same path")
        if answer.status_code != 200:
            raise UserError(f"{client.base_url} can't load adapter {served.name} ({message_of(answer)})")
        # The base was asked at the start, not now: beside requests with an adapter, a vLLM for CPUs (0.32) may apply
        # that adapter to requests for the base too (vLLM's pull request 48421).
        if changes_tokens(served.folder) and await self._compared(client, served.name) == self._plain[client]:
            raise UserError(
                f"{client.base_url} has loaded adapter {served.name} but samples from the base; is its version "
                "supported, and does it support adapters of this model?"
            )

    async def _has(self, client: httpx.AsyncClient, name: str) -> bool:
        """Does the server have a model or adapter of this name?"""
        return name in {model["id"] for model in await self._models(client)}

    # Sleep

    async def sleep(self) -> None:
        """Put every server to sleep, and return once all say that they are."""
        for client in self._clients if self.sleeps else ():
            await self._patiently(client, self._sleep, "can't be put to sleep")

    async def wake(self) -> None:
        """Wake every server; then each answers as it did before, with the adapter in use."""
        for client in self._clients if self.sleeps else ():
            await self._patiently(client, self._resume, "can't be woken", "free memory on its GPU, or restart it")

    async def _check_sleep_mode(self, client: httpx.AsyncClient) -> None:
        answer = await self._call(client, "GET", CONFIGURATION)
        try:
            configuration = from_json(answer.content)
            on = answer.status_code != 404 and configuration["vllm_config"]["model_config"]["enable_sleep_mode"]
        except ValueError as error:  # a proxy's page, for one
            raise UnreadyError(f"status {answer.status_code}, but no configuration") from error
        except (KeyError, TypeError) as error:
            raise UserError(
                f"{client.base_url} does not say if it has sleep mode; is its version supported?"
            ) from error
        if not on:
            raise UserError(
                f"{client.base_url} has no sleep mode; start it with --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1, "
                "on a private network only, as that opens other routes too, or leave out --vllm-sleep"
            )

    async def _sleep(self, client: httpx.AsyncClient) -> None:
        if client not in self._laid_down and await self._asleep(client):
            raise UserError(f"{client.base_url} is asleep already; give each trainer a server of its own")
        await self._put(client, asleep=True)
        self._laid_down.add(client)

    async def _put(self, client: httpx.AsyncClient, *, asleep: bool) -> None:
        """Let a server sleep, or wake it, unless it does or is already."""
        if await self._asleep(client) == asleep:
            return
        path = SLEEP if asleep else WAKE
        answer = await self._call(client, "POST", path)
        if answer.status_code != 200:
            raise UserError(f"{client.base_url} refuses {path} ({message_of(answer)}); is its version supported?")
        if await self._asleep(client) != asleep:
            raise UnreadyError("it does not fall asleep" if asleep else "it does not wake")

    async def _resume(self, client: httpx.AsyncClient) -> None:
        """Wake a server, check that its base is what it was, and load the adapter in use from its file.

        So nothing depends on what became of the adapter's memory, nor on whether the server was started again.
        """
        await self._put(client, asleep=False)
        before = self._plain[client]
        await self._probe(client)
        if not alike(self._plain[client], before):
            raise UserError(
                f"{client.base_url} gives other answers than before it slept, so its memory was corrupted; restart it, "
                "then re-run the same command to resume, without --vllm-sleep if it happens again"
            )
        if served := self._served.get(self.adapter):
            if await self._has(client, served.name):
                await self._unload(client, served)
            await self._load(client, served)
        self._laid_down.discard(client)

    async def _asleep(self, client: httpx.AsyncClient) -> bool:
        answer = await self._call(client, "GET", IS_SLEEPING)
        try:
            asleep: Any = from_json(answer.content)["is_sleeping"]
        except (ValueError, KeyError, TypeError):
            asleep = None
        if self.sleeps and not isinstance(asleep, bool):
            raise UnreadyError(f"status {answer.status_code}, but no word on whether it sleeps")
        return asleep is True  # most servers lack the route

    # HTTP

    async def _models(self, client: httpx.AsyncClient) -> list[dict[str, Any]]:
        """The models and adapters of a server."""
        answer = await self._call(client, "GET", "/v1/models", timeout=min(10, self.options.timeout))
        try:
            models = from_json(answer.content)["data"]
            if all(isinstance(model["id"], str) for model in models) and not all(m.get("parent") for m in models):
                return list(models)
        except (ValueError, KeyError, TypeError, AttributeError):
            pass  # a proxy's page, for one
        raise UnreadyError(f"status {answer.status_code}, but no list of models")

    async def _call(
        self, client: httpx.AsyncClient, method: str, path: str, timeout: float | None = None, **body: Any
    ) -> httpx.Response:
        """One request. Raises UnreadyError where asking again may help."""
        answer = await answered(client.request(method, path, **body), timeout or self.options.timeout)
        if answer.status_code in (401, 403):
            raise UserError(f"{client.base_url} refuses the API key; set VLLM_API_KEY to the server's")
        if answer.is_redirect:
            there = answer.headers.get("Location")
            raise UserError(f"{client.base_url} redirects to {there}; give --urls the address of the server itself")
        return answer

    async def _patiently(
        self, client: httpx.AsyncClient, action: Callable[[httpx.AsyncClient], Awaitable[T]], what: str,
        way_out: str = "restart it", at_once: bool = False,
    ) -> T:  # fmt: skip
        """Do something on a server, waiting if it is starting, and saying so every other minute, or `at_once` too."""
        begun = time.monotonic()
        said = -math.inf if at_once else begun
        while True:
            beat()
            try:
                return await action(client)
            except UnreadyError as error:
                now = time.monotonic()
                if now - said > SAY_EVERY:
                    said = now
                    say(f"waiting for {client.base_url} for {now - begun:.0f} s now ({error})")
                if now - begun > self.options.patience:
                    raise UserError(
                        f"no vLLM server answers at {client.base_url} ({error}), so it {what}; {way_out}"
                    ) from error
            await asyncio.sleep(0.5)


def login_of(url: str) -> tuple[str, str] | None:
    """User and password of an address, so that what is printed and kept can go without them."""
    parts = httpx.URL(url)
    return (parts.username, parts.password) if parts.userinfo else None


def address(url: httpx.URL) -> str:
    """Host, port and path. Example: http://gpu1:8100/ gives gpu1:8100."""
    return f"{url.netloc.decode()}{url.path}".rstrip("/")


def waking(client: httpx.AsyncClient) -> str:
    """The command that wakes a server by hand."""
    return f"curl -X POST {str(client.base_url).rstrip('/')}{WAKE}"


def alike(one: Sample, other: Sample) -> bool:
    """Whether two greedy answers come from the same weights, up to rounding.

    A GPU adds some sums in an order that changes from run to run, which may turn a later token into another.
    """
    return one.ids[:1] == other.ids[:1] and abs(one.logprobs[0] - other.logprobs[0]) < ROUNDING


# Checks of a server: it has the policy's base, and log-probabilities that follow the temperature.
#
# With --logprobs-mode raw_logprobs, vLLM's default, they are those of temperature 1 whatever the request's temperature,
# and nothing in an answer says so. Between two tokens, log-probabilities at temperature T differ by 1 / T of what they
# differ by at temperature 1. So the likeliest tokens after the same prompt, asked for at both temperatures, tell. A low
# temperature magnifies the difference far above rounding errors of bf16.

COLD = 0.1
MAGNIFIED = math.sqrt(1 / COLD)  # half-way, in logarithms, between raw (1) and processed (10)
LISTED = 5  # as many likeliest tokens as any server lists
SMALL = 0.01  # a smaller difference at temperature 1 tells nothing
MOST_TOKENS = 2**20  # no vocabulary is larger
PROMPTS = ((11, 22, 33, 44, 55, 66, 77, 88), (200, 3, 150, 3, 100, 3, 50, 3), (9, 9, 9, 9, 9, 9, 9, 9))
# Greedy, so that equal weights give equal answers.
COMPARED = Request(PROMPTS[0], 8, (), sampling=Sampling(temperature=0))


@dataclass(frozen=True)
class Wanted:
    """The model that requests are meant for."""

    manifest: PolicyManifest
    vocabulary: int
    """Number of its tokens."""
    tokens: int
    """The most tokens of an episode."""


def check_served(model: dict[str, Any], wanted: Wanted, server: str) -> None:
    """Refuse a server of another base, or one too short for an episode. `model` is its entry in /v1/models."""
    longest = model.get("max_model_len")
    if isinstance(longest, int) and longest < wanted.tokens:
        raise UserError(
            f"{server} holds {longest} tokens, but an episode may have {wanted.tokens}; start it with "
            f"--max-model-len {wanted.tokens} (MAX_LEN of scripts/vllm_cpu.sh)"
        )
    check_root(str(model.get("root") or ""), wanted.manifest, server)


def check_root(root: str, manifest: PolicyManifest, server: str) -> None:
    """Refuse a server whose base is not the policy's. `root` is where it loaded its base from.

    A server on another machine has folders of its own, which can't be compared from here.
    """
    served = Path(root)
    elsewhere = served.is_absolute() and not served.exists()
    if not root or elsewhere or same_base(root, manifest.base, manifest.base_digest):
        return
    if manifest.quantized and is_copy_of(served, Path(manifest.base)):
        return
    raise UserError(f"{server} serves {served}, not {manifest.base}; start it with that model, or give --engine local")


def probe_body(prompt: tuple[int, ...], temperature: float, model: str) -> dict[str, Any]:
    """A completion of one token that lists the likeliest ones by their ids."""
    body = body_of(Request(prompt, 1, (), sampling=Sampling(temperature)), model)
    return body | {"logprobs": LISTED, "return_tokens_as_token_ids": True}


def listed_logprobs(choice: Mapping[str, Any], server: str) -> dict[str, float]:
    """The likeliest tokens of a probe's answer and their log-probabilities."""
    try:
        [listed] = choice["logprobs"]["top_logprobs"]
        values = dict(listed)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{server} lists no likeliest tokens; is its version supported?") from error
    # Their probabilities sum to at most 1; and to nearly 1 where even a vocabulary of tokens no likelier than the last
    # could not hold the rest.
    sound = bool(values) and all(map(is_logprob, values.values()))
    listed_mass = sum(math.exp(value) for value in values.values()) if sound else 0.0
    if not sound or listed_mass > 1.01 or listed_mass + MOST_TOKENS * math.exp(min(values.values())) < 0.99:
        raise UserError(f"{server} returns logits instead of log-probabilities; {WAY_OUT}")
    return values


def difference(warm: Mapping[str, float], cold: Mapping[str, float]) -> tuple[float, float]:
    """How far the likeliest and the least likely of the tokens in both differ: at temperature 1, and at COLD.

    Example: {a: -1, b: -2, c: -4} and {a: 0, b: -10, d: -30} give (1, 10): a and b are in both.
    """
    both = sorted(warm.keys() & cold.keys(), key=lambda token: warm[token])
    return (warm[both[-1]] - warm[both[0]], cold[both[-1]] - cold[both[0]]) if both else (0.0, 0.0)


def check_differences(differences: list[tuple[float, float]], server: str) -> None:
    """Refuse a server whose log-probabilities don't follow the temperature. The prompt with most to tell decides."""
    warm, cold = max(differences)
    if warm < SMALL:
        raise UserError(f"{server} finds all tokens equally likely; is its model whole?")
    if cold < MAGNIFIED * warm:
        raise UserError(
            f"{server} returns log-probabilities of temperature 1 whatever the temperature sampled at; {WAY_OUT}"
        )


# One completion: the request's body, and the sample in the answer, checked against the request.

RETRIED = {408, 409, 425, 429, 500, 502, 503, 504}  # statuses after which asking again may help
ROUNDED_UP = 1e-3  # a probability of 1 may come out this much above 1


class UnreadyError(Exception):
    """The server can't answer now, or its answer was cut off: asking again may help."""


async def answered(asking: Awaitable[httpx.Response], seconds: float) -> httpx.Response:
    """What a server answers to a request in so many seconds; UnreadyError where asking again may help."""
    try:
        async with asyncio.timeout(seconds):  # httpx itself times each piece of an answer
            answer = await asking
    except (httpx.RequestError, TimeoutError) as error:
        raise UnreadyError(f"{type(error).__name__} {error}".strip()) from error
    if answer.status_code in RETRIED:
        raise UnreadyError(f"status {answer.status_code}")
    return answer


def body_of(request: Request, model: str) -> dict[str, Any]:
    """What is left out here, the server takes from its model's generation_config.json."""
    return {
        "model": model,
        "prompt": list(request.ids),
        "max_tokens": request.max_tokens,
        "temperature": request.sampling.temperature,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "watermarking": False,
        "seed": request.seed,
        "stop_token_ids": list(request.stop_ids),
        "ignore_eos": True,  # only the request's own stop tokens end it
        "logprobs": 0,  # only the sampled token's
        "return_token_ids": True,
        "skip_special_tokens": False,
    }


def choice_of(answer: httpx.Response) -> dict[str, Any]:
    """The one choice of a completion; a proxy's page or half an answer has none."""
    try:
        [choice] = from_json(answer.content)["choices"]
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadyError(f"status {answer.status_code}, but no completion: {answer.text[:60]!r}") from error
    if not isinstance(choice, dict) or choice.get("finish_reason") not in ("stop", "length"):
        finish = choice.get("finish_reason") if isinstance(choice, dict) else choice
        raise UnreadyError(f"the request was broken off, {finish!r}")  # abort: the server is shutting down
    return choice


def read_sample(choice: dict[str, Any], request: Request, vocabulary: int = 0) -> Sample:
    """The sampled tokens and their log-probabilities. Refuses a choice that can't be what was asked for.

    `vocabulary` is the number of tokens of the policy's model; 0: not known.
    """
    ids, given = choice.get("token_ids"), choice.get("logprobs")
    logprobs = given.get("token_logprobs") if isinstance(given, dict) else None
    if not isinstance(ids, list) or not isinstance(logprobs, list) or not ids:
        raise UserError("the vLLM server returned no token log-probabilities; is its version supported?")
    if choice.get("prompt_token_ids") != list(request.ids):
        raise UserError("the vLLM server did not continue the tokens it was given; is its version supported?")
    if len(ids) != len(logprobs):
        raise UserError(f"the vLLM server returned {len(ids)} tokens but {len(logprobs)} log-probabilities")
    for token in ids:
        if type(token) is not int or token < 0 or (vocabulary and token >= vocabulary):
            raise UserError(
                f"the vLLM server sampled token {token!r}, which the policy's model lacks; start it with the policy's "
                "base"
            )
    for logprob in logprobs:
        if not is_logprob(logprob):
            raise UserError(f"the vLLM server returned {logprob!r} as a token's log-probability; {WAY_OUT}")
    check_end(ids, choice["finish_reason"], request)
    return Sample(tuple(ids), tuple(logprobs), choice["finish_reason"])


def read_scores(choice: Mapping[str, Any], ids: Sequence[int]) -> list[float]:
    """The log-probability of each prompt token but the first. Refuses a choice that lacks one."""
    given = choice.get("prompt_logprobs")
    if choice.get("prompt_token_ids") != list(ids) or not isinstance(given, list) or len(given) != len(ids):
        raise UserError("the vLLM server did not score the tokens it was given; is its version supported?")
    try:
        scores = [place[str(token)]["logprob"] for token, place in zip(ids[1:], given[1:], strict=True)]
    except (KeyError, TypeError) as error:
        raise UserError("the vLLM server left out a token's log-probability; is its version supported?") from error
    if not all(map(is_logprob, scores)):
        raise UserError(f"the vLLM server returned {min(scores)!r} to {max(scores)!r} as log-probabilities; {WAY_OUT}")
    return scores


WAY_OUT = "start it with --logprobs-mode processed_logprobs, as scripts/vllm_cpu.sh does"


def is_logprob(value: Any) -> bool:
    return isinstance(value, float | int) and math.isfinite(value) and value <= ROUNDED_UP


def check_end(ids: list[int], finish: str, request: Request) -> None:
    """Refuse a sample that ends where it should not, or goes on where it should have ended."""
    early = next((token for token in ids[:-1] if token in request.stop_ids), None)
    if early is not None:
        raise UserError(f"the vLLM server went on after token {early}, which ends a turn; is its version supported?")
    if finish == "stop" and ids[-1] not in request.stop_ids:
        raise UserError(f"the vLLM server stopped with 'stop' at token {ids[-1]}, which was not requested")
    if len(ids) > request.max_tokens or (finish == "length" and len(ids) < request.max_tokens):
        raise UserError(
            f"the vLLM server returned {len(ids)} tokens where {request.max_tokens} were asked for; start it with "
            "--generation-config vllm, and without max_new_tokens in --override-generation-config"
        )


def message_of(answer: httpx.Response) -> str:
    """The message of an error response, on one line."""
    try:
        told = from_json(answer.content)
        told = told.get("error") or told
        text = told if isinstance(told, str) else told.get("message") or told
    except (ValueError, AttributeError):
        text = answer.text
    return " ".join(str(text).split())[:300]
