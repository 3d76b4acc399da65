"""Requests to an engine, and what a plain model says of the samples."""

import asyncio

import numpy as np
import torch

from forage.engines.base import Request
from forage.policy.logprobs import token_logprobs
from forage.policy.packing import pack
from tests.factories import Sequence


def generate(engine, *requests):
    async def run():
        return await asyncio.gather(*map(engine.generate, requests))

    return asyncio.run(run())


def requests(count, length=7, **settings):
    draw = np.random.default_rng(0)
    return [
        Request(tuple(draw.integers(1, 61, length + number % 4).tolist()), 12, (60,), number, **settings)
        for number in range(count)
    ]


def logprobs_of(model, request, sample, temperature=1.0):
    ids = request.ids + sample.ids
    [batch] = pack([Sequence(ids, (0,) * len(request.ids) + (1,) * len(sample.ids))], len(ids))
    with torch.no_grad():
        return token_logprobs(model, batch, temperature=temperature)[0, len(request.ids) :]
