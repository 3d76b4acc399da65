"""Actors of PPO: the policy that samples and is trained, the frozen reference, and the value model.

The policy's log-probabilities always come from a full forward pass over the padded batch at the sampling temperature,
both when it samples and when it is trained. So their ratio is 1 until the weights change, whatever the top-p, dtype or
kernels. (TRL takes them from the sampler's own scores: there top-p 0.9 alone makes the ratio 0.957, and bf16 weights
clip 4.5 % of the tokens at learning rate 0.)

They are loaded from disk for training, and the policy is saved for plain transformers.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from forage.errors import UserError
from forage.extras.rewriter.options import MARK, ActorOptions, Options, SamplingOptions
from forage.files import check_replaceable, making_folder
from forage.machine import compute_dtype
from forage.processes import process_device


def model_inputs(ids_BT: Tensor, pad_id: int) -> dict[str, Tensor]:
    """A model's inputs for a padded batch: ids (0 for padding), mask, and positions that count real tokens only.

    Example: [[9, 5, 6]] with pad 9 gives ids [[0, 5, 6]], mask [[0, 1, 1]], positions [[0, 0, 1]], as in TRL.
    """
    mask_BT = ids_BT != pad_id
    positions_BT = mask_BT.cumsum(1) - mask_BT.long()
    return {
        "input_ids": ids_BT.masked_fill(~mask_BT, 0), "attention_mask": mask_BT.long(), "position_ids": positions_BT,
    }  # fmt: skip


def choose_by(draws_BR: Tensor, width: int) -> Any:
    """A logits processor after which the likeliest token is the one that a number drawn beforehand chooses.

    The token is the first whose cumulative probability exceeds the number, so it has the model's probability. A row's
    tokens then don't depend on the rows beside it. `width` is that of the prompts.
    Example: probabilities .2, .5, .3 and the number .6 choose the second token.
    """

    def processor(ids_BT: Tensor, scores_BV: Tensor) -> Tensor:
        cumulative_BV = scores_BV.double().softmax(-1).cumsum(-1)
        numbers_B1 = draws_BR[:, ids_BT.shape[1] - width, None] * cumulative_BV[:, -1:]
        chosen_B1 = torch.searchsorted(cumulative_BV, numbers_B1, right=True).clamp(max=scores_BV.shape[1] - 1)
        return torch.full_like(scores_BV, -torch.inf).scatter(1, chosen_B1, 0.0)

    return processor


class Policy(nn.Module):
    """A causal language model that samples rewrites, as both TRL and our own loop use it."""

    def __init__(self, lm: Any, sampling: SamplingOptions, eos_id: int, pad_id: int, micro_batch: int = 0) -> None:
        super().__init__()
        self.lm, self.sampling = lm.eval(), sampling
        self.eos_id, self.pad_id, self.micro_batch = eos_id, pad_id, micro_batch
        self.is_gradient_checkpointing = False
        # A slice of the hidden states is not contiguous: a CPU would copy the output layer for each sequence.
        lm.get_output_embeddings().register_forward_pre_hook(lambda _, given: (given[0].contiguous(),))
        base = lm.get_base_model() if hasattr(lm, "get_base_model") else lm
        self._cuts_logits = "logits_to_keep" in inspect.signature(base.forward).parameters

    def train(self, mode: bool = True) -> Policy:
        """Stay in evaluation mode: dropout would make every ratio random."""
        return super().train(False)

    @property
    def config(self) -> Any:
        return self.lm.config

    @property
    def generation_config(self) -> Any:
        return self.lm.generation_config

    def forward(self, **given: Any) -> Any:
        """Logits in fp32 whatever the weights' dtype: TRL computes log-probabilities in the dtype of the logits."""
        output = self.lm(**given)
        output.logits = output.logits.float()
        return output

    def sample(self, ids_BT: Tensor, *, greedy: bool = False) -> Tensor:
        """(B, R) tokens for left-padded prompts; shorter responses are filled up with eos."""
        from transformers import GenerationConfig
        from transformers.generation.logits_process import (
            LogitsProcessorList,
            TemperatureLogitsWarper,
            TopPLogitsWarper,
        )

        inputs, sampling = model_inputs(ids_BT, self.pad_id), self.sampling
        settings: dict[str, Any] = {"do_sample": False}
        processors = LogitsProcessorList()
        if not greedy:
            draws_BR = torch.rand(len(ids_BT), sampling.max_new_tokens, dtype=torch.float64)
            processors.append(TemperatureLogitsWarper(sampling.temperature))
            if sampling.top_p < 1:
                processors.append(TopPLogitsWarper(sampling.top_p))
            processors.append(choose_by(draws_BR.to(ids_BT.device), ids_BT.shape[1]))
        if self.pad_id < self.config.vocab_size:  # a model may have more embeddings than tokens, e.g. Qwen2.5
            settings["suppress_tokens"] = [self.pad_id]
        config = GenerationConfig(
            max_new_tokens=sampling.max_new_tokens, eos_token_id=self.eos_id,
            pad_token_id=self.eos_id, **settings,
        )  # type: ignore[no-untyped-call]  # fmt: skip
        with torch.no_grad():
            # generate() derives the same positions from the mask.
            sequences_BT: Tensor = self.lm.generate(
                input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], generation_config=config,
                logits_processor=processors,
            )  # fmt: skip
        return sequences_BT[:, ids_BT.shape[1] :]

    def response_logits(self, sequences_BT: Tensor, count: int, **more: Any) -> tuple[Tensor, Any]:
        """(B, count, V) logits of the last `count` tokens at the sampling temperature, and the model's full output."""
        if self._cuts_logits:
            more["logits_to_keep"] = count + 1
        output = self(**model_inputs(sequences_BT, self.pad_id), use_cache=False, return_dict=True, **more)
        logits_BRV: Tensor = output.logits[:, -count - 1 : -1]
        # The same division as in TRL, to the last digit.
        return logits_BRV / (self.sampling.temperature + 1e-7), output

    def generate(self, input_ids: Tensor, attention_mask: Tensor, **_: Any) -> Any:
        """TRL's way in: sample with our options, score by a forward pass like the one that is trained."""
        prompts_BT = input_ids.masked_fill(attention_mask == 0, self.pad_id)
        responses_BR = self.sample(prompts_BT)
        sequences_BT = torch.cat((prompts_BT, responses_BR), 1)
        with torch.no_grad():
            parts = [
                self.response_logits(part_BT, responses_BR.shape[1])[0]
                for part_BT in torch.split(sequences_BT, self.micro_batch or len(sequences_BT))
            ]
        return SimpleNamespace(sequences=sequences_BT, scores=torch.cat(parts).unbind(1))


