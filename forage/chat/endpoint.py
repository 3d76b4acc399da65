"""Endpoint: plays the agent's turns by a model with tool calling behind an OpenAI-compatible address.

The loop, its limits and its search are the agent's own (`Agent.play`): this only speaks a turn. A reply's tool calls
become the protocol's calls and its text the answer, all with mask 0, as no token of it was sampled here; the texts of
the tool's responses are read back from the episode. Tokens are counted in the packaged model's, which is an estimate.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import time
from typing import Any

import httpx

from forage.agent.builder import EpisodeBuilder, TurnTokens
from forage.agent.prompts import RULE
from forage.agent.protocol import Protocol, read_turn, write_answer
from forage.engines.base import Engine, Sampling
from forage.engines.chat_endpoint import RETRIED, chat_address, message_of
from forage.errors import UserError, first_line
from forage.text import encodable_values

RESPONSE = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)
SERVE_TOOLS = "serve a model with tool calling (vLLM: --enable-auto-tool-choice --tool-call-parser hermes)"
PAUSE = 0.5


class Endpoint(Engine):
    """A server's model as an engine that speaks whole turns. Use it as `async with Endpoint(...)`."""

    def __init__(
        self, url: str, model: str, protocol: Protocol, sampling: Sampling, *, patience: float, timeout: float
    ) -> None:
        self.adapter, self.protocol, self.sampling = model, protocol, sampling
        self.patience, self.timeout = patience, timeout
        self.url = chat_address(url)
        key = os.environ.get("OPENAI_API_KEY", "")
        try:
            httpx.URL(self.url)
        except httpx.InvalidURL as error:
            raise UserError(f"--base-url {url}: {error}; give an address as http://HOST:PORT/v1") from error
        self._client = httpx.AsyncClient(headers={"Authorization": f"Bearer {key}"} if key else {}, timeout=timeout)
        self._said: dict[str, list[dict[str, Any]]] = {}
        """Each episode's turns as the server wrote them."""

    async def __aenter__(self) -> Endpoint:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    def release(self, episode: str) -> None:
        self._said.pop(episode, None)

    async def speak(self, episode: EpisodeBuilder, room: int, seed: int) -> TurnTokens:
        """The model's next turn, at most `room` tokens of its own."""
        started = time.perf_counter()
        said = self._said.setdefault(episode.id, [])
        messages = self._messages(episode, said)
        message, cut = await self._ask(messages, room, seed, "auto")
        if not said and not message.get("tool_calls") and not cut:  # the task is to search first
            message, cut = await self._ask(messages, room, seed, "required")
            if not message.get("tool_calls"):
                raise UserError(
                    f"{self.url}: {self.adapter} answered without a tool call, though one was required; {SERVE_TOOLS}"
                )
        said.append(message)
        ids = tuple(self.protocol.turn_ids(self._turn(message)))
        episode.seconds["generate"] += time.perf_counter() - started
        return TurnTokens(ids, (0,) * len(ids), (0.0,) * len(ids), "length" if cut else "stop")

    def _messages(self, episode: EpisodeBuilder, said: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The conversation so far, in the endpoint's form."""
        system = {"role": "system", "content": self.protocol.task + RULE}
        messages: list[dict[str, Any]] = [system, {"role": "user", "content": episode.question.question}]
        starts = [*(turn.start for turn in episode.turns), len(episode.ids)][1:]
        for message, turn, start in zip(said, episode.turns, starts, strict=True):
            results = RESPONSE.findall(self.protocol.tokenizer.decode(episode.ids[turn.end : start]))
            calls = message["tool_calls"]  # a reply without any was the answer
            messages.append({"role": "assistant", "content": message.get("content") or "", "tool_calls": calls})
            for call, result in zip(calls, results, strict=True):
                messages.append({"role": "tool", "tool_call_id": call.get("id", ""), "content": result})
        return messages

    def _turn(self, message: dict[str, Any]) -> str:
        """A reply as a turn of the protocol: its calls, or its text as the answer."""
        calls = message.get("tool_calls") or []
        if calls:
            return "\n".join(f"<tool_call>{call_text(call)}</tool_call>" for call in calls)
        content = message.get("content") or ""
        if "<tool_call>" in content:
            raise UserError(f"{self.url} gives tool calls as text, so it has no parser for them; {SERVE_TOOLS}")
        answer = read_turn(content).answer if "<answer>" in content else content
        return write_answer("\n".join(map(self.protocol.harmless, (answer or "").strip().splitlines())))

    async def _ask(
        self, messages: list[dict[str, Any]], room: int, seed: int, choice: str
    ) -> tuple[dict[str, Any], bool]:
        """(the reply, whether it was cut off at its most tokens); tries again while the server is busy."""
        body = {
            "model": self.adapter, "messages": messages, "tools": self.protocol.described_tools, "tool_choice": choice,
            "max_tokens": room, "temperature": self.sampling.temperature, "top_p": self.sampling.top_p,
            "seed": seed % 2**31,
        }  # fmt: skip
        deadline = time.monotonic() + self.patience
        while True:
            try:
                async with asyncio.timeout(self.timeout):  # httpx itself times each piece of an answer
                    answer = await self._client.post(self.url, json=body)
            except (httpx.RequestError, TimeoutError) as error:
                why = f"{type(error).__name__} {first_line(error)}"
                raise UserError(f"no answer from {self.url} ({why}); start the server, or check --base-url") from error
            if answer.status_code not in RETRIED:
                return self._reply(answer)
            if time.monotonic() + PAUSE > deadline:
                raise UserError(
                    f"{self.url} answers with status {answer.status_code} ({message_of(answer)}) for "
                    f"{self.patience:g} s; see the server's log, and ask again"
                )
            await asyncio.sleep(PAUSE)

    def _reply(self, answer: httpx.Response) -> tuple[dict[str, Any], bool]:
        status = answer.status_code
        if status in (401, 403):
            raise UserError(f"{self.url} refuses the key (status {status}); set OPENAI_API_KEY to the server's")
        if status == 404:
            raise UserError(f"{self.url}: {message_of(answer)} (status 404); check --base-url and --model")
        if status != 200:
            tools = "tool" in message_of(answer).lower()
            way_out = SERVE_TOOLS if tools else "check --base-url, --model and the server's log"
            raise UserError(f"{self.url} refuses the request (status {status}: {message_of(answer)}); {way_out}")
        try:
            choice: Any = encodable_values(answer.json()["choices"][0])
            message = dict(choice["message"])
            calls = [dict(call["function"]) for call in message.get("tool_calls") or []]
            if not all(isinstance(call["name"], str) for call in calls):
                raise TypeError("a tool's name is no text")
            if not isinstance(message.get("content") or "", str):
                raise TypeError("the content is no text")
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise UserError(f"{self.url} gives no chat completion ({first_line(error)}); check --base-url") from error
        return message, choice.get("finish_reason") == "length"


def call_text(call: dict[str, Any]) -> str:
    """A tool call as the protocol's JSON. Arguments that are no JSON stay text, which the agent's loop refuses.

    No < is left in it, so that a query can't end the call or the turn. Example: {"function": {"name": "search",
    "arguments": '{"query": "a <b"}'}} gives '{"name": "search", "arguments": {"query": "a \\u003cb"}}'.
    """
    arguments = call["function"].get("arguments")
    with contextlib.suppress(ValueError, TypeError, RecursionError):
        arguments = json.loads(arguments)
    return json.dumps({"name": call["function"]["name"], "arguments": arguments}).replace("<", "\\u003c")
