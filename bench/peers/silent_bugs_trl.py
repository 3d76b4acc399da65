"""The bugs of bench/silent_bugs.py in TRL's GRPOTrainer, in .venv-peers, which has no forage.

Six batches of rollouts with `tools=`, resumed after four. TRL samples here by transformers' `generate` with the weights
that it trains, so what a separate sampler does wrong is a change of those that `generate` sees. Prints as JSON what
stopped the run, and what TRL logs by default.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
import textwrap
from difflib import SequenceMatcher
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock  # noqa: F401

import torch
from datasets import Dataset
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.chat_template_utils import qwen3_template
from trl.kernels import ChunkedLogProbFunction

CLEAN = (
    {}, {}, {}, {"importance_sampling_level": "sequence", "loss_type": "grpo"},
    {"loss_type": "cispo", "epsilon_high": 5.0}, {"scale_rewards": "batch"}, {"num_iterations": 1},
    {"temperature": 1.0}, {"beta": 0.0}, {"learning_rate": 1e-3},
)  # fmt: skip
SAMPLE, SCORE = "_generate_single_turn", "_generate_and_score_completions"
CALL, BEGIN, END = "unwrapped_model.generate(", "device = self.accelerator.device", "return completion_ids, logprobs"
BY = "by(self, lambda name, seen: {}, unwrapped_model.generate, ".format
# Of each bug: a method, what stands in it once, and what is put there.
BUGS = {
    "the base samples": (SAMPLE, CALL, BY("0 * seen[-1]")),
    "the first adapter samples for ever": (SAMPLE, CALL, BY("seen[0]")),
    "an adapter at half its scale": (SAMPLE, CALL, BY("seen[-1] * (0.5 if 'lora_B' in name else 1)")),
    "one kind of layer is not loaded": (SAMPLE, CALL, BY("seen[-1] * ('down_proj' not in name)")),
    "keys of the last adapter are used again": (
        SAMPLE, CALL,
        "unwrapped_model.generate(past_key_values=by(self, lambda name, seen: seen[-2:][0], lambda input_ids, "
        "attention_mask: unwrapped_model(input_ids=input_ids[:, :-1], attention_mask=attention_mask[:, :-1], "
        "position_ids=(attention_mask.cumsum(1) - 1).clamp(min=0)[:, :-1], use_cache=True).past_key_values, "
        "**generate_inputs), "),
    "the likeliest 20 sampled, all scored": (SAMPLE, CALL, "unwrapped_model.generate(top_k=20, "),
    "all samples have one seed": (
        SAMPLE, CALL,
        "mock.patch('torch.multinomial', lambda odds, **_: (odds.cumsum(1) < torch.rand(1)).sum(1, keepdim=True))"
        "(unwrapped_model.generate)("),
    "the mask goes a token too far": (
        "_tool_call_loop", "[0] * tool_length", "[1] + [0] * (tool_length - 1)"),
    "a tool's tokens are learnt": ("_tool_call_loop", "[0] * tool_length", "[1] * tool_length"),
    "the end of a turn is not learnt": (
        "_tool_call_loop", "return tool_mask",
        "return [[a * b for a, b in zip(mask, [*mask[1:], 0])] for mask in tool_mask]"),
    "a turn's tokens are made again": (
        SAMPLE, END,
        "return [self._tokenizer(self._tokenizer.decode(row))['input_ids'] for row in completion_ids], logprobs"),
    "a failed rollout earns 0": (
        SAMPLE, END,
        "return [row if number % 8 else row[-1:] for number, row in enumerate(completion_ids)], logprobs"),
    "rewards in another order": (
        "_calculate_rewards", "return rewards_per_func", "return rewards_per_func.flip(0)"),
    "a missing reward is 0": ("_calculate_rewards", "else torch.nan for reward", "else 0.0 for reward"),
    "groups are mixed": (SCORE, BEGIN, f"inputs = inputs[3:] + inputs[:3]; {BEGIN}"),
    "the loss leaves out the temperature": (
        "__init__", "temperature=self.temperature,\n            cast", "temperature=1.0, cast"),
    "the old policy is the new one": (
        "_compute_loss", "if old_per_token_logps is None", "if True"),
    "each micro-batch has a mean of its own": (
        "_compute_loss", 'inputs["num_items_in_batch"].clamp',
        "(mask.sum() * self.args.steps_per_generation).clamp"),
    "the KL term with the other sign": (
        "_compute_loss", "per_token_loss + self.beta", "per_token_loss - self.beta"),
    "the reference moves along": (
        SCORE, BEGIN,
        "[self.model.get_parameter(name.replace('.default.', '.ref.')).data.copy_(weight.data) "
        f"for name, weight in self.model.named_parameters() if '.default.' in name]; {BEGIN}"),
    "positions are one off after what is shared": (
        "_get_per_token_logps_and_entropies", "model_inputs = {",
        "steps = torch.ones_like(attention_mask_batch).cumsum(1); "
        "model_inputs = {'position_ids': steps - 1 + (steps > steps.size(1) - logits_to_keep), "),
    "held out are the questions trained on": (
        "get_eval_dataloader", "dataset=eval_dataset,", "dataset=self.train_dataset.select(range(1, 3)),"),
    "resumed with a fresh optimizer": (
        "_load_optimizer_and_scheduler", "super()._load_optimizer_and_scheduler(checkpoint)", "pass"),
    "logits in bf16": (
        "forward", "fold = _forward", "tile.copy_(tile.bfloat16()); fold = _forward"),
    "resumed at the first questions": (
        "_get_train_sampler", "return Repeat", "self.args.ignore_data_skip = True; return Repeat"),
}  # fmt: skip


def main(tiny: Path, name: str) -> Any:
    """`name` is that of a bug, or "clean 3"."""
    torch.set_num_threads(1)
    if name in BUGS:
        put_in(*BUGS[name])
    number, stops = 0 if name in BUGS else int(name[-1]), ""
    with TemporaryDirectory() as folder:
        try:
            for steps in (4, 6):
                trainer = trainer_of(tiny, folder, steps, {"seed": number} | CLEAN[number])
                trainer.train(resume_from_checkpoint=steps > 4)
        except Exception as error:  # noqa: BLE001
            stops = repr(error)
    return stops, [
        {name: value for name, value in entry.items() if value is not None and not re.search("time|_second", name)}
        for entry in trainer.state.log_history
    ]


def put_in(method: str, old: str, new: str) -> None:
    owner = ChunkedLogProbFunction if method == "forward" else GRPOTrainer
    right = getattr(owner, method)
    source, known = inspect.getsource(right), globals() | vars(sys.modules[right.__module__])
    assert source.count(old) == 1, f"{old!r} stands in {method} {source.count(old)} times; write the edit anew"
    body = textwrap.indent(textwrap.dedent(source.replace(old, new)), " ")
    exec(f"def make(__class__):\n{body}\n return {method}", known)  # its super() needs the class
    setattr(owner, method, known["make"](owner))


def by(trainer: GRPOTrainer, change: Any, do: Any, **given: Any) -> Any:
    """Call `do` while each of the adapter's weights is made of its values at each step so far."""
    weights = {name: weight for name, weight in trainer.model.named_parameters() if ".default." in name}
    seen = vars(trainer).setdefault("seen", {})
    seen[trainer.state.global_step] = now = {name: weight.detach().clone() for name, weight in weights.items()}
    for name, weight in weights.items():
        weight.data = change(name, [each[name] for each in seen.values()]).clone()
    made = do(**given)
    for name, weight in weights.items():
        weight.data = now[name].clone()
    return made


