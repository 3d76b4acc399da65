"""ToolCaller: plays the agent's turns by a model with tool calling behind an OpenAI-compatible address.

The loop, its limits and its search are the agent's own (`Agent.play`): this only speaks a turn. A reply's tool calls
become the protocol's calls and its text the answer, all with mask 0, as no token of it was sampled here; the texts of
the tool's responses are read back from the episode. Tokens are counted in the packaged model's, which is an estimate.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass, field
from typing import Any

from forage.agent.agent import EpisodeBuilder, TurnTokens
from forage.agent.prompts import RULE
from forage.agent.protocol import RESPONSE, Protocol, read_turn, write_answer
from forage.engines.base import Engine, Sampling
from forage.engines.chat_endpoint import Endpoint, RefusedError
from forage.errors import UserError
from forage.text import encodable_values

SERVE_TOOLS = "serve a model with tool calling (vLLM: --enable-auto-tool-choice --tool-call-parser hermes)"


@dataclass
class ToolCaller(Engine):
    """A server's model as an engine that speaks whole turns."""

    server: Endpoint
    protocol: Protocol
    sampling: Sampling
    said: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Each episode's turns as the server wrote them."""

    def release(self, episode: str) -> None:
        self.said.pop(episode, None)

    async def speak(self, episode: EpisodeBuilder, room: int, seed: int) -> TurnTokens:
        """The model's next turn, at most `room` tokens of its own."""
        started = time.perf_counter()
        said = self.said.setdefault(episode.id, [])
        messages = self._messages(episode, said)
        message, cut = await self._ask(messages, room, seed, "auto")
        if not said and not message.get("tool_calls") and not cut:  # the task is to search first
            message, cut = await self._ask(messages, room, seed, "required")
            if not message.get("tool_calls"):
                raise self._refused("it answered without a tool call, though one was required")
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
        if calls := message.get("tool_calls"):
            return "\n".join(f"<tool_call>{call_text(call)}</tool_call>" for call in calls)
        content = message.get("content") or ""
        answer = read_turn(content).answer if "<answer>" in content else content
        if "<tool_call>" in content:
            raise self._refused("it gives tool calls as text, so it has no parser for them")
        return write_answer("\n".join(map(self.protocol.harmless, (answer or "").strip().splitlines())))

    async def _ask(
        self, messages: list[dict[str, Any]], room: int, seed: int, choice: str
    ) -> tuple[dict[str, Any], bool]:
        """(the reply, whether it was cut off at its most tokens)."""
        body = {
            "messages": messages, "tools": self.protocol.described_tools, "tool_choice": choice, "max_tokens": room,
            "temperature": self.sampling.temperature, "top_p": self.sampling.top_p, "seed": seed % 2**31,
        }  # fmt: skip
        try:
            answer: Any = encodable_values(await self.server.choice(body))
        except RefusedError as error:
            raise self._refused(str(error)) from error
        return answer["message"], answer.get("finish_reason") == "length"

    def _refused(self, why: str) -> UserError:
        return UserError(f"{self.server.model} at {self.server.url}: {why}; {SERVE_TOOLS}")


def call_text(call: dict[str, Any]) -> str:
    """A tool call as the protocol's JSON. Arguments that are no JSON stay text, which the agent's loop refuses.

    No < is left in it, so that a query can't end the call or the turn. Example: {"function": {"name": "search",
    "arguments": '{"query": "a <b"}'}} gives '{"name": "search", "arguments": {"query": "a \\u003cb"}}'.
    """
    arguments = call["function"].get("arguments")
    with contextlib.suppress(ValueError, TypeError, RecursionError):
        arguments = json.loads(arguments)
    return json.dumps({"name": call["function"]["name"], "arguments": arguments}).replace("<", "\\u003c")
