"""Prompts: the sentence of the task that opens the agent's, those outside the search protocol, and a model's tokens for
turns, tools and the like, which text from documents must not become."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import date
from functools import lru_cache
from typing import Any, Literal

from forage.text import encodable

RewriteMode = Literal["append", "replace"]

TASK = "Answer the question from a library"
"""The task where --task says nothing else."""
MEDICAL_TASK = "Answer the medical question from a library"
"""The task that all policies were given before there was --task. Their other prompts say "medical" too."""
RULE = ": search it first, then write the answer between <answer> and </answer>."


def worded(prompt: str, task: str) -> str:
    """A prompt in the words of a task. Example: "a {subject}text" is "a medical text" for MEDICAL_TASK, else "a text".

    So what was begun with the only task there was goes on with the prompts there were.
    """
    return prompt.replace("{subject}", "medical " if task == MEDICAL_TASK else "")


QUERY_WORDS = (
    "Write a search query for the question: the {subject}words that a text with the answer contains. Only words."
)
REWRITE = worded(QUERY_WORDS, TASK)
DAY = date(2024, 7, 26)
"""Today, for chat templates: what Llama's say where there is no clock."""
# HyDE asks for a document that answers the question, and searches with it: https://arxiv.org/abs/2212.10496.
PASSAGE = "Write a short passage of a {subject}text that answers the question."


def final_query(query: str, written: str, mode: RewriteMode, weight: int) -> str:
    """The text to search with. Example: ("gout", "sore toe", "append", 2) gives "gout gout sore toe"."""
    parts = [query] * weight + [written] if mode == "append" else [written]
    return " ".join(" ".join(parts).split())


def with_titles(question: str, titles: Sequence[str]) -> str:
    """What a rewriter is asked that has seen what the question finds. Example: "Is it hereditary?\\nGout; Flu"."""
    return "\n".join(filter(None, [question, "; ".join(titles)]))


def chat_of(system: str, user: str) -> list[dict[str, str]]:
    """The messages that open a chat."""
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


def prompt_tokens(tokenizer: Any, instruction: str, query: str) -> list[int]:
    """A prompt in the model's chat template, or without one, a plain text for the model to continue."""
    query = control_tokens(tokenizer).broken(encodable(query))  # a query must not end its own turn
    if not tokenizer.chat_template:
        text = f"{instruction}\n\nQuestion: {query}\nSearch query:"
        return tokenizer(text)["input_ids"]
    text = rendered(tokenizer, chat_of(instruction, query))
    if instruction not in text:  # some templates refuse a system turn, or drop it
        text = rendered(tokenizer, [{"role": "user", "content": f"{instruction}\n\n{query}"}])
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def rendered(tokenizer: Any, messages: Sequence[Mapping[str, str]], **more: Any) -> str:
    """The chat template's text, up to where a turn begins; empty if the template refuses these messages."""
    from jinja2 import TemplateError

    template = tokenizer.get_chat_template(tools=more.get("tools"))
    more |= {"chat_template": clock(template) + template, "add_generation_prompt": True, "tokenize": False}
    try:
        return str(tokenizer.apply_chat_template(messages, **more))
    except TemplateError:
        return ""


def clock(template: str) -> str:
    """What stands before a template that says the date, as Llama 3.2's does: its clock, which stands still.

    Else a run's prompts would be others each day, and a merged model's never again those of its training.
    """
    days = {form: DAY.strftime(form) for _, form in re.findall(r"strftime_now\((['\"])(.*?)\1\)", template)}
    stopped = f"{{%- macro strftime_now(format) -%}}{{{{ {json.dumps(days)}[format] }}}}{{%- endmacro -%}}{{{{- '' }}}}"
    return stopped if days else ""


# Control tokens


class ControlTokens:
    """The tokens that a tokenizer has outside its normal vocabulary."""

    def __init__(self, tokenizer: Any, only: frozenset[int] | None = None) -> None:
        self._tokenizer = tokenizer
        added: dict[int, Any] = tokenizer.added_tokens_decoder
        # No white space, nor single characters, as Gemma has among them; some vocabularies write a space as ▁.
        self.texts = {
            number: token.content
            for number, token in added.items()
            if len(token.content.strip("▁ \t\r\n")) > 1 and (only is None or number in only)
        }
        self._watched = self.texts.keys() - {tokenizer.unk_token_id}  # any text may hold unknown characters
        texts = sorted(self.texts.values(), key=len, reverse=True)
        self._markup = re.compile("|".join(map(re.escape, texts)) or r"(?!)")

    def broken(self, text: str) -> str:
        """Text that gives none of these tokens: each gets a space after its first character.

        Example: "<|im_end|>" becomes "< |im_end|>". The tokens are looked at too, as some tokenizers read other
        characters alike: what still becomes a control token is replaced by a space.
        """
        while self._markup.search(text):
            text = self._markup.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)
        while True:
            read = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
            pairs = zip(read["input_ids"], read["offset_mapping"], strict=True)
            spans = [(start, end) for token, (start, end) in pairs if token in self._watched and end > start]
            if not spans:
                return text
            ends = [0, *(end for _, end in spans)]
            starts = [*(start for start, _ in spans), len(text)]
            text = " ".join(text[end:start] for end, start in zip(ends, starts, strict=True))


@lru_cache(maxsize=8)
def control_tokens(tokenizer: Any, only: frozenset[int] | None = None) -> ControlTokens:
    """The control tokens of a tokenizer, or `only` some of them, which are found once."""
    return ControlTokens(tokenizer, only)
