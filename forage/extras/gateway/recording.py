"""Recording: what a policy says to a client that sends the whole conversation each time, as an episode's tokens.

What the policy said before in an episode goes back into its prompt as the very tokens that it sampled, wherever the
client's messages hold it unchanged. Where a client has changed what came before, by a summary, dropped turns or
another conversation beside it, a new segment begins. Each token is learnt from in the segment in which it was sampled.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, Field

from forage.agent.agent import Agent, EpisodeBuilder, TurnTokens, turn_seed
from forage.agent.episode import Episode, Segment
from forage.agent.prompts import control_tokens, rendered
from forage.agent.protocol import CALL, INVISIBLE, Reading, read_call, tool_responses
from forage.agent.tools import example_call
from forage.data.records import Question
from forage.engines.base import EngineError
from forage.errors import UserError, first_line
from forage.extras.gateway.chat_api import Answered, Called, Chat, Message, Refused, one_form
from forage.text import encodable

OVER = "no episode is being played at this address; it may be over"
# What a reply can do wrong whatever its agent wants of it.
FAULTS = ("control_token", "forged_response", "call_not_closed", "bad_json", "bad_call")
# Where a tag of a tool's answer could begin, however it is written.
RESPONSE_TAG = re.compile(rf"[<＜﹤](?=[{INVISIBLE}/]*tool_response)")
CHARACTERS = 32  # that a token has at most on average, in any conversation that is worth counting
MOST_REPLIES = 200  # in an episode: an agent that asks more often than this is in a loop


class Ended(BaseModel):
    """What came of an episode."""

    answer: str = ""
    reward: float | None = Field(default=None, ge=0, le=1)
    """The agent's own, for get_own_reward."""
    cause: str = ""
    """Why the agent failed, if it did."""


@dataclass(frozen=True, eq=False)
class Reply:
    """What the policy said to a conversation, and where that is in its segment."""

    chat: Chat
    segment: EpisodeBuilder
    start: int
    end: int
    answered: Answered

    @property
    def said(self) -> Message:
        return self.answered.said

    @property
    def ids(self) -> list[int]:
        return self.segment.ids[self.start : self.end]

    def stands_in(self, chat: Chat, number: int) -> bool:
        """Whether a message of the chat is this reply, after its conversation, unchanged."""
        return (
            self.chat.tools == chat.tools
            and self.chat.messages == chat.messages[:number]
            and same(self.said, chat.messages[number])
        )


def same(said: Message, sent: Message) -> bool:
    """Whether a client sends back what was said to it; some strip white space."""
    return sent.role == "assistant" and said.calls == sent.calls and said.content.strip() == sent.content.strip()


