"""Rewriter: what a model is asked for, as tokens, and the query that its answer makes."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from core.corpus import Question
from core.errors import UserError

RewriteMode = Literal["append", "replace"]

REWRITE = "Write a search query for the question: the medical words that a text with the answer contains. Only words."
# HyDE asks for the document itself and searches with that, https://arxiv.org/abs/2212.10496.
PSEUDO_ANSWER = "Write a short passage of a medical text that answers the question."


@dataclass(frozen=True)
class RewriteOptions:
    """What is asked of the model, and what becomes of its answer."""

    mode: RewriteMode = "append"
    """Search with the query and what the model writes (append), or with that alone (replace)."""
    query_weight: int = 3
    """In append, how often the query is said before it: BM25 counts words."""
    instruction: str = REWRITE
    """What the model is told to do with the query."""
    max_prompt_tokens: int = 256
    """Queries whose prompt is longer are left out, and told."""

    def check(self) -> None:
        for name in ("query_weight", "max_prompt_tokens"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name.replace('_', '-')} {getattr(self, name)} must be at least 1")
        if not self.instruction.strip():
            raise UserError("--instruction is empty; say what the model shall write")


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


@dataclass(frozen=True)
class Row:
    """A query to be rewritten."""

    query: str
    relevant_doc_ids: tuple[str, ...]
    prompt: tuple[int, ...]
    """Its tokens, which no other row has."""


def make_rows(
    tokenizer: Any, questions: Sequence[Question], options: RewriteOptions, source: Path
) -> tuple[list[Row], list[str]]:
    """Rows, and each query that is left out or merged as 'file:line: why'.

    Queries that read alike to the model are one row, relevant is what is so to any of them: a reward is looked up by
    prompt. Questions are those of core/rewriter_data.py, whose ids say their lines.
    """
    rows: dict[tuple[int, ...], Row] = {}
    problems = []
    for question in questions:
        where = f"{source}:{question.id.removeprefix('q')}"
        prompt = tuple(prompt_tokens(tokenizer, options.instruction, question.question))
        if len(prompt) > options.max_prompt_tokens:
            most = f"--max-prompt-tokens {options.max_prompt_tokens}"
            problems.append(f"{where}: its prompt has {len(prompt)} tokens, {most}; left out")
        elif prompt in rows:
            problems.append(f"{where}: the query occurs before; its relevant_doc_ids are added there")
            merged = dict.fromkeys(rows[prompt].relevant_doc_ids + question.relevant_doc_ids)
            rows[prompt] = replace(rows[prompt], relevant_doc_ids=tuple(merged))
        else:
            rows[prompt] = Row(question.question, question.relevant_doc_ids, prompt)
    return list(rows.values()), problems


def with_padding(tokenizer: Any) -> Any:
    """A copy of the tokenizer with a padding token of its own, which no text has and which is not eos.

    No model needs to know it: where it stands, models are given 0 and a mask.
    """
    padded = copy.deepcopy(tokenizer)
    padded.add_special_tokens({"pad_token": "<|padding of ppo|>"})
    return padded


def left_padded(prompts: Sequence[Sequence[int]], pad_id: int) -> Tensor:
    """(B, T) prompts that all end in the last column. Example: [[1, 2], [3]] with pad 9 gives [[1, 2], [9, 3]]."""
    longest = max(map(len, prompts))
    return torch.tensor([[pad_id] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
