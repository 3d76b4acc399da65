"""Requests to a vLLM server, and how far its log-probabilities are from the trainer's and may be."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from forage.engines.base import Request, Sampling
from tests.sampling import logprobs_of

QUESTIONS = ["What is gout?", "What are the symptoms of asthma?", "How is anemia treated?", "What causes migraine?"]


def adapted(model_folder, modules="all-linear"):
    """The packaged model in fp32 with an adapter, which begins as nothing."""
    base = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    policy = get_peft_model(base, LoraConfig(r=8, target_modules=modules, task_type="CAUSAL_LM"))
    policy.peft_config["default"].base_model_name_or_path = str(model_folder)
    return policy


def requests_of(protocol, count=8, tokens=24, sampling=None):
    return [
        Request(
            tuple(protocol.prompt(QUESTIONS[n % 4])), tokens, protocol.stop_ids, n, sampling or Sampling(), f"{n}/0"
        )
        for n in range(count)
    ]


def differences(model, requests, samples, temperature=1.0):
    """Absolute differences of the server's log-probabilities from the trainer's own, token by token."""
    given = torch.tensor([logprob for sample in samples for logprob in sample.logprobs])
    return (scored(model, requests, samples, temperature) - given).abs()


def scored(model, requests, samples, temperature=1.0):
    """The trainer's log-probabilities of all sampled tokens."""
    pairs = zip(requests, samples, strict=True)
    return torch.cat([logprobs_of(model, request, sample, temperature) for request, sample in pairs])


def mismatch_bound(dtype):
    """The largest mean difference in nats; `python -m bench.mismatch` measures it.

    In fp32 it is about 1e-5. In bf16 the two round in different places: .033, with logits in fp32 on both sides.
    """
    return {"float32": 1e-3, "bfloat16": 0.05}[dtype]
