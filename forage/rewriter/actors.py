"""Actors of PPO: the policy that samples and is trained, the reference it is held to, and the value model.

The policy's log-probabilities are always those of a whole forward pass over the padded batch at the sampling
temperature, when it samples as when it is trained: so the ratio of the two is 1 until its weights change, with
whatever top-p, precision or kernels. (TRL takes them from the sampler's own scores: there top-p 0.9 alone makes the
ratio 0.957, and bf16 weights clip 4.5 % of the tokens at learning rate 0.)
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from forage.errors import UserError
from forage.files import replacing_folder
from forage.machine import compute_dtype
from forage.rewriter.options import ActorOptions, SamplingOptions
from forage.rewriter.rewrites import left_padded


def attended(ids_BT: Tensor, pad_id: int) -> dict[str, Tensor]:
    """What a model is given for a padded batch: ids (0 for padding), mask, and positions that count real tokens only.

    Example: [[9, 5, 6]] with pad 9 gives ids [[0, 5, 6]], mask [[0, 1, 1]], positions [[0, 0, 1]]. The same as TRL's.
    """
    mask_BT = ids_BT != pad_id
    positions_BT = mask_BT.cumsum(1) - mask_BT.long()
    return {
        "input_ids": ids_BT.masked_fill(~mask_BT, 0), "attention_mask": mask_BT.long(), "position_ids": positions_BT,
    }  # fmt: skip


class Policy(nn.Module):
    """A causal language model that samples for PPO; what TRL and our own loop are both given."""

    def __init__(self, lm: Any, sampling: SamplingOptions, eos_id: int, pad_id: int, micro_batch: int = 0) -> None:
        super().__init__()
        self.lm, self.sampling = lm.eval(), sampling
        self.eos_id, self.pad_id, self.micro_batch = eos_id, pad_id, micro_batch
        self.is_gradient_checkpointing = False
        base = lm.get_base_model() if hasattr(lm, "get_base_model") else lm
        self._cuts_logits = "logits_to_keep" in inspect.signature(base.forward).parameters

    def train(self, mode: bool = True) -> Policy:
        """Never in training mode, whoever asks: dropout would make every ratio a guess."""
        return super().train(False)

    @property
    def config(self) -> Any:
        return self.lm.config

    @property
    def generation_config(self) -> Any:
        return self.lm.generation_config

    def forward(self, **given: Any) -> Any:
        """Logits in fp32, of whatever weights: TRL takes log-probabilities in the type that it is given."""
        output = self.lm(**given)
        output.logits = output.logits.float()
        return output

    def sample(self, ids_BT: Tensor, *, greedy: bool = False, most: int = 0) -> Tensor:
        """(B, R) tokens for left-padded prompts; a row that ended is filled up with eos."""
        from transformers import GenerationConfig

        seen, sampling = attended(ids_BT, self.pad_id), self.sampling
        drawn: dict[str, Any] = {"do_sample": False}
        if not greedy:
            drawn = {"do_sample": True, "temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": 0}
        if self.pad_id < self.config.vocab_size:  # where embeddings are more than tokens, as in Qwen2.5
            drawn["suppress_tokens"] = [self.pad_id]
        config = GenerationConfig(
            max_new_tokens=most or sampling.max_new_tokens, eos_token_id=self.eos_id, pad_token_id=self.eos_id, **drawn
        )  # type: ignore[no-untyped-call]
        with torch.no_grad():
            # The positions are left to generate(), which makes the same of the mask.
            written_BT: Tensor = self.lm.generate(
                input_ids=seen["input_ids"], attention_mask=seen["attention_mask"], generation_config=config
            )
        return written_BT[:, ids_BT.shape[1] :]

    def response_logits(self, sequences_BT: Tensor, count: int, **more: Any) -> tuple[Tensor, Any]:
        """(B, count, V) logits of the last `count` tokens at the sampling temperature, and the model's whole output."""
        if self._cuts_logits:
            more["logits_to_keep"] = count + 1
        output = self(**attended(sequences_BT, self.pad_id), use_cache=False, return_dict=True, **more)
        logits_BRV: Tensor = output.logits[:, -count - 1 : -1]
        # As TRL divides, to the last digit.
        return logits_BRV / (self.sampling.temperature + 1e-7), output

    def generate(self, input_ids: Tensor, attention_mask: Tensor, **_: Any) -> Any:
        """As TRL calls it: sampled by our options, and scored by a forward pass as the one that will be trained."""
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
    """The model as it was before training: a frozen copy, or the policy without its adapter."""

    def __init__(self, policy: Policy, frozen: Policy | None = None) -> None:
        super().__init__()
        self.frozen = frozen
        self._policy = (policy,)  # in a tuple, so that its weights do not count as this module's

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
    """A head on a backbone's last hidden states, zero at the start: until it has learnt, it says nothing.

    TRL reaches the backbone by the name in `base_model_prefix`, and then calls `score`.
    """

    base_model_prefix = "backbone"

    def __init__(self, backbone: nn.Module, width: int, *, shared: bool) -> None:
        super().__init__()
        self.backbone, self.shared = backbone.eval(), shared
        self.score = nn.Linear(width, 1)
        nn.init.zeros_(self.score.weight)
        nn.init.zeros_(self.score.bias)

    def train(self, mode: bool = True) -> ValueModel:
        """As the policy, never in training mode."""
        return super().train(False)


