"""The chat API as its clients speak it: https://platform.openai.com/docs/api-reference/chat/create.

What would change how a reply is drawn is refused instead of ignored: the recorded log-probabilities would not be those
that training compares with.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, Field, ValidationError, field_validator

from forage.engines.base import Sampling
from forage.errors import first_line
from forage.extras.serving.server import BadRequest
from forage.text import encodable, encodable_values, from_json

MODEL = "policy"  # the name that clients ask for
# What says nothing: OpenAI's defaults, which many clients send.
DEFAULTS: Mapping[str, Any] = {
    "n": 1, "tool_choice": "auto", "parallel_tool_calls": True, "logprobs": False, "store": False, "tools": [],
    "frequency_penalty": 0, "presence_penalty": 0, "response_format": {"type": "text"},
    "service_tier": "auto",
}  # fmt: skip


class Refused(BadRequest):
    """A request that gets this reason for its reply."""

    def __init__(self, message: str, status: int = 400, code: str = "") -> None:
        super().__init__(message, status)
        self.code = code


class Called(NamedTuple):
    """A call of a tool; the arguments are JSON in one form, so that equal ones are equal texts."""

    name: str
    arguments: str


@dataclass(frozen=True)
class Message:
    """A message, less what makes no difference to a reply, such as the ids of calls."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    calls: tuple[Called, ...] = ()


@dataclass(frozen=True)
class Chat:
    """What a client asks."""

    messages: tuple[Message, ...]
    tools: tuple[dict[str, Any], ...] = ()
    """As templates take them: {"type": "function", "function": {"name", "description", "parameters"}}."""
    most: int | None = None
    """Tokens of the reply, where the client bounds them."""
    stream: bool = False
    usage: bool = False
    """Whether a stream ends with the number of tokens."""

    @property
    def size(self) -> int:
        """In characters."""
        said = (len(m.content) + sum(len(name) + len(given) for name, given in m.calls) for m in self.messages)
        return sum(said) + len(json.dumps(self.tools))

    def asks_as(self, other: Chat) -> bool:
        return (self.messages, self.tools) == (other.messages, other.tools)


def one_form(arguments: object) -> str:
    """Example: '{"b": 1,"a": 2}', once parsed, gives '{"a": 2, "b": 1}'."""
    return json.dumps(encodable_values(arguments), ensure_ascii=False, sort_keys=True)


# Requests


class Part(BaseModel):
    type: Literal["text"]
    text: str


class FunctionCalled(BaseModel):
    name: str
    arguments: str = "{}"


class ToolCalled(BaseModel):
    function: FunctionCalled


class Said(BaseModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    tool_calls: list[ToolCalled] | None = None

    def message(self) -> Message:
        parts = self.content if isinstance(self.content, list) else []
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in parts)
        calls = [Called(call.function.name, _arguments(call.function)) for call in self.tool_calls or ()]
        return Message("system" if self.role == "developer" else self.role, text, tuple(calls))


def _arguments(call: FunctionCalled) -> str:
    try:
        return one_form(json.loads(call.arguments or "{}"))
    except (ValueError, RecursionError) as error:
        raise Refused(f"the arguments of a call of {call.name} are no JSON") from error


class Function(BaseModel):
    name: str
    description: str = ""
    parameters: dict[str, Any] = {}

    @field_validator("parameters")
    @classmethod
    def has_properties(cls, parameters: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(parameters.get("properties", {}), dict):
            raise ValueError("properties must be an object")
        return parameters


class Tool(BaseModel):
    type: Literal["function"]
    function: Function


class StreamOptions(BaseModel):
    include_usage: bool = False


class Body(BaseModel, extra="forbid"):
    model: str
    messages: list[Said] = Field(min_length=1)
    tools: list[Tool] = []
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    user: str = ""
    metadata: dict[str, str] = {}


def read_chat(content: bytes, sampling: Sampling) -> Chat:
    """What the client asks of the policy, which is sampled so."""
    try:
        values = from_json(content)
        if isinstance(values, dict):
            values = {key: each for key, each in values.items() if each is not None and each != DEFAULTS.get(key, ...)}
        body = Body.model_validate(encodable_values(values))
        tools = tuple(tool.model_dump() for tool in body.tools)
    except ValidationError as error:
        first = error.errors(include_url=False)[-1]  # of the forms that a value could have, the last says more
        where = ".".join(map(str, first["loc"])) or "the request"
        if first["type"] == "extra_forbidden":
            raise Refused(f"{where} would change how a reply is drawn or what is known of it; leave it out") from error
        raise Refused(f"{where}: {first['msg']}") from error
    except (ValueError, RecursionError) as error:
        raise Refused(f"the request can't be read: {first_line(error)}") from error
    if body.model != MODEL:
        raise Refused(f"there is no model {body.model!r} here, only {MODEL!r}", 404, "model_not_found")
    for name, wanted, used in (
        ("temperature", body.temperature, sampling.temperature), ("top_p", body.top_p, 1.0),
    ):  # fmt: skip
        if wanted not in (None, used):
            raise Refused(f"{name} {wanted:g}: this run samples at {used:g}; leave it out")
    return Chat(
        tuple(said.message() for said in body.messages),
        tools,
        min((most for most in (body.max_tokens, body.max_completion_tokens) if most), default=None),
        body.stream, body.stream_options.include_usage,
    )  # fmt: skip


# Replies


@dataclass(frozen=True)
class Answered:
    """A reply, for clients."""

    id: str
    said: Message
    finish: Literal["stop", "length"]
    asked_tokens: int
    tokens: int

    @property
    def reason(self) -> str:
        return "tool_calls" if self.said.calls else self.finish

    def message(self) -> dict[str, Any]:
        calls = [
            {"id": f"{self.id}-{n}", "type": "function", "function": call._asdict()}
            for n, call in enumerate(self.said.calls)
        ]
        # Some clients take an empty text for a reply of its own beside the calls.
        content = None if calls and not self.said.content else self.said.content
        return {"role": "assistant", "content": content} | ({"tool_calls": calls} if calls else {})

    def usage(self) -> dict[str, int]:
        total = self.asked_tokens + self.tokens
        return {"prompt_tokens": self.asked_tokens, "completion_tokens": self.tokens, "total_tokens": total}


def completion(answered: Answered) -> dict[str, Any]:
    choice = {"index": 0, "message": answered.message(), "finish_reason": answered.reason, "logprobs": None}
    return _head(answered, "chat.completion") | {"choices": [choice], "usage": answered.usage()}


def events(answered: Answered, *, usage: bool) -> Iterator[bytes]:
    """The reply as a stream, of which it is the only piece: it was sampled before it is told."""
    message = answered.message()
    for number, call in enumerate(message.get("tool_calls", ())):
        call["index"] = number
    pieces: Sequence[tuple[dict[str, Any], str | None]] = [(message, None), ({}, answered.reason)]
    head = _head(answered, "chat.completion.chunk")
    for delta, reason in pieces:
        yield _event(head | {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})
    if usage:
        yield _event(head | {"choices": [], "usage": answered.usage()})
    yield b"data: [DONE]\n\n"


def _head(answered: Answered, kind: str) -> dict[str, Any]:
    return {"id": answered.id, "object": kind, "created": 0, "model": MODEL}


def _event(value: Mapping[str, Any]) -> bytes:
    return f"data: {encodable(json.dumps(value, ensure_ascii=False))}\n\n".encode()
