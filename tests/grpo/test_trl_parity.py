"""Our loss and gradients are those of TRL's GRPOTrainer, on the same episodes and weights.

A GRPOTrainer is really built and trains two updates: its rollout function plays episodes back from store, everything
else (advantages, old and reference log-probabilities, masks, loss, accumulation, optimiser) is its own code. What it
came to is recorded at each update, with the weights that it had; then ours is computed from the stored episodes alone.
The second update reuses the first one's episodes, so that by then the policy differs from the one they are credited to.
"""

import copy
from dataclasses import dataclass

import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from forage.grpo.losses import (
    ScoredBatch,
    add_stats,
    advantages,
    count_totals,
    loss_sums,
    loss_terms,
    policy_loss,
    summary,
)
from forage.grpo.options import LossOptions
from forage.policy.logprobs import token_logprobs
from forage.policy.packing import pack, values_like

VOCABULARY = 40
PAD, END = 0, 1
LONGEST = 12  # TRL's max_completion_length


@dataclass(frozen=True)
class Stored:
    question: str
    prompt: tuple
    completion: tuple
    chosen: tuple
    """1 = of the policy, 0 = a tool's result."""
    sampler: tuple
    """The engine's log-probabilities."""
    reward: float

    @property
    def ids(self):
        return self.prompt + self.completion

    @property
    def mask(self):
        return (0,) * len(self.prompt) + self.chosen


def stored_episodes():
    """Two questions with four episodes each, of 2 to 11 tokens, half of them with a tool's result in their middle."""
    random = torch.Generator().manual_seed(3)
    episodes = []
    for question, prompt_length in (("one", 3), ("two", 6)):
        prompt = tuple(torch.randint(2, VOCABULARY, (prompt_length,), generator=random).tolist())
        for number, length in enumerate((2, 11, 5, 8)):
            last = 7 if (question, number) == ("two", 1) else END  # one ran out of room
            completion = (*torch.randint(2, VOCABULARY, (length - 1,), generator=random).tolist(), last)
            chosen = tuple(int(not (number % 2 and 3 <= place < 6)) for place in range(length))
            sampler = tuple((-3.7 + 0.4 * torch.randn(length, generator=random)).tolist())
            reward = float(torch.rand((), generator=random))
            episodes.append(Stored(question, prompt, completion, chosen, sampler, reward))
    return episodes


EPISODES = stored_episodes()


def tiny_model(kind, folder):
    """Random weights, far enough from uniform that tokens differ; saved, since TRL loads its reference by name."""
    torch.manual_seed(0)
    sizes = {
        "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.15, "pad_token_id": PAD,
        "eos_token_id": END,
    }  # fmt: skip
    model = LlamaForCausalLM(LlamaConfig(**sizes)) if kind == "llama" else Qwen2ForCausalLM(Qwen2Config(**sizes))
    model.save_pretrained(folder)
    return type(model).from_pretrained(folder)