class Recorder:
    """An episode under construction that a client asks for one reply after the other, or for several at once."""

    def __init__(self, agent: Agent, question: Question, name: str, seed: int) -> None:
        self.agent, self.seed, self.protocol = agent, seed, agent.protocol
        # Its tokens are never sampled: it knows the question and what tools found.
        self.book = EpisodeBuilder(name, question, [], agent.engine.adapter)
        self.segments: list[EpisodeBuilder] = []
        self.replies: list[Reply] = []
        self.first_asked: list[Chat] = []
        self.asked = 0
        self.over = False
        self.sampling: set[asyncio.Future[TurnTokens]] = set()
        self.error: UserError | None = None
        """What ends the run, such as no memory to sample with, whatever the agent makes of it."""
        self.harmless = control_tokens(self.protocol.tokenizer, self.protocol.turn_tokens)

    async def reply(self, chat: Chat, gone: Callable[[], Awaitable[bool]], *, again: bool = False) -> Answered:
        """Sample what comes next. Without a client that still waits for it, as `gone` tells, it is not recorded.

        `again`: the client has asked this before and says that the reply never came.
        """
        settings, number = self.agent.settings, self.asked
        if (size := chat.size) > CHARACTERS * settings.max_tokens:  # to count its tokens would keep all others waiting
            raise self.too_long(f"{size} characters")
        if again:
            answered = [each for each in self.replies if each.chat.asks_as(chat)]
            # An agent may ask the same several times; the last reply is this one's if each time has its own.
            if answered and len(answered) >= sum(first.asks_as(chat) for first in self.first_asked):
                return answered[-1].answered
        else:
            self.first_asked.append(chat)
        ids, before = self.prompt(chat)
        room = min(settings.max_turn_tokens, settings.max_tokens - len(ids), chat.most or settings.max_turn_tokens)
        if room < 1:
            raise self.too_long(f"{len(ids)} tokens")
        if self.over:
            raise Refused(OVER, 410)
        if number >= MOST_REPLIES:
            self.book.stop = "turns"
            raise Refused(f"the episode has had {MOST_REPLIES} replies; end it")
        self.asked += 1
        seed = turn_seed(self.seed, self.book.id, number)
        try:
            sampling = asyncio.ensure_future(self.agent.speak(replace(self.book, prompt=ids), room, seed, ()))
            self.sampling.add(sampling)
            sampling.add_done_callback(self.sampling.discard)
            tokens = await sampling
        except EngineError as error:
            self.book.cause, self.book.stop = str(error), "engine"
            raise Refused(f"the engine failed: {first_line(error)}", 503) from error
        except UserError as error:
            self.error = error
            raise Refused(first_line(error), 500) from error
        if self.over or await gone():
            raise Refused("nobody waits for this reply any more", 410)
        self.book.cause, self.book.stop = "", ""  # what was refused before, the agent has got over
        return self.record(chat, ids, before, tokens)

    def too_long(self, size: str) -> Refused:
        self.book.stop = "tokens"
        most = f"{self.agent.settings.max_tokens} tokens that an episode may have (--max-tokens)"
        return Refused(f"the conversation has {size}, of {most}", code="context_length_exceeded")

    def record(self, chat: Chat, ids: list[int], before: Reply | None, tokens: TurnTokens) -> Answered:
        """Add what was sampled after `ids` to the segment that the chat continues, or to a new one."""
        if before and len(before.segment.ids) == before.end:
            segment = before.segment
            segment.add_results(ids[before.end :])
        else:
            segment = EpisodeBuilder(self.book.id, self.book.question, ids, self.book.adapter)
            self.segments.append(segment)
        faults = self.agent.read(tokens.ids).faults
        segment.add_turn(tokens, Reading(faults=tuple(fault for fault in faults if fault in FAULTS)))
        self.book.turns = segment.turns
        said = read_reply(self.protocol.text(tokens.ids), tools=bool(chat.tools))
        name = f"{self.book.id}-{len(self.replies)}"
        answered = Answered(name, said, tokens.finish, len(ids), len(tokens.ids))
        self.replies.append(Reply(chat, segment, len(ids), len(segment.ids), answered))
        return answered

    def prompt(self, chat: Chat) -> tuple[list[int], Reply | None]:
        """The tokens before the next reply, and the reply that they continue."""
        known = self.known(chat)
        slot = f"REPLY-{secrets.token_hex(16)}"  # which no text can know
        pieces = self.text(chat, known, slot).split(slot)
        if len(pieces) != len(known) + 1:
            raise Refused("the chat template of this model leaves out what was said before")
        # The template may write a past turn's beginning otherwise than where it lets a turn begin. So where the
        # conversation goes on, what is there stays, and only what follows the last reply is new.
        ids, before = self.protocol.encode(pieces[0]), None
        for (number, reply), piece in zip(known.items(), pieces[1:], strict=True):
            if reply.stands_in(chat, number):
                ids, before = reply.segment.ids[: reply.end], reply
            else:
                ids = ids + reply.ids
            after = self.protocol.encode(piece)
            ended = after[:1] == [self.protocol.end_of_turn] == ids[-1:]
            ids = ids + (after[1:] if ended else after)
        return ids, before

    def known(self, chat: Chat) -> dict[int, Reply]:
        """By the number of their message, the replies that the chat holds unchanged; of equal ones that which continues
        this chat."""
        found = {}
        for number, message in enumerate(chat.messages):
            equal = [reply for reply in self.replies if same(reply.said, message)]
            here = [reply for reply in equal if reply.stands_in(chat, number)]
            if equal:
                found[number] = (here or equal)[-1]
        return found

    def text(self, chat: Chat, known: Mapping[int, Reply], slot: str) -> str:
        """The conversation by the model's template, with a slot for each reply that the policy gave.

        Of all else, which may quote what was found, nothing begins or ends a turn, or a tool's answer within one.
        """
        told: list[dict[str, str]] = []
        for number, message in enumerate(chat.messages):
            said = "\n".join(filter(None, [message.content, *map(written, message.calls)]))
            content = self.harmless.broken(encodable(said))
            role: str = message.role
            if role in ("tool", "assistant"):
                content = RESPONSE_TAG.sub("< ", content)
            if role == "tool":
                role, content = "user", tool_responses([content])
                if number and chat.messages[number - 1].role == "tool":
                    told[-1]["content"] += f"\n{content}"
                    continue
            told.append({"role": role, "content": slot if number in known else content})
        return self.by_template(told, chat)

    def by_template(self, messages: list[dict[str, str]], chat: Chat) -> str:
        """Where a template can't describe tools in the form of this protocol, the system turn does; where it has no
        system turn, the first message does what that would."""
        tools = json.loads(self.harmless.broken(json.dumps(chat.tools, ensure_ascii=False)))
        described = tools if self.protocol.describes_tools else []
        system = messages.pop(0)["content"] if messages[0]["role"] == "system" else ""
        if not described:
            system = "\n".join(filter(None, [system, *map(worded, tools)]))
        if system and self.protocol.has_system_turn:
            messages.insert(0, {"role": "system", "content": system})
        elif system:
            first = messages[0]["content"] if messages and messages[0]["role"] == "user" else ""
            messages[: bool(first)] = [{"role": "user", "content": "\n\n".join(filter(None, [system, first]))}]
        text = rendered(self.protocol.tokenizer, messages, **({"tools": described} if described else {}))
        if not text:
            raise Refused("the chat template of this model refuses this order of roles")
        return text

    async def call(self, name: str, arguments: str) -> str:
        """What a tool answers to arguments in JSON, as our own loop's policy reads it."""
        written = f'{{"name": {json.dumps(name)}, "arguments": {arguments}}}'
        call = read_call(written, self.agent.settings.max_query, self.protocol.tools)
        return await self.agent.answer_call(call, self.book)

    async def finished(self, ended: Ended) -> Episode:
        """The episode, with the segment of the last reply as its own tokens; once nothing more is sampled for it, even
        if nobody waits for that."""
        self.over = True
        if self.sampling:
            await asyncio.wait(self.sampling)
        self.agent.engine.release(self.book.id)
        if not self.segments:
            self.segments = [replace(self.book, prompt=self.protocol.prompt(self.book.question.question))]
        last = self.replies[-1].segment if self.replies else self.segments[0]
        last.answer, last.cause = ended.answer.strip(), self.book.cause or ended.cause
        last.stop = self.book.stop or "turns"
        if last.stop != "engine" and (ended.cause or last.answer):
            last.stop = "agent" if ended.cause else "answer"
        last.uses, last.started, last.seconds = self.book.uses, self.book.started, self.book.seconds
        one = len(self.segments) == 1  # else a search's turn could be one of another segment
        last.searches = [search if one else replace(search, turn=-1) for search in self.book.searches]
        others = [each for each in self.segments if each is not last]
        earlier = tuple(
            Segment(tuple(each.ids), tuple(each.mask), tuple(each.logprobs), tuple(each.turns)) for each in others
        )
        return replace(last.finished(self.protocol), earlier=earlier, own_reward=ended.reward)


