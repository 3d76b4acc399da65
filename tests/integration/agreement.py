"""Requests to a vLLM server, and how far its log-probabilities are from the trainer's."""

import torch

from forage.engines.base import Request, Sampling
from tests.sampling import logprobs_of

QUESTIONS = ["What is gout?", "What are the symptoms of asthma?", "How is anemia treated?", "What causes migraine?"]


def requests_of(protocol, count=8, tokens=24, sampling=None):
    return [
        Request(
            tuple(protocol.prompt(QUESTIONS[n % 4])), tokens, protocol.stop_ids, n, sampling or Sampling(), f"{n}/0"
        )
        for n in range(count)
    ]


def differences(model, requests, samples, temperature=1.0):
    """Absolute differences of the server's log-probabilities from the trainer's own, token by token."""
    return torch.cat([
        (logprobs_of(model, request, sample, temperature) - torch.tensor(sample.logprobs)).abs()
        for request, sample in zip(requests, samples, strict=True)
    ])  # fmt: skip
