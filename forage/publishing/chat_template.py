"""The chat template of a merged model: whoever asks it with tool calling asks it as training did, token for token.

A server renders the messages of an OpenAI client by the model's chat template. Most templates can't describe a tool,
and none writes calls and results as the protocol does, so a served policy would see prompts that it was not trained
on. Here a part is put before the base's template that turns such messages into the protocol's: the system prompt of
training where the client gives none, calls as <tool_call>, results as a user turn of <tool_response>. Past turns are
put in after it, as many templates trim them, drop their thoughts or add empty ones.
"""

from __future__ import annotations

import json
from copy import copy
from dataclasses import replace
from pathlib import Path
from string import Template
from typing import Any

from forage.agent.prompts import clock
from forage.agent.protocol import TURN_SLOT, Protocol, write_call

TEMPLATE_FILE, GENERATION_FILE = "chat_template.jinja", "generation_config.json"
BASE_FOLLOWS = "{#- the base's own template -#}{{- '' }}"
BASE_ENDS = "{{ '' }}{#- where the base's own template ends -#}"
# A client's own system prompt stays as it is; if it gives tools and says nothing of how they are called, what training
# said of that follows. Between the tags nothing is written, and no white space of the base's template is swallowed.
PRELUDE = Template("""\
{#- Messages with tool calls, as the policy was trained on them: by merge_lora.py -#}
{%- set trained = $system -%}
{%- set describes_tools = $describes_tools -%}
{%- set has_system_turn = $has_system_turn -%}
{%- set told = namespace(system=none, turns=[], said=[], calls='') -%}
{%- for message in messages -%}
  {%- set parts = message.content or '' -%}
  {%- set text = parts if parts is string else parts | map(attribute='text') | join('\\n') -%}
  {%- set text = text if message.role == 'assistant' else text | replace($slot, '') -%}
  {%- if message.role in ['system', 'developer'] -%}
    {%- set told.system = text if told.system is none else told.system ~ '\\n\\n' ~ text -%}
  {%- elif message.role == 'tool' -%}
    {%- set result = '<tool_response>\\n' ~ text ~ '\\n</tool_response>' -%}
    {%- if loop.previtem is defined and loop.previtem.role == 'tool' -%}
      {%- set result = told.turns[-1].content ~ '\\n' ~ result -%}
      {%- set told.turns = told.turns[:-1] -%}
    {%- endif -%}
    {%- set told.turns = told.turns + [{'role': 'user', 'content': result}] -%}
  {%- else -%}
    {%- set told.calls = '' -%}
    {%- for call in message.tool_calls or [] -%}
      {%- set arguments = call.function.arguments -%}
      {%- set arguments = arguments if arguments is string else arguments | tojson -%}
      {%- set written = '{"name": ' ~ call.function.name | tojson ~ ', "arguments": ' ~ arguments ~ '}' -%}
      {%- set told.calls = told.calls ~ ('' if loop.first else '\\n') ~ '<tool_call>' ~ written ~ '</tool_call>' -%}
    {%- endfor -%}
    {%- set told.said = told.said + ([text ~ told.calls] if message.role == 'assistant' else []) -%}
    {%- set content = $slot if message.role == 'assistant' else text -%}
    {%- set told.turns = told.turns + [{'role': message.role, 'content': content}] -%}
  {%- endif -%}
{%- endfor -%}
{%- if told.system is none -%}
  {%- set told.system = trained -%}
  {%- set tools = (tools or $tools) if describes_tools else none -%}
{%- elif not describes_tools -%}
  {%- if tools and '<tool_call>' not in told.system -%}
    {%- set told.system = told.system ~ '\\n' ~ $tool_text -%}
  {%- endif -%}
  {%- set tools = none -%}
{%- endif -%}
{%- if has_system_turn -%}
  {%- set messages = [{'role': 'system', 'content': told.system}] + told.turns -%}
{%- elif told.turns and told.turns[0].role == 'user' -%}
  {%- set first = told.system ~ '\\n\\n' ~ told.turns[0].content -%}
  {%- set messages = [{'role': 'user', 'content': first}] + told.turns[1:] -%}
{%- else -%}
  {%- set messages = [{'role': 'user', 'content': told.system}] + told.turns -%}
{%- endif -%}
{%- set rendered -%}
""")
# Each turn follows what the base's template writes before a generation. Some write an empty thought before past ones.
POSTLUDE = Template("""\
{%- endset -%}
{%- for part in rendered.split($slot) -%}
  {%- set begun = $start in part and not loop.last -%}
  {{- part.rpartition($start)[0] ~ $start if begun else part -}}
  {{- told.said[loop.index0] if not loop.last -}}
{%- endfor -%}
""")
# Ways to sample that a base recommends, and that its policy was neither trained nor measured with.
SAMPLING = (
    "do_sample", "temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty", "no_repeat_ngram_size",
    "max_new_tokens",
)  # fmt: skip


