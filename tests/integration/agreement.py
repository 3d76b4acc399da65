"""Requests to a vLLM server, and how far its log-probabilities are from the trainer's."""

import torch

from forage.engines.base import Request, Sampling
from forage.policy.logprobs import token_logprobs
from forage.policy.packing import pack

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

    class Tokens:
        def __init__(self, request, sample):
            self.ids = request.ids + sample.ids
            self.mask = (0,) * len(request.ids) + (1,) * len(sample.ids)

    found = []
    for request, sample in zip(requests, samples, strict=True):
        [batch] = pack([Tokens(request, sample)], 1)
        with torch.no_grad():
            own = token_logprobs(model, batch, temperature=temperature)[0, len(request.ids) :]
        found.append((own - torch.tensor(sample.logprobs)).abs())
    return torch.cat(found)