def tiny_tokenizer():
    words = {"<pad>": PAD, "<end>": END} | {f"w{n}": n for n in range(2, VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w2"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>")


def play_back(prompts, trainer):
    """The stored episodes, in the order of TRL's prompts, each of which it names once for every generation."""
    left = {question: [e for e in EPISODES if e.question == question] for question in ("one", "two")}
    played = [left[prompt].pop(0) for prompt in prompts]
    return {
        "prompt_ids": [list(e.prompt) for e in played],
        "completion_ids": [list(e.completion) for e in played],
        "logprobs": [list(e.sampler) for e in played],
        "env_mask": [list(e.chosen) for e in played],
    }


def stored_rewards(completions, completion_ids, **_):
    rewards = {e.completion: e.reward for e in EPISODES}
    return [rewards[tuple(ids)] for ids in completion_ids]


class Recorder(GRPOTrainer):
    """TRL's trainer, which also keeps what each update came to."""

    def training_step(self, model, inputs, num_items_in_batch):
        if self.state.global_step == len(self.updates):
            self.updates.append({"weights": copy.deepcopy(model.state_dict()), "loss": 0.0, "micro_batches": 0})
        loss = super().training_step(model, inputs, num_items_in_batch)
        update = self.updates[-1]
        update["loss"] += loss.item()
        update["micro_batches"] += 1
        update["gradients"] = {name: weight.grad.clone() for name, weight in model.named_parameters()}
        return loss


def trl_updates(folder, kind, settings):
    """What TRL's trainer came to at its two updates, and its reference's weights."""
    corrected = "vllm_importance_sampling_mode" in settings
    arguments = GRPOConfig(
        output_dir=str(folder / "run"), use_cpu=True, bf16=False, gradient_checkpointing=False, report_to="none",
        save_strategy="no", logging_strategy="no", disable_tqdm=True, max_completion_length=LONGEST,
        num_generations=4, per_device_train_batch_size=4, gradient_accumulation_steps=2, steps_per_generation=2,
        num_iterations=2, max_steps=2, optim="sgd", lr_scheduler_type="constant", max_grad_norm=0.0,
        **{"learning_rate": 1.0} | settings,
    )  # fmt: skip
    trainer = Recorder(
        tiny_model(kind, folder / "model"), stored_rewards, arguments,
        train_dataset=Dataset.from_dict({"prompt": ["one", "two"]}), processing_class=tiny_tokenizer(),
        rollout_func=play_back,
    )  # fmt: skip
    trainer.updates = []
    if corrected:  # the code that mends an engine's log-probabilities, without starting an engine
        trainer.use_vllm, trainer._last_loaded_step = True, 0
    reference = None
    if trainer.ref_model is not None:
        random = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for weight in trainer.ref_model.parameters():
                weight += 0.02 * torch.randn(weight.shape, generator=random)
        reference = copy.deepcopy(trainer.ref_model.state_dict())
    trainer.train()
    return trainer.updates, reference


def our_update(model, update, first, reference, options, method, keep):
    """Loss, gradients and summary by our code, for the weights that TRL had at an update."""
    kept = [e for n, e in enumerate(EPISODES) if keep is None or keep[n]]
    rewards, groups = [e.reward for e in EPISODES], [e.question for e in EPISODES]
    advantages_N, totals = advantages(rewards, groups, method), count_totals(EPISODES, keep)
    advantages_N = advantages_N[[e in kept for e in EPISODES]]
    batches = pack(kept, 40)
    assert len(batches) > 2
    old = logprobs_of(model, first["weights"], batches)
    references = logprobs_of(model, reference, batches) if reference else [None] * len(batches)
    model.load_state_dict(update["weights"])
    model.zero_grad()
    losses, stats = 0.0, []
    for batch, old_BT, reference_BT in zip(batches, old, references, strict=True):
        scored = ScoredBatch(
            batch,
            advantages_N,
            token_logprobs(model, batch),
            old_BT,
            values_like(batch, [(0.0,) * len(e.prompt) + e.sampler for e in kept]),
            reference_BT,
        )
        terms = loss_terms(scored, options, totals)
        loss = policy_loss(terms, options)
        loss.backward()
        losses += loss.item()
        stats.append(loss_sums(terms))
    return losses, {name: w.grad.clone() for name, w in model.named_parameters()}, summary(add_stats(stats))


def logprobs_of(model, weights, batches):
    model.load_state_dict(weights)
    with torch.no_grad():
        return [token_logprobs(model, batch) for batch in batches]


CLIP = {"epsilon": 0.2, "epsilon_high": 0.28}
K3 = {"beta": 0.3, "use_bias_correction_kl": False}
GSPO = {
    "loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.1, "epsilon_high": 0.09,
    "learning_rate": 0.2,
}  # fmt: skip
DR_GRPO = {"loss_type": "dr_grpo", "scale_rewards": "none", **CLIP}
DAPO = {"loss_type": "dapo", **CLIP}
CISPO = {"loss_type": "cispo", "epsilon_high": 1.3}
OURS_GRPO = {"clip_high": 0.28, "aggregation": "sequence"}
OURS_DR_GRPO = {"clip_high": 0.28, "aggregation": "constant", "constant_length": LONGEST}
OURS_DAPO = {"clip_high": 0.28, "aggregation": "token"}
OURS_GSPO = {"loss": "gspo", "clip_low": 0.1, "clip_high": 0.09, "aggregation": "sequence"}
OURS_CISPO = {"loss": "cispo", "clip_low": 1.0, "clip_high": 0.3, "aggregation": "token"}
CAP = 2.0


def engine(mode, low):
    """TRL's settings of a correction; its bound from below is one of its own."""
    return {
        "vllm_importance_sampling_mode": mode, "vllm_importance_sampling_clip_max": CAP,
        "vllm_importance_sampling_clip_min": low,
    }  # fmt: skip


CASES = {
    "grpo": ({"loss_type": "grpo", **CLIP}, OURS_GRPO),
    "grpo, KL": ({"loss_type": "grpo", **CLIP, **K3}, OURS_GRPO | {"beta": 0.3}),
    "grpo, unbiased KL": ({"loss_type": "grpo", **CLIP, "beta": 0.3}, OURS_GRPO | {"beta": 0.3, "unbiased_kl": True}),
    "dr_grpo": (DR_GRPO, OURS_DR_GRPO),
    "dr_grpo, KL": (DR_GRPO | K3, OURS_DR_GRPO | {"beta": 0.3}),
    "dapo": (DAPO, OURS_DAPO),
    "dapo, KL": (DAPO | K3, OURS_DAPO | {"beta": 0.3}),
    "dapo, unbiased KL": (DAPO | {"beta": 0.3}, OURS_DAPO | {"beta": 0.3, "unbiased_kl": True}),
    "gspo": (GSPO, OURS_GSPO),
    "gspo, KL": (GSPO | K3, OURS_GSPO | {"beta": 0.3}),
    "cispo": (CISPO, OURS_CISPO),
    "cispo, KL": (CISPO | K3, OURS_CISPO | {"beta": 0.3}),
}
CORRECTED = {
    f"{name}, {mode}": (settings | engine(mode, low), options | {"correction": mode, "correction_cap": CAP})
    for name, settings, options in (
        ("dapo", DAPO, OURS_DAPO), ("gspo", GSPO, OURS_GSPO),
        ("dr_grpo, KL", DR_GRPO | K3, OURS_DR_GRPO | {"beta": 0.3}),
    )
    for mode, low in (
        ("token_truncate", None), ("token_mask", 1 / CAP), ("sequence_truncate", None), ("sequence_mask", 1 / CAP)
    )
    # With GSPO, TRL spreads a token's correction over its episode; we leave it with the token.
    if not (name == "gspo" and mode.startswith("token"))
}  # fmt: skip


def compare(folder, kind, settings, options, keep=None):
    options = LossOptions(**({"correction": "none"} | options))
    options.check()
    updates, reference = trl_updates(folder, kind, settings)
    assert [update["micro_batches"] for update in updates] == [2, 2]
    model = tiny_model(kind, folder / "ours")
    found = []
    for update in updates:
        method = "dr_grpo" if settings.get("scale_rewards") == "none" else "grpo"
        loss, gradients, stats = our_update(model, update, updates[0], reference, options, method, keep)
        assert loss == pytest.approx(update["loss"], abs=1e-5, rel=1e-5)
        assert gradients.keys() == update["gradients"].keys()
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, update["gradients"][name], atol=1e-5, rtol=1e-5)
        ours, theirs = (torch.cat([g.flatten() for g in s.values()]) for s in (gradients, update["gradients"]))
        assert (ours - theirs).norm() < 1e-5 * theirs.norm()  # gradients that are small are no excuse
        found.append(stats)
    return found


@pytest.fixture(autouse=True)
def no_warning(monkeypatch):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradients_are_those_of_trl(case, tmp_path):
    first, second = compare(tmp_path, "qwen2" if "KL" in case else "llama", *CASES[case])
    # The comparison means something: in the second update the policy has moved, and clipping tells.
    assert (first["ratio_min"], first["ratio_max"]) == pytest.approx((1, 1), abs=1e-5)
    assert second["ratio_max"] - second["ratio_min"] > 0.1
    assert second["clip_high_share"] > 0
    if "KL" in case:
        assert second["kl"] > 1e-3


@pytest.mark.parametrize("case", CORRECTED)
def test_corrections_for_an_engine_are_those_of_trl(case, tmp_path):
    first, _ = compare(tmp_path, "llama", *CORRECTED[case])
    assert 0 < first["corrected_share"] < 1


def test_episodes_that_are_left_out(tmp_path):
    keep = [float(e.completion[-1] == END) for e in EPISODES]
    assert sum(keep) == len(EPISODES) - 1
    compare(tmp_path, "llama", DAPO | {"mask_truncated_completions": True}, OURS_DAPO, keep)
