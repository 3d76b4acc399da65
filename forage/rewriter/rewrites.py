"""Rewrites: from a question to the prompt's tokens, and from sampled tokens back to text."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forage.agent.prompts import prompt_tokens
from forage.data.records import Question
from forage.rewriter.options import RewriteOptions


@dataclass(frozen=True)
class Row:
    """A question to rewrite."""

    query: str
    relevant_doc_ids: tuple[str, ...]
    prompt: tuple[int, ...]
    """The prompt's tokens; no other row has the same."""


def make_rows(
    tokenizer: Any, questions: Sequence[Question], options: RewriteOptions, source: Path
) -> tuple[list[Row], list[str]]:
    """Rows, and a line 'file:line: why' for each question that is left out or merged.

    Questions with equal prompts become one row with the relevant documents of all of them, because rewards are looked
    up by prompt. The ids of the questions hold their line numbers (forage/data/rewriter_data.py).
    """
    rows: dict[tuple[int, ...], Row] = {}
    problems = []
    for question in questions:
        where = f"{source}:{question.id.removeprefix('q')}"
        prompt = tuple(prompt_tokens(tokenizer, options.instruction, question.question))
        if len(prompt) > options.max_prompt_tokens:
            limit = f"--max-prompt-tokens {options.max_prompt_tokens}"
            problems.append(f"{where}: left out, its prompt of {len(prompt)} tokens is longer than {limit}")
        elif prompt in rows:
            problems.append(f"{where}: duplicate query; its relevant_doc_ids are added to the first one's")
            merged = dict.fromkeys(rows[prompt].relevant_doc_ids + question.relevant_doc_ids)
            rows[prompt] = replace(rows[prompt], relevant_doc_ids=tuple(merged))
        else:
            rows[prompt] = Row(question.question, question.relevant_doc_ids, prompt)
    return list(rows.values()), problems


def with_padding(tokenizer: Any) -> Any:
    """A copy of the tokenizer with a padding token that occurs in no text and is not eos.

    Models never see it: they are given token 0 and a mask instead.
    """
    padded = copy.deepcopy(tokenizer)
    padded.add_special_tokens({"pad_token": "<|padding of ppo|>"})
    return padded


def left_padded(prompts: Sequence[Sequence[int]], pad_id: int) -> Tensor:
    """(B, T) prompts that all end in the last column. Example: [[1, 2], [3]] with pad 9 gives [[1, 2], [9, 3]]."""
    longest = max(map(len, prompts))
    return torch.tensor([[pad_id] * (longest - len(prompt)) + list(prompt) for prompt in prompts])


def text_of(tokenizer: Any, tokens: Sequence[int], eos_id: int) -> str:
    """The text of a response before its eos, on one line."""
    kept = list(tokens[: tokens.index(eos_id)] if eos_id in tokens else tokens)
    return " ".join(tokenizer.decode(kept, skip_special_tokens=True).split())
