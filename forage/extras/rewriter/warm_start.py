"""Warm start of the rewriter: before PPO, it learns to write how a relevant document begins, as in query2doc.

In https://arxiv.org/abs/2303.07678 a large model guesses such a text. A small one can't know it, but learns how texts
that answer such questions are worded, and searching for those words finds them. PPO then starts from a policy whose
rewrites sometimes help. An untrained policy's rewrites never do, and PPO can't reinforce what is never sampled.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from forage.agent.prompts import control_tokens
from forage.extras.rewriter.actors import Policy, load_policy, model_inputs, save_lm, with_adapter
from forage.extras.rewriter.data import Data, Row
from forage.extras.rewriter.options import Options, WarmOptions
from forage.optimizer import update_weights
from forage.text import first_words

IGNORED = -100  # label of tokens that are not learned
MAX_NORM = 1.0
WORDS = 12  # of a document, which the model learns to write

Example = tuple[tuple[int, ...], str]
"""A prompt's tokens and the text to write after it."""


def warm_start(options: Options, data: Data, model: str, tokenizer: Any) -> str:
    """The folder of the warm-started model, which is trained once per run folder."""
    folder = options.run_dir / "warm"
    if not folder.exists():
        policy = load_policy(model, tokenizer, options)
        if options.actor.lora_rank:
            policy.lm = with_adapter(policy.lm, options.actor.lora_rank, options.seed)
        examples = examples_of(data.train, data.texts)
        train_warm(policy, tokenizer, examples, options.warm, 5 * options.actor.usual_rate, options.seed)
        save_lm(policy, model, tokenizer, folder)
    return str(folder)


def examples_of(rows: Sequence[Row], texts: Mapping[str, str]) -> list[Example]:
    """Each question's prompt, and the beginning of its first relevant document."""
    return [(row.prompt, beginning_of(texts[row.relevant_doc_ids[0]], WORDS)) for row in rows]


def beginning_of(text: str, words: int) -> str:
    """A document's first words after its title and headings that only ask.

    Example: "Gout\\nWhat is gout? A joint hurts and swells.", 3 words: "A joint hurts".
    """
    title, _, rest = text.partition("\n")
    return first_words(rest if rest.strip() else title, words)


def train_warm(
    policy: Policy, tokenizer: Any, examples: Sequence[Example], options: WarmOptions, rate: float, seed: int
) -> None:
    """Train the policy's adapter, or all its weights where it has none, in fp32, to write the texts of the examples."""
    weights = [weight for weight in policy.lm.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=rate, weight_decay=0.0)
    draw = random.Random(seed)
    for step in range(options.warm_steps):
        batch = [draw.choice(examples) for _ in range(options.warm_batch_size)]
        loss = warm_loss(policy, tokenizer, batch)
        loss.backward()
        update_weights(optimizer, rate * (1 - step / options.warm_steps), MAX_NORM)
        if (step + 1) % 10 == 0 or step + 1 == options.warm_steps:
            print(f"warm start, update {step + 1} of {options.warm_steps}: loss {loss.item():.3f}", flush=True)


def warm_loss(policy: Policy, tokenizer: Any, examples: Sequence[Example]) -> Any:
    """Mean cross-entropy of the texts' tokens and their eos; prompts and padding are not learned.

    A text longer than --max-new-tokens is cut and gets no eos: the model should not learn to stop in mid-sentence.
    """
    ids, labels = [], []
    for prompt, text in examples:
        text = control_tokens(tokenizer).broken(text)  # a document must not teach to end a turn
        tokens = [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        tokens = tokens[: policy.sampling.max_new_tokens]
        ids.append([*prompt, *tokens])
        labels.append([IGNORED] * len(prompt) + tokens)
    longest, device = max(map(len, ids)), policy.lm.device
    ids_BT = torch.tensor([row + [policy.pad_id] * (longest - len(row)) for row in ids], device=device)
    labels_BT = torch.tensor([row + [IGNORED] * (longest - len(row)) for row in labels], device=device)
    logits_BTV = policy(**model_inputs(ids_BT, policy.pad_id), use_cache=False).logits[:, :-1]
    return torch.nn.functional.cross_entropy(logits_BTV.flatten(0, 1), labels_BT[:, 1:].flatten(), ignore_index=IGNORED)