class Reference(nn.Module):
    """The model before training: a frozen copy, or the policy with its adapter disabled."""

    def __init__(self, policy: Policy, frozen: Policy | None = None) -> None:
        super().__init__()
        self.frozen = frozen
        self._policy = (policy,)  # in a tuple, so that its weights are not registered here

    def forward(self, **given: Any) -> Any:
        with torch.no_grad(), self._untrained() as policy:
            return policy(**given)

    def response_logits(self, sequences_BT: Tensor, count: int) -> Tensor:
        with torch.no_grad(), self._untrained() as policy:
            return policy.response_logits(sequences_BT, count)[0]

    @contextmanager
    def _untrained(self) -> Iterator[Policy]:
        if self.frozen is not None:
            yield self.frozen
        else:
            with self._policy[0].lm.disable_adapter():
                yield self._policy[0]


class ValueModel(nn.Module):
    """A linear head on a decoder's last hidden states; it starts at zero, so untrained values are 0.

    The decoder is the policy's, without gradients, so that the value loss does not change the policy; or it is `own`
    and trained with the head. TRL calls what the name in `base_model_prefix` gives, and then `score`.
    """

    base_model_prefix = "backbone"

    def __init__(self, decoder: nn.Module, width: int, *, own: bool = False) -> None:
        super().__init__()
        self.own = decoder if own else None
        self._decoder = (decoder,)  # in a tuple, so that the policy's weights are not registered here
        self.score = nn.Linear(width, 1)
        nn.init.zeros_(self.score.weight)
        nn.init.zeros_(self.score.bias)

    @property
    def backbone(self) -> ValueModel:
        return self

    def forward(self, **given: Any) -> Any:
        with nullcontext() if self.own else torch.no_grad():
            output = self._decoder[0](**{**given, "use_cache": False})
        return SimpleNamespace(hidden_states=(output.last_hidden_state.float(),))


class Actors(nn.Module):
    """Policy and value model, which are trained, and the reference, which is not."""

    def __init__(self, policy: Policy, value_model: ValueModel, reference: Reference) -> None:
        super().__init__()
        self.policy, self.value_model = policy, value_model
        self._reference = (reference,)

    @property
    def reference(self) -> Reference:
        return self._reference[0]


