"""Warm start of a rewriter: before PPO it learns to write how a relevant document begins, as in query2doc.

https://arxiv.org/abs/2303.07678 has a large model guess such a text. A small one can't know it, but learns how texts
that answer such questions are put, and those words find them. PPO then goes on from a policy whose rewrites sometimes
help, where an untrained one's never do: there is nothing to reinforce in what is never tried.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from forage.agent.teacher import first_words
from forage.rewriter.actors import attended, load_lm
from forage.rewriter.options import WarmOptions
from forage.rewriter.rewrites import Row

IGNORED = -100  # the label of tokens that are not learnt


def beginning_of(text: str, words: int) -> str:
    """How a document begins, after its title and headings that only ask.

    Example: "Gout\\nWhat is gout? A joint hurts and swells.", 3 words: "A joint hurts".
    """
    title, _, rest = text.partition("\n")
    return first_words(rest if rest.strip() else title, words)


def warm_started(
    model: str, tokenizer: Any, rows: Sequence[Row], texts: Mapping[str, str], options: WarmOptions, most: int,
    pad_id: int, seed: int,
) -> Any:  # fmt: skip
    """The model after the warm start: of each query's relevant documents the first one is what it learns to begin.

    All its weights are trained, in fp32, at most `most` tokens of each text and its end.
    """
    lm = load_lm(model, lora=False)
    optimizer = torch.optim.AdamW(lm.parameters(), lr=options.warm_learning_rate, weight_decay=0.0)
    draw = random.Random(seed)
    for step in range(options.warm_steps):
        batch = [draw.choice(rows) for _ in range(options.warm_batch_size)]
        wanted = [beginning_of(texts[row.relevant_doc_ids[0]], options.warm_words) for row in batch]
        loss = loss_of(lm, tokenizer, [row.prompt for row in batch], wanted, most, pad_id)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(lm.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = options.warm_learning_rate * (1 - step / options.warm_steps)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % 10 == 0 or step + 1 == options.warm_steps:
            print(f"warm start, update {step + 1} of {options.warm_steps}: loss {loss.item():.3f}", flush=True)
    return lm


def loss_of(
    lm: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], wanted: Sequence[str], most: int, pad_id: int
) -> Any:
    """Mean cross-entropy of the wanted texts' tokens and their ends; prompts and padding are not learnt.

    A text that is cut has no end: the model is not taught to stop in mid-sentence, but to go on to its limit.
    """
    ids, labels = [], []
    for prompt, text in zip(prompts, wanted, strict=True):
        told = [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id][:most]
        ids.append([*prompt, *told])
        labels.append([IGNORED] * len(prompt) + told)
    longest = max(map(len, ids))
    ids_BT = torch.tensor([row + [pad_id] * (longest - len(row)) for row in ids], device=lm.device)
    labels_BT = torch.tensor([row + [IGNORED] * (longest - len(row)) for row in labels], device=lm.device)
    logits_BTV = lm(**attended(ids_BT, pad_id), use_cache=False).logits[:, :-1].float()
    return torch.nn.functional.cross_entropy(logits_BTV.flatten(0, 1), labels_BT[:, 1:].flatten(), ignore_index=IGNORED)
