"""Prompts outside the search protocol: rewriting a query, a pseudo-answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

RewriteMode = Literal["append", "replace"]

REWRITE = "Write a search query for the question: the medical words that a text with the answer contains. Only words."
# HyDE asks for the document itself and searches with that, https://arxiv.org/abs/2212.10496.
PSEUDO_ANSWER = "Write a short passage of a medical text that answers the question."


def final_query(query: str, written: str, mode: RewriteMode, weight: int) -> str:
    """What is searched for. Example: ("gout", "sore toe", "append", 2) gives "gout gout sore toe"."""
    parts = [query] * weight + [written] if mode == "append" else [written]
    return " ".join(" ".join(parts).split())


def prompt_tokens(tokenizer: Any, instruction: str, query: str) -> list[int]:
    """The prompt by the model's own chat template; without one, as the beginning of a text that it goes on with."""
    for special in tokenizer.all_special_tokens:  # a query must not end its own turn
        query = query.replace(special, " ")
    if not tokenizer.chat_template:
        text = f"{instruction}\n\nQuestion: {query}\nSearch query:"
        return list(tokenizer(text)["input_ids"])
    told = _rendered(tokenizer, [("system", instruction), ("user", query)])
    # Some templates know no system turn: they refuse it, or leave it out.
    text = told if told and instruction in told else _rendered(tokenizer, [("user", f"{instruction}\n\n{query}")])
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _rendered(tokenizer: Any, turns: Sequence[tuple[str, str]]) -> str:
    from jinja2 import TemplateError

    messages = [{"role": role, "content": content} for role, content in turns]
    try:
        return str(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
    except TemplateError:
        return ""
