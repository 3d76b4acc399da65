"""A chat model behind an OpenAI-compatible address: asked an instruction with a prompt, or a whole conversation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, TypeVar

import httpx

from forage.engines.vllm import UnreadyError, answered, message_of
from forage.errors import UserError
from forage.machine import bearer
from forage.text import from_json, without_passwords

T = TypeVar("T")
PATIENCE = 120.0  # seconds to keep trying one prompt while the server does not answer
TIMEOUT = 300.0  # seconds one request may take
AT_ONCE = 8
REFUSING = {400, 413, 422}  # this prompt, for example because it is too long
LONGEST_PAUSE = 10.0


class RefusedError(Exception):
    """The model can't be asked this; other prompts may go well."""


class Endpoint:
    """Asks a server, several prompts at once. Use it as `async with Endpoint(...)`.

    `option` is what the user sets the address with, and is named in errors.
    """

    def __init__(
        self, url: str, model: str, instruction: str, reply_tokens: int, option: str, *,
        patience: float = PATIENCE, timeout: float = TIMEOUT,
    ) -> None:  # fmt: skip
        self.model, self.instruction, self.reply_tokens, self.option = model, instruction, reply_tokens, option
        self.patience, self.timeout = patience, timeout
        self._address = chat_address(url)
        self.url = without_passwords(self._address)  # in errors
        try:
            httpx.URL(self._address)
        except httpx.InvalidURL as error:
            raise UserError(f"{option} {url}: {error}; give an address as http://HOST:PORT/v1") from error
        self._client = httpx.AsyncClient(headers=bearer("OPENAI_API_KEY"), timeout=timeout)
        self._free = asyncio.Semaphore(AT_ONCE)

    async def __aenter__(self) -> Endpoint:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def reply(self, prompt: str) -> str:
        """The model's text, which may be empty."""
        messages = [{"role": "system", "content": self.instruction}, {"role": "user", "content": prompt}]
        choice = await self.choice({"messages": messages, "max_tokens": self.reply_tokens, "temperature": 0})
        return choice["message"].get("content") or ""

    async def choice(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """A chat's first choice; RefusedError for this request alone, UserError where all would fail."""
        async with self._free:
            deadline, pause = time.monotonic() + self.patience, 0.25
            while True:
                try:
                    return await self._asked(body)
                except UnreadyError as error:
                    if time.monotonic() + pause > deadline:
                        raise UserError(
                            f"{self.url} gave no reply within {self.patience:g} s ({error}); start the server, "
                            "then re-run the same command"
                        ) from error
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _asked(self, body: Mapping[str, Any]) -> dict[str, Any]:
        asking = self._client.post(self._address, json={"model": self.model, **body})
        answer = await answered(asking, self.timeout)
        status = answer.status_code
        if status in REFUSING:
            raise RefusedError(f"status {status}: {message_of(answer)}")
        if status in (401, 403):
            raise UserError(f"{self.url} refuses the key (status {status}); set OPENAI_API_KEY to the server's")
        if status != 200:
            raise UserError(
                f"{self.url} answers with status {status} ({message_of(answer)}); check {self.option}, and that it "
                f"has a model {self.model}"
            )
        return choice_of(answer)


async def all_of(asking: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """What all of them return; after an error of one, the others are stopped, as nobody would wait for them."""
    tasks = [asyncio.create_task(one) for one in asking]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def chat_address(url: str) -> str:
    """Where chats are asked for. Example: http://host:8000 and http://host:8000/v1/ both give
    http://host:8000/v1/chat/completions.
    """
    url = url.rstrip("/").removesuffix("/chat/completions")
    path = url.partition("://")[2].partition("/")[2]
    return f"{url}/chat/completions" if path else f"{url}/v1/chat/completions"


def choice_of(answer: httpx.Response) -> dict[str, Any]:
    """The first choice; its message has a text or None as its content, and maybe calls, each of a function by name."""
    try:
        choice: dict[str, Any] = from_json(answer.content)["choices"][0]
        message = choice["message"]
        names = [call["function"]["name"] for call in message.get("tool_calls") or ()]
        if not isinstance(message.get("content"), str | None) or not all(isinstance(name, str) for name in names):
            raise TypeError("content or a call's name is no text")
        return choice
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:  # a proxy's page, for one
        raise UnreadyError(f"status 200, but no chat completion: {answer.text[:60]!r}") from error
