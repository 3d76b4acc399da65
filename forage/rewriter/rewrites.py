"""Rewriter: what a model is asked for, as tokens, and the query that its answer makes."""

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
    prompt. Questions are those of forage/data/rewriter_data.py, whose ids say their lines.
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