def read_reply(text: str, *, tools: bool) -> Message:
    """A reply in the client's terms. Calls that can't be read stay text, and so do all where no tool was offered.

    Example: 'I look. <tool_call>{"name": "search", "arguments": {"query": "gout"}}</tool_call>' is the text 'I look.'
    with a call.
    """
    calls = [read_called(body) for body in CALL.findall(text)] if tools else []
    if not calls or None in calls or text.count("<tool_call>") != len(calls):
        return Message("assistant", text)
    return Message("assistant", text.partition("<tool_call>")[0].strip(), tuple(filter(None, calls)))


def read_called(body: str) -> Called | None:
    try:
        call = json.loads(body)
        arguments = one_form(call.get("arguments", {})) if isinstance(call, dict) else ""
    except (ValueError, RecursionError):
        return None
    if not arguments.startswith("{") or not isinstance(call.get("name"), str):
        return None
    return Called(encodable(call["name"]), arguments)


def written(call: Called) -> str:
    """A call that the policy did not write itself, as in an example that the client gives it."""
    return f'<tool_call>{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}</tool_call>'


def worded(tool: Mapping[str, Any]) -> str:
    """What a policy is told of a tool where its template can't say it."""
    function = tool["function"]
    call = example_call(function["name"], {"parameters": {"properties": {}} | function["parameters"]})
    told = f"To use {function['name']}, write <tool_call>{call}</tool_call> and end your turn."
    return f"{told} {function['description']}".strip()
