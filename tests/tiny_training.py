"""A policy and data small enough that a whole training run takes seconds; and the run, as scripts of their own.

    python -m tests.tiny_training train [options of grpo_train.py]
    python -m tests.tiny_training play [options of grpo_rollout.py]

The policy's weights are random, so its episodes are: rewards of its tokens stand for those that need sense.
"""

import sys

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

import grpo_rollout
import grpo_train
from document_store import StoreOptions
from forage.cli import run_script
from forage.data.records import Document, Question
from forage.files import write_jsonl
from forage.grpo.options import TrainOptions
from forage.policy.adapters import publish_adapter
from forage.policy.base_models import PACKAGED_MODEL, resolve_model
from forage.policy.card import PolicyCard, write_policy_card
from forage.store.document_store import DocumentStore


def make_tiny(folder):
    """folder/policy and folder/data."""
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(resolve_model(PACKAGED_MODEL))
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=False, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    base, model = folder / "base", LlamaForCausalLM(config)
    model.lm_head.weight.data *= 40  # as weights are drawn, all tokens would be as likely as each other
    model.save_pretrained(base)
    tokenizer.save_pretrained(base)
    lora = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    policy = get_peft_model(LlamaForCausalLM.from_pretrained(base), lora)
    publish_adapter(policy, folder / "policy", 0)
    write_policy_card(PolicyCard(folder / "policy", str(base), str(base), False, "float32"), folder / "policy")
    documents = [
        Document(f"d{n}", f"Disease {n}", f"Disease {n} is mended by rest and by remedy {n}.") for n in range(8)
    ]
    DocumentStore.build(folder / "data" / "store", documents, StoreOptions(embedder="none"))
    questions = [
        Question(f"q{n}", f"What mends disease {n}?", f"Remedy {n}.", relevant_chunk_ids=(f"d{n}#0",)) for n in range(8)
    ]
    write_jsonl(folder / "data" / "train.jsonl", questions[:6])
    write_jsonl(folder / "data" / "eval.jsonl", questions[6:])


def rewards_of_tokens(embedder):
    def even(episodes, questions):
        return [sum(i % 2 == 0 for i, m in zip(e.ids, e.mask, strict=True) if m) / max(1, e.sampled) for e in episodes]

    def low(episodes, questions):
        return [sum(i < 20_000 for i, m in zip(e.ids, e.mask, strict=True) if m) / max(1, e.sampled) for e in episodes]

    return {"even": even, "low": low}


TINY = ("--engine", "local", "--mode", "sparse", "--max-turn-tokens", "12", "--max-turns", "2", "--batch-size", "3",
        "--num-rollouts", "4", "--learning-rate", "0.01", "--token-budget", "600", "--eval-every", "2",
        "--on-collapse", "warn", "--min-entropy", "0")  # fmt: skip


def tiny_args(folder, run_dir, *more):
    """Of grpo_train.py."""
    return ["--data", str(folder / "data"), "--policy", str(folder / "policy"), "--run-dir", str(run_dir), *TINY, *more]


if __name__ == "__main__":
    script, options = {
        "train": (grpo_train.main, TrainOptions), "play": (grpo_rollout.main, grpo_rollout.Options)
    }[sys.argv.pop(1)]  # fmt: skip

    def main(options: options) -> None:
        script(options, rewards_of_tokens)

    run_script(main)