def trained_template(protocol: Protocol) -> str:
    """The template of a policy that was trained by this protocol."""
    protocol = before_merging(protocol)
    base = protocol.tokenizer.chat_template
    values = {
        "slot": TURN_SLOT, "start": protocol.start, "system": protocol.system_prompt,
        "tools": protocol.described_tools, "tool_text": protocol.system_prompt.partition("\n")[2],
        "describes_tools": protocol.describes_tools,
        "has_system_turn": protocol.opening("")[0]["role"] == "system",
    }  # fmt: skip
    literals = {name: json.dumps(value, ensure_ascii=False) for name, value in values.items()}  # JSON is one in Jinja
    before, after = (part.substitute(literals) for part in (PRELUDE, POSTLUDE))
    return f"{clock(base)}{before}{BASE_FOLLOWS}{base}{BASE_ENDS}{after}"


def says_prompt(template: str) -> bool:
    """Whether a template is such a one."""
    return BASE_FOLLOWS in template


def before_merging(protocol: Protocol) -> Protocol:
    """The same protocol with the base's own template, where the base was itself a merged model."""
    tokenizer = copy(protocol.tokenizer)
    tokenizer.chat_template = tokenizer.chat_template.rpartition(BASE_FOLLOWS)[2].partition(BASE_ENDS)[0]
    return replace(protocol, tokenizer=tokenizer)


def asks_as_trained(protocol: Protocol, template: str) -> bool:
    """Whether a client's question becomes a prompt's tokens under this template, and what follows an episode's text.

    What follows is compared as text, as a few tokenizers cut line breaks otherwise where a sampled turn begins.
    """
    call, result = write_call("a few words"), "[1] A title: a text"
    turns = [*protocol.turn_ids(call), *protocol.join([result], protocol.end_of_turn)]
    asked = [{"role": "user", "content": "A question?"}, called("a few words"), {"role": "tool", "content": result}]
    prompt, episode = (
        protocol.tokenizer.apply_chat_template(
            messages, tools=protocol.described_tools, chat_template=template, add_generation_prompt=True, tokenize=False
        )
        for messages in (asked[:1], asked)
    )
    trained = protocol.prompt("A question?")
    asked_ids: list[int] = protocol.tokenizer(prompt, add_special_tokens=False)["input_ids"]
    return asked_ids == trained and episode == protocol.tokenizer.decode([*trained, *turns])


def called(query: str) -> dict[str, Any]:
    """A search as a client sends it back."""
    function = {"name": "search", "arguments": {"query": query}}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


def write_template(folder: Path, protocol: Protocol) -> bool:
    """Give a model's folder the template of its training; False, and nothing written, where the base's forbids it."""
    if not isinstance(protocol.tokenizer.chat_template, str):  # several templates by name
        return False
    template = trained_template(protocol)
    if not asks_as_trained(protocol, template):
        return False
    (folder / TEMPLATE_FILE).write_text(template, encoding="utf-8")
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    if "chat_template" in config:  # where models of some years ago keep it
        _write_json(path, config | {"chat_template": template})
    return True


def write_generation(folder: Path, protocol: Protocol) -> None:
    """Let servers end turns where the policy does, and sample by no recommendation of its base's."""
    path = folder / GENERATION_FILE
    known: dict[str, Any] = json.loads((path if path.is_file() else folder / "config.json").read_text(encoding="utf-8"))
    if not path.is_file():
        known = {name: known[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id") if name in known}
    ends = known.get("eos_token_id")
    ends = ends if isinstance(ends, list) else [ends]
    ends = sorted({*protocol.stop_ids, *(end for end in ends if end is not None)})
    kept = {name: value for name, value in known.items() if name not in (*SAMPLING, "_from_model_config")}
    _write_json(path, kept | {"eos_token_id": ends[0] if len(ends) == 1 else ends})


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