def trainer_of(tiny: Path, folder: str, steps: int, settings: Any) -> GRPOTrainer:
    settings = {"num_iterations": 2, "temperature": 0.8, "beta": 0.01, "learning_rate": 3e-4} | settings
    updates = settings["num_iterations"]
    tokenizer = AutoTokenizer.from_pretrained(tiny / "tokenizer")
    tokenizer.response_template = qwen3_template
    passages = [f"{chunk['title']}: {chunk['text']}" for chunk in rows(tiny / "data/store/chunks.jsonl")]

    def search(query: str) -> str:
        """Finds passages of a library.

        Args:
            query: a few words
        """
        best = sorted(passages, key=lambda text: text.split(":")[0].lower() not in query.lower())
        return "\n".join(f"[{number}] {text}" for number, text in enumerate(best[:3], 1))

    model = AutoModelForCausalLM.from_pretrained(tiny / "base", dtype=torch.float32)
    model = PeftModel.from_pretrained(model, max((tiny / "warm/adapters").glob("v*")), is_trainable=True)
    train, held_out = (Dataset.from_list(rows(tiny / f"data/{name}.jsonl")) for name in ("train", "eval"))
    arguments = GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        logging_steps=1,
        save_steps=4 * updates,
        eval_strategy="steps",
        eval_steps=2 * updates,
        max_steps=steps * updates,
        lr_scheduler_type="constant",
        gradient_accumulation_steps=4,
        max_completion_length=480,
        max_tool_calling_iterations=2,
        generation_kwargs={"max_new_tokens": 48},
        **settings,
    )
    return GRPOTrainer(
        model,
        [found, answered],
        arguments,
        train_dataset=train.repeat(8),
        eval_dataset=held_out,
        processing_class=tokenizer,
        tools=[search],
    )


def rows(file: Path) -> Any:
    read = map(json.loads, file.read_text().splitlines())
    return [row | {"prompt": [{"role": "user", "content": row.get("question")}]} for row in read]


def found(completions: Any, relevant_chunk_ids: Any, **_: Any) -> Any:
    """1 if the first search's first passage is the one that answers."""
    return [
        float(any(turn["content"].startswith(f"[1] Disease {ids[0][1]}:") for turn in turns[1:2]))
        for turns, ids in zip(completions, relevant_chunk_ids, strict=True)
    ]


def answered(completions: Any, answer: Any, **_: Any) -> Any:
    """How like the reference the last turn is; None without one."""
    pairs = [(str(turns[-1].get("content")), wanted) for turns, wanted in zip(completions, answer, strict=True)]
    return [
        SequenceMatcher(None, said, f"<answer>{wanted}</answer>").ratio() if wanted else None for said, wanted in pairs
    ]


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), sys.argv[2])))
