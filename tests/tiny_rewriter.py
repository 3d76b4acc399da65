"""PPO on the tiny model of tests/tiny.py: actors, rows, and a folder as train_ppo.py reads it."""

import json
from itertools import count

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from forage.arguments import parse
from forage.extras.rewriter.actors import Policy, left_padded, make_actors
from forage.extras.rewriter.data import Row
from forage.extras.rewriter.options import ActorOptions, Options, SamplingOptions
from forage.extras.rewriter.ppo import PromptBatch
from tests.tiny import make_model, make_tokenizer
from train_ppo import main


def tiny_lm(seed=0, width=32):
    """(The tiny model, its tokenizer)."""
    return make_model(seed, width).eval(), make_tokenizer()


def tiny_gpt2(seed=0):
    """(A GPT-2 of two layers, the tiny model's tokenizer): its layers are Conv1D."""
    tokenizer = make_tokenizer()
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_embd=64, n_layer=2, n_head=2, eos_token_id=2, bos_token_id=2,
        initializer_range=0.2,
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval(), tokenizer


def tiny_actors(
    actor=ActorOptions(lora_rank=0),
    sampling=SamplingOptions(max_new_tokens=6),
    micro_batch=0,
    lm=tiny_lm,
):
    lm, tokenizer = lm()
    policy = Policy(lm, sampling, tokenizer.eos_token_id, len(tokenizer), micro_batch)
    return make_actors(policy, actor, seed=0), tokenizer


def tiny_rows(number=8):
    """Prompts of different lengths."""
    return [Row(f"query {n}", (f"d{n}",), tuple(range(100 + n, 104 + 2 * n))) for n in range(number)]


def make_tiny(folder, *, template=True, lm=tiny_lm):
    """folder/model and folder/data, as train_ppo.py reads them."""
    lm, tokenizer = lm()
    if not template:
        tokenizer.chat_template = None
    lm.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    (folder / "data").mkdir()
    corpus = [{"doc_id": f"d{n}", "text": f"Disease {n} is mended by remedy{n}."} for n in range(12)]
    (folder / "data" / "pubmed_corpus.json").write_text(json.dumps(corpus))
    for name, numbers in (("train", range(8)), ("eval", range(8, 12))):
        rows = [json.dumps({"query": f"What mends disease {n}?", "relevant_doc_ids": [f"d{n}"]}) for n in numbers]
        (folder / "data" / f"{name}.jsonl").write_text("\n".join(rows))
    return folder


def write_data(folder, corpus, **files):
    """pubmed_corpus.json and a .jsonl of rows, or of lines, for each of `files`."""
    (folder / "pubmed_corpus.json").write_text(json.dumps(corpus))
    for name, rows in files.items():
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    return folder


def tiny_args(folder, run_dir, *more):
    """Arguments of train_ppo.py for a short run."""
    return [
        "--data", str(folder / "data"), "--base-model", str(folder / "model"), "--run-dir", str(run_dir),
        "--output-dir", str(run_dir / "model"), "--max-steps", "4", "--max-new-tokens", "6", "--learning-rate",
        "0.001", "--save-every", "1", "--report-to", "none", *more,
    ]  # fmt: skip


def run(args):
    """train_ppo.py with these arguments, in this process."""
    main(parse(Options, args))


def metrics(run_dir):
    """The rows of metrics.jsonl without the seconds."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def batches_of(rows, pad_id, size=4, first=0):
    """Endless batches, each with its own random seed, as in train_ppo.py."""
    for step in count(first):
        torch.manual_seed(step)
        np.random.seed(step)
        chosen = [rows[(step * size + place) % len(rows)] for place in range(size)]
        yield PromptBatch(chosen, left_padded([row.prompt for row in chosen], pad_id))
