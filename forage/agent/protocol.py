"""Protocol: the messages between policy and tools, as tokens of a given model.

A turn of the policy holds either calls to tools, written as Hermes and Qwen2.5 do, or the final answer:

    <tool_call>{"name": "search", "arguments": {"query": "..."}}</tool_call>
    <answer>...</answer>

Free text may come before either. Each call is answered with a <tool_response> in a user turn. Where turns begin and end
is derived from the model's chat template; nothing that the policy sampled is ever tokenised again.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from forage.agent.options import AgentSettings
from forage.agent.prompts import RULE, TASK, chat_of, control_tokens, rendered, worded
from forage.agent.tools import SEARCH, Spec, example_call, fits, shape
from forage.errors import UserError
from forage.policy.manifest import PolicyManifest
from forage.store.fusion import Hit
from forage.text import encodable, encodable_values, titled

TOOL_DESCRIPTION = "Finds passages of a {subject}library."
# Used where the chat template can't describe tools in this form; other templates describe them as in training.
# It is short because it is part of every prompt.
TOOL_TEXT = (
    'To search, write <tool_call>{"name": "search", "arguments": {"query": "a few words"}}</tool_call> and end your '
    "turn; what was found comes in <tool_response>."
)
# Retrieved text must not contain these: every tag, in any spelling that a template or a model could know. Some
# tokenizers read characters as what they are compatible with, such as full-width letters, and drop invisible ones.
INVISIBLE = "\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufe00-\ufe0f\ufeff"
TAG = re.compile(rf"[<＜﹤](?=[{INVISIBLE}]*([^{INVISIBLE}]))")
CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
# What a template says of tools must be this form: Qwen3.5's and GLM's ask for <function=search> or <arg_key>.
HERMES = re.compile(r"""<tool_call>\s*\{\s*["'](name|arguments)["']""")
RESPONSE = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)
NO_TOOLS: Mapping[str, Spec] = {}
QUESTION_SLOT, TURN_SLOT, RESULT_SLOT = "QUESTION-GOES-HERE", "TURN-GOES-HERE", "RESULT-GOES-HERE"


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a turn: the query to search for, or another tool with its arguments, or the fault that keeps it from
    being run."""

    query: str = ""
    fault: str = ""
    tool: str = ""
    """The tool, if it is not the search."""
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)
    hint: str = field(default="", compare=False)
    """What the policy reads about the fault, where that depends on its tools."""

    @property
    def explanation(self) -> str:
        """What the policy reads about the fault."""
        return self.hint or CALL_FAULTS[self.fault]


@dataclass(frozen=True, slots=True)
class Reading:
    """The content of a turn: calls, or an answer, or neither; `faults` are the protocol rules it broke."""

    calls: tuple[Call, ...] = ()
    answer: str | None = None
    faults: tuple[str, ...] = ()


# The policy reads these texts when a fault keeps its call from being run.
CALL_FAULTS = {
    "call_not_closed": "the call is not closed with </tool_call>",
    "bad_json": "the call is not valid JSON",
    "bad_call": 'the call must be a JSON object with "name" and "arguments"',
    "unknown_tool": f'there is no such tool; the only one is "{SEARCH}"',
    "bad_arguments": '"arguments" must be a JSON object with a "query" of text',
    "empty_query": "the query is empty",
    "long_query": "the query is too long; use a few words",
    "too_many_calls": "too many calls in one turn; this one was not run",
}
# What people read about a fault.
FAULTS = {name: f"{text[0].upper()}{text[1:]}" for name, text in CALL_FAULTS.items()} | {
    "unknown_tool": "There is no such tool",
    "no_action": "A turn neither searched nor answered",
    "forged_response": "A turn contains <tool_response>, which only the tool may write",
    "answer_not_closed": "The answer is not closed with </answer>",
    "text_after_answer": "Text follows the answer",
    "empty_answer": "The answer is empty",
    "answer_with_call": "A turn calls and answers; what came first counts",
    "control_token": "A turn contains a token that begins or ends turns",
    "answer_forced": "The answer was forced, as the turn had none",
}
NO_ACTION = "no_action"
NO_ACTION_TEXT = "neither a call nor an answer was found; search, or write the answer between <answer> and </answer>"


def read_turn(
    text: str, *, max_calls: int = 3, max_query: int = 300, tools: Mapping[str, Spec] = NO_TOOLS
) -> Reading:  # fmt: skip
    """Read the calls or the answer from a turn's text; whichever comes first counts, the other is a fault.

    Examples: 'I look. <tool_call>{"name": "search", "arguments": {"query": "gout"}}</tool_call>' has one call;
    '<answer>Rest.</answer> <tool_call>...' has the answer 'Rest.' and the fault 'text_after_answer'.
    """
    faults = ["forged_response"] if "<tool_response>" in text else []
    answer_at, call_at = text.find("<answer>"), text.find("<tool_call>")
    if answer_at >= 0 and (call_at < 0 or answer_at < call_at):
        answer, closed, rest = text[answer_at + len("<answer>") :].partition("</answer>")
        faults += ["answer_not_closed"] if not closed else []
        faults += ["text_after_answer"] if rest.strip() else []
        faults += ["empty_answer"] if not answer.strip() else []
        return Reading(answer=answer.strip(), faults=tuple(faults))
    if call_at < 0:
        return Reading(faults=(*faults, NO_ACTION))
    faults += ["answer_with_call"] if answer_at >= 0 else []
    calls = [read_call(body, max_query, tools) for body in CALL.findall(text)]
    if text.rfind("<tool_call>") > text.rfind("</tool_call>"):
        calls.append(Call(fault="call_not_closed"))
    calls = calls[:max_calls] + [Call(fault="too_many_calls")] * (len(calls) - max_calls)
    return Reading(tuple(calls), faults=(*faults, *(call.fault for call in calls if call.fault)))


def read_call(body: str, max_query: int, tools: Mapping[str, Spec]) -> Call:
    """Read a call's JSON: its query, or the tool and its arguments, or its fault."""
    try:
        call: Any = encodable_values(json.loads(body))  # half of an emoji is a valid string in JSON and nowhere else
    except (ValueError, RecursionError):  # a number with thousands of digits is a ValueError too
        return Call(fault="bad_json")
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return Call(fault="bad_call")
    name, arguments = call["name"], call.get("arguments")
    if name in tools:
        if fits(arguments, tools[name]):
            return Call(tool=name, arguments=arguments)
        return Call(fault="bad_arguments", hint=f'the "arguments" of "{name}" must be {shape(tools[name])}')
    if name != SEARCH:
        names = ", ".join(f'"{each}"' for each in (SEARCH, *tools))
        return Call(fault="unknown_tool", hint=f"there is no such tool; choose among {names}" if tools else "")
    if not isinstance(arguments, dict) or not isinstance(arguments.get("query"), str):
        return Call(fault="bad_arguments")
    query = " ".join(arguments["query"].split())
    if not query:
        return Call(fault="empty_query")
    return Call(fault="long_query") if len(query) > max_query else Call(query)


CALL_OPENING = f'<tool_call>{{"name": "{SEARCH}", "arguments": {{"query": "'


def write_call(query: str) -> str:
    """A well-formed call, for demonstrations."""
    call = {"name": SEARCH, "arguments": {"query": query}}
    return f"<tool_call>{json.dumps(call, ensure_ascii=False)}</tool_call>"


def write_answer(answer: str) -> str:
    """A well-formed answer, for demonstrations."""
    return f"<answer>{answer}</answer>"


def tool_responses(results: Iterable[str]) -> str:
    """The user turn that answers a turn's calls."""
    return "\n".join(f"<tool_response>\n{result}\n</tool_response>" for result in results)


def parted(found: re.Match[str]) -> str:
    """A bracket with a space after it, if a tag could begin there. Example: the bracket of <b gets one, that of < 3 or
    of <3 none."""
    following = unicodedata.normalize("NFKC", found[1])[:1]
    opens = following.isascii() and (following.isalpha() or following in "|/!")
    return f"{found[0]} " if opens else found[0]


@dataclass(frozen=True)
class Protocol:
    """The protocol in one model's tokens, derived from its tokenizer and chat template."""

    tokenizer: Any
    passage_tokens: int = 120
    """Each passage of a response is cut to this many tokens."""
    task: str = TASK
    """The system prompt begins with it; RULE follows."""
    instruction: str = ""
    """Said instead of the task and RULE."""
    tools: Mapping[str, Spec] = field(default_factory=dict, hash=False)
    """What the policy is told of tools beside search."""

    @classmethod
    def playing(cls, tokenizer: Any, settings: AgentSettings) -> Protocol:
        """The protocol of an agent that plays by these settings."""
        return cls(tokenizer, settings.passage_tokens, settings.task, tools=settings.tools)

    @classmethod
    def of_policy(cls, manifest: PolicyManifest, settings: AgentSettings) -> Protocol:
        """The same, in the tokens of a policy."""
        from forage.policy.policy import load_tokenizer  # here, as it loads torch

        return cls.playing(load_tokenizer(manifest), settings)

    def __post_init__(self) -> None:
        if not self.tokenizer.chat_template:
            raise UserError(f"{self.tokenizer.name_or_path} has no chat template; use a model that was tuned for chat")
        self._delimiters  # noqa: B018 which refuses some templates

    @cached_property
    def _delimiters(self) -> tuple[str, str, str, str, str]:
        """The template's text before a question, from question to turn, from turn to result, and after a result; and
        from a question to a past turn.

        Found by rendering a conversation of placeholders.
        """
        result = tool_responses([RESULT_SLOT])  # Qwen3.5's drops the thoughts before any other message of a user
        turn = {"role": "assistant", "content": TURN_SLOT}, {"role": "user", "content": result}
        opening, more = self.opening(QUESTION_SLOT), {"tools": self.described_tools} if self.describes_tools else {}
        asked = rendered(self.tokenizer, opening, **more)
        whole = rendered(self.tokenizer, [*opening, *turn], **more)
        parts = re.split("|".join([QUESTION_SLOT, TURN_SLOT, result]), whole)
        if len(parts) != 4 or not whole.startswith(asked):
            name = self.tokenizer.name_or_path
            raise UserError(
                f"the chat template of {name} changes earlier turns when later ones follow; use another model, or "
                "give it a chat_template.jinja that keeps them"
            )
        # A turn begins where the template starts a generation, which may differ from how it writes past turns.
        return parts[0], asked[len(parts[0] + QUESTION_SLOT) :], parts[2], parts[3], parts[1]

    @property
    def start(self) -> str:
        """What the template writes between a question and where the policy's turn begins."""
        return self._delimiters[1]

    def opening(self, question: str) -> list[dict[str, str]]:
        """The messages with which a conversation begins. Where a template has no system turn, the question says it."""
        if self.has_system_turn:
            return chat_of(self.system_prompt, question)
        return [{"role": "user", "content": f"{self.system_prompt}\n\n{question}"}]

    @cached_property
    def has_system_turn(self) -> bool:
        messages = chat_of(self.system_prompt, QUESTION_SLOT)
        return self.describes_tools or self.system_prompt in rendered(self.tokenizer, messages)

    @cached_property
    def describes_tools(self) -> bool:
        """Whether the template describes tools with Hermes calls; others, such as Llama 3's, have another format."""
        own = rendered(self.tokenizer, chat_of(self._instruction, QUESTION_SLOT), tools=self.described_tools)
        return bool(HERMES.search(own)) and self.described_tools[0]["function"]["description"] in own

    @property
    def _instruction(self) -> str:
        return self.instruction or self.task + RULE

    @property
    def system_prompt(self) -> str:
        """What the policy is told first; a template that describes the tools itself says so in its own words."""
        if self.describes_tools:
            return self._instruction
        more = [f"Likewise {example_call(name, spec)}. {spec['description']}" for name, spec in self.tools.items()]
        return "\n".join([self._instruction, TOOL_TEXT, *more])

    @property
    def described_tools(self) -> list[dict[str, Any]]:
        """Search and the other tools, for templates and servers that describe tools."""
        search = {
            "description": worded(TOOL_DESCRIPTION, self.task),
            "parameters": {
                "type": "object",
                "properties": {"query": {"type": "string", "description": "What to look for, in a few words."}},
                "required": ["query"],
            },
        }
        specs = {SEARCH: search, **self.tools}
        return [{"type": "function", "function": {"name": name, **spec}} for name, spec in specs.items()]

    @cached_property
    def end_of_turn(self) -> int:
        """The token that ends a turn of the policy."""
        first: int = self.encode(self._delimiters[2])[0]
        if first not in control_tokens(self.tokenizer).texts:
            name = self.tokenizer.name_or_path
            raise UserError(f"the chat template of {name} does not end turns with a special token; use another model")
        return first

    def check(self) -> None:
        """Refuse a model in whose tokens a turn does not end, or forges others."""
        turn = self.turn_ids(f"I look.\n{write_call('gout')}")
        header = self.encode(self._delimiters[4].removeprefix(self.start))  # gpt-oss must write <|channel|> itself
        if self.forges(header) or self.forges(turn) or read_turn(self.text(turn)).calls != (Call("gout"),):
            name = self.tokenizer.name_or_path
            raise UserError(f"a turn of {name} can't be told from what begins and ends turns; use another model")

    @cached_property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens that stop a turn's generation."""
        eos = self.tokenizer.eos_token_id
        return (self.end_of_turn,) if eos in (None, self.end_of_turn) else (self.end_of_turn, eos)

    @cached_property
    def turn_tokens(self) -> frozenset[int]:
        """Tokens that a turn must not contain before its end: special ones, and those that begin and end turns.

        Some models, such as DeepSeek's, do not count the latter as special.
        """
        around = (token for text in self._delimiters[1:4] for token in self.encode(text))
        return frozenset(self.tokenizer.all_special_ids).union(
            token for token in around if token in control_tokens(self.tokenizer).texts
        )

    @cached_property
    def _passage_room(self) -> int:
        """No passage that is cut to length needs more characters: as if each token were as long as the longest."""
        return self.passage_tokens * max(map(len, self.tokenizer.get_vocab()))

    def prompt(self, question: str) -> list[int]:
        """Tokens of the prompt, up to where the policy's first turn begins."""
        before, after, *_ = self._delimiters
        return self.encode(before + self.harmless(question) + after)

    def question_in(self, prompt: Sequence[int]) -> str | None:
        """The question that a prompt asks; None if it is not a prompt of this protocol."""
        before, _, after = self._decode(self.prompt(QUESTION_SLOT)).partition(QUESTION_SLOT)
        found = re.fullmatch(f"{re.escape(before)}(.*){re.escape(after)}", self._decode(prompt), re.DOTALL)
        return found[1] if found else None

    def turn_ids(self, text: str) -> list[int]:
        """A turn's tokens as the policy would sample them, for demonstrations."""
        return [*self.encode(text), self.end_of_turn]

    @cached_property
    def call_opening(self) -> tuple[int, ...]:
        """The tokens of a call, up to its query."""
        return tuple(self.encode(CALL_OPENING))

    def join(self, results: Sequence[str], last: int | None) -> list[int]:
        """Tokens between two turns: what follows the last sampled token of one, `last`, up to the start of the next."""
        _, _, before, after, _ = self._delimiters
        ids = self.encode(before + tool_responses(results) + after)
        return ids[1:] if last == self.end_of_turn else ids

    def show(self, hits: Iterable[Hit]) -> str:
        """A search result as text: numbered passages, each cut to length, none able to forge a turn."""
        texts = (" ".join(titled(hit.title, hit.text).split()) for hit in hits)
        return "\n".join(f"[{number}] {self.shown(text)}" for number, text in enumerate(texts, 1)) or "nothing found"

    def shown(self, text: str, passages: int = 1) -> str:
        """Text from outside as the policy reads it: cut to the length of some passages, unable to forge a turn."""
        text, most = self.harmless(text[: passages * self._passage_room]), passages * self.passage_tokens
        offsets = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        return text if len(offsets) <= most else text[: offsets[most - 1][1]].rstrip()

    def harmless(self, text: str) -> str:
        """Text without tags and control tokens: each gets a space after its first character."""
        return control_tokens(self.tokenizer).broken(TAG.sub(parted, " ".join(encodable(text).split())))

    def text(self, ids: Sequence[int]) -> str:
        """A turn's tokens as text, without the end of turn."""
        return self._decode([number for number in ids if number not in self.stop_ids])

    def forges(self, ids: Sequence[int]) -> bool:
        """Whether a turn contains one of the template's special tokens before its end."""
        inside = ids[:-1] if ids and ids[-1] in self.stop_ids else ids
        return not self.turn_tokens.isdisjoint(inside)

    def _decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def encode(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]