class Own(nn.Module):
    """A backbone that is the value model's own."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, **given: Any) -> Any:
        output = self.decoder(**{**given, "use_cache": False})
        return SimpleNamespace(hidden_states=(output.last_hidden_state.float(),))


class Borrowed(nn.Module):
    """The policy's backbone, of which nothing is trained from here: else values would pull at the policy."""

    def __init__(self, decoder: nn.Module) -> None:
        super().__init__()
        self._decoder = (decoder,)

    def forward(self, **given: Any) -> Any:
        with torch.no_grad():
            output = self._decoder[0](**{**given, "use_cache": False})
        return SimpleNamespace(hidden_states=(output.last_hidden_state.float(),))


class Actors(nn.Module):
    """Policy and value model, which are trained, beside the reference, which is not."""

    def __init__(self, policy: Policy, value_model: ValueModel, reference: Reference) -> None:
        super().__init__()
        self.policy, self.value_model = policy, value_model
        self._reference = (reference,)

    @property
    def reference(self) -> Reference:
        return self._reference[0]


def load_lm(name: str, *, lora: bool) -> Any:
    """A causal language model in fp32; the base of an adapter in what this machine computes in."""
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    # In bf16 most of an update at a learning rate of 1e-5 is rounded away: 1.7 % of the weights change at all.
    dtype = compute_dtype() if lora else torch.float32
    lm: Any = AutoModelForCausalLM.from_pretrained(name, dtype=dtype)
    # What a model's own settings say of sampling (Qwen's repetition penalty) would be mixed into ours.
    lm.generation_config = GenerationConfig()  # type: ignore[no-untyped-call]
    return lm.to("cuda" if torch.cuda.is_available() else "cpu").eval()


def make_actors(
    lm: Any, options: ActorOptions, sampling: SamplingOptions, eos_id: int, pad_id: int, micro_batch: int, seed: int
) -> Actors:
    """All of them from one model. LoRA's first weights are drawn by the seed."""
    decoder = getattr(lm, lm.base_model_prefix)
    own_decoder = None if options.shared else copy.deepcopy(decoder)
    frozen = None
    if options.lora_rank:
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(seed)
        rank = options.lora_rank
        config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
        lm = get_peft_model(lm, config)
    else:
        frozen = Policy(copy.deepcopy(lm).requires_grad_(False), sampling, eos_id, pad_id)
    policy = Policy(lm, sampling, eos_id, pad_id, micro_batch)
    backbone = Own(own_decoder) if own_decoder is not None else Borrowed(decoder)
    value_model = ValueModel(backbone, lm.config.hidden_size, shared=options.shared).to(policy.lm.device)
    return Actors(policy, value_model, Reference(policy, frozen))


def write_texts(
    policy: Policy, tokenizer: Any, prompts: Sequence[Sequence[int]], most: int = 0, batch: int = 16
) -> list[str]:
    """What the policy says to each prompt, the likeliest token each time; alike lengths go together."""
    order = sorted(range(len(prompts)), key=lambda place: len(prompts[place]))
    texts = [""] * len(prompts)
    for first in range(0, len(order), batch):
        places = order[first : first + batch]
        ids_BT = left_padded([prompts[place] for place in places], policy.pad_id).to(policy.lm.device)
        for place, tokens in zip(places, policy.sample(ids_BT, greedy=True, most=most).tolist(), strict=True):
            texts[place] = text_of(tokenizer, tokens, policy.eos_id)
    return texts


def text_of(tokenizer: Any, tokens: Sequence[int], eos_id: int) -> str:
    """What a response says up to its end, in one line."""
    kept = list(tokens[: tokens.index(eos_id)] if eos_id in tokens else tokens)
    return " ".join(tokenizer.decode(kept, skip_special_tokens=True).split())


MARK = ".query_rewriter"  # in a folder that save_lm wrote


def check_replaceable(folder: Path) -> None:
    """Only what was written here before, or is empty, makes room for a trained model."""
    if folder.exists() and not (folder / MARK).exists() and (folder.is_file() or any(folder.iterdir())):
        raise UserError(f"--output-dir {folder} holds other things than a model of train_ppo.py; choose another")


def save_lm(policy: Policy, source: str, tokenizer: Any, folder: Path) -> None:
    """A plain checkpoint in the precision that it was trained in, adapter merged, with the settings of its source."""
    from transformers import GenerationConfig

    lm = policy.lm
    if hasattr(lm, "merge_and_unload"):
        lm = policy.lm = lm.merge_and_unload()
    plain = lm.generation_config
    with suppress(OSError):  # where it has none
        lm.generation_config = GenerationConfig.from_pretrained(source)
    check_replaceable(folder)
    with replacing_folder(folder, overwrite=True) as partial:
        lm.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        (partial / MARK).touch()
    lm.generation_config = plain