def make_actors(policy: Policy, options: ActorOptions, seed: int) -> Actors:
    """Make a policy's value model and reference, and give the policy its adapter, whose weights `seed` draws.

    With LoRA, one model is policy, reference (its adapter off) and what the value model reads, unless that is separate.
    """
    decoder, separate = getattr(policy.lm, policy.lm.base_model_prefix), options.value == "separate"
    if separate:
        decoder = copy.deepcopy(decoder)
        decoder = with_adapter(decoder, options.lora_rank, seed, None) if options.lora_rank else decoder
    frozen = None if options.lora_rank else copy.deepcopy(policy).requires_grad_(False)
    if options.lora_rank:
        policy.lm = with_adapter(policy.lm, options.lora_rank, seed)
    value_model = ValueModel(decoder, policy.config.get_text_config().hidden_size, own=separate).to(policy.lm.device)
    return Actors(policy, value_model, Reference(policy, frozen))


def with_adapter(lm: Any, rank: int, seed: int, task: str | None = "CAUSAL_LM") -> Any:
    """The model with a new LoRA adapter on all linear layers, which in gpt2 and its kin are Conv1D.

    A decoder alone has no task.
    """
    from peft import LoraConfig, get_peft_model
    from transformers.pytorch_utils import Conv1D

    torch.manual_seed(seed)
    transposed = any(isinstance(layer, Conv1D) for layer in lm.modules())  # as weights of (inputs, outputs)
    config = LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type=task, fan_in_fan_out=transposed
    )
    return get_peft_model(lm, config)


WRITTEN_AT_ONCE = 16


def write_texts(policy: Policy, tokenizer: Any, prompts: Sequence[Sequence[int]]) -> list[str]:
    """The policy's greedy response to each prompt; prompts of similar length share a batch."""
    by_length = sorted(range(len(prompts)), key=lambda place: len(prompts[place]))
    texts = [""] * len(prompts)
    for first in range(0, len(by_length), WRITTEN_AT_ONCE):
        places = by_length[first : first + WRITTEN_AT_ONCE]
        ids_BT = left_padded([prompts[place] for place in places], policy.pad_id).to(policy.lm.device)
        responses_BR = policy.sample(ids_BT, greedy=True)
        for place, tokens in zip(places, responses_BR.tolist(), strict=True):
            texts[place] = text_of(tokenizer, tokens, policy.eos_id)
    return texts


# Tokens


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


# On disk


# The largest Qwen2.5 that fits a card of 24 GB in each way of training, also with --lora-rank 0, which takes two copies
# in fp32, one of them with gradients and Adam's moments. Its licence is Apache-2.0.
GPU_MODEL = "Qwen/Qwen2.5-0.5B-Instruct"


def load_tokenizer(model: str) -> Any:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    if tokenizer.eos_token_id is None:
        raise UserError(f"the tokenizer of {model} has no eos token, so a rewrite can't end; use another --base-model")
    return tokenizer


def load_policy(model: str, tokenizer: Any, options: Options) -> Policy:
    """A model as a policy, without an adapter yet."""
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    # In bf16, most of an update at a learning rate of 1e-5 is rounded away: only 1.7 % of the weights change.
    dtype = compute_dtype(options.actor.dtype) if options.actor.lora_rank else torch.float32
    lm: Any = AutoModelForCausalLM.from_pretrained(model, dtype=dtype)
    lm.to(process_device())
    # A model's own generation settings (e.g. Qwen's repetition penalty) would mix with ours.
    lm.generation_config = GenerationConfig()  # type: ignore[no-untyped-call]
    pad_id = with_padding(tokenizer).pad_token_id
    return Policy(lm, options.sampling, tokenizer.eos_token_id, pad_id, options.ppo.micro_batch)


def save_lm(policy: Policy, source: str, tokenizer: Any, folder: Path) -> None:
    """Save a plain checkpoint in the dtype it was trained in: adapter merged, generation settings from `source`."""
    from transformers import GenerationConfig

    if hasattr(policy.lm, "merge_and_unload"):
        policy.lm = policy.lm.merge_and_unload()
    lm = policy.lm
    plain = lm.generation_config
    with suppress(OSError):  # the source may have none
        lm.generation_config = GenerationConfig.from_pretrained(source)
    check_replaceable("--output-dir", folder, MARK)  # it may have been filled since the start
    with making_folder(folder, overwrite=True) as partial:
        lm.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        (partial / MARK).touch()
    lm.generation_config = plain
