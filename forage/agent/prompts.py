"""Prompts: the sentence of the task that opens the agent's, and those outside the search protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from forage.agent.control import control_tokens
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
# HyDE asks for a document that answers the question, and searches with it: https://arxiv.org/abs/2212.10496.
PASSAGE = "Write a short passage of a {subject}text that answers the question."
PSEUDO_ANSWER = worded(PASSAGE, TASK)


def final_query(query: str, written: str, mode: RewriteMode, weight: int) -> str:
    """The text to search with. Example: ("gout", "sore toe", "append", 2) gives "gout gout sore toe"."""
    parts = [query] * weight + [written] if mode == "append" else [written]
    return " ".join(" ".join(parts).split())


def prompt_tokens(tokenizer: Any, instruction: str, query: str) -> list[int]:
    """A prompt in the model's chat template, or without one, a plain text for the model to continue."""
    query = control_tokens(tokenizer).broken(encodable(query))  # a query must not end its own turn
    if not tokenizer.chat_template:
        text = f"{instruction}\n\nQuestion: {query}\nSearch query:"
        return list(tokenizer(text)["input_ids"])
    text = _rendered(tokenizer, [("system", instruction), ("user", query)])
    if instruction not in text:  # some templates refuse a system turn, or drop it
        text = _rendered(tokenizer, [("user", f"{instruction}\n\n{query}")])
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _rendered(tokenizer: Any, turns: Sequence[tuple[str, str]]) -> str:
    """The chat template's text; empty if the template refuses these turns."""
    from jinja2 import TemplateError

    messages = [{"role": role, "content": content} for role, content in turns]
    try:
        return str(tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False))
    except TemplateError:
        return ""
