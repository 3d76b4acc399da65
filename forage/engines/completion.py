"""One completion of a vLLM server: the request's body, and the sample in the answer, checked against the request."""

from __future__ import annotations

import math
from typing import Any

import httpx

from forage.engines.base import Request, Sample
from forage.errors import UserError
from forage.text import from_json

RETRIED = {408, 409, 425, 429, 500, 502, 503, 504}  # statuses after which asking again may help
ROUNDING = 1e-3  # a probability of 1 may come out this much above 1


class UnreadyError(Exception):
    """The server can't answer now, or its answer was cut off: asking again may help."""


def body_of(request: Request, model: str) -> dict[str, Any]:
    """What is left out here, the server takes from its model's generation_config.json."""
    return {
        "model": model,
        "prompt": list(request.ids),
        "max_tokens": request.max_tokens,
        "temperature": request.sampling.temperature,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "watermarking": False,
        "seed": request.seed,
        "stop_token_ids": list(request.stop_ids),
        "ignore_eos": True,  # only the request's own stop tokens end it
        "logprobs": 0,  # only the sampled token's
        "return_token_ids": True,
        "skip_special_tokens": False,
    }


def choice_of(answer: httpx.Response) -> dict[str, Any]:
    """The one choice of a completion; a proxy's page or half an answer has none."""
    try:
        [choice] = from_json(answer.content)["choices"]
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadyError(f"status {answer.status_code}, but no completion: {answer.text[:60]!r}") from error
    if not isinstance(choice, dict) or choice.get("finish_reason") not in ("stop", "length"):
        finish = choice.get("finish_reason") if isinstance(choice, dict) else choice
        raise UnreadyError(f"the request was broken off, {finish!r}")  # abort: the server is shutting down
    return choice


def read_sample(choice: dict[str, Any], request: Request, vocabulary: int = 0) -> Sample:
    """The sampled tokens and their log-probabilities. Refuses a choice that can't be what was asked for.

    `vocabulary` is the number of tokens of the policy's model; 0: not known.
    """
    ids, given = choice.get("token_ids"), choice.get("logprobs")
    logprobs = given.get("token_logprobs") if isinstance(given, dict) else None
    if not isinstance(ids, list) or not isinstance(logprobs, list) or not ids:
        raise UserError("the vLLM server returned no token log-probabilities; is its version supported?")
    if choice.get("prompt_token_ids") != list(request.ids):
        raise UserError("the vLLM server did not continue the tokens it was given; is its version supported?")
    if len(ids) != len(logprobs):
        raise UserError(f"the vLLM server returned {len(ids)} tokens but {len(logprobs)} log-probabilities")
    for token in ids:
        if type(token) is not int or token < 0 or (vocabulary and token >= vocabulary):
            raise UserError(
                f"the vLLM server sampled token {token!r}, which the policy's model lacks; start it with the policy's "
                "base"
            )
    for logprob in logprobs:
        if not is_logprob(logprob):
            raise UserError(f"the vLLM server returned {logprob!r} as a token's log-probability; {WAY_OUT}")
    check_end(ids, choice["finish_reason"], request)
    return Sample(tuple(ids), tuple(logprobs), choice["finish_reason"])


WAY_OUT = "start it with --logprobs-mode processed_logprobs, as scripts/vllm_cpu.sh does"


def is_logprob(value: Any) -> bool:
    return isinstance(value, float | int) and math.isfinite(value) and value <= ROUNDING


def check_end(ids: list[int], finish: str, request: Request) -> None:
    """Refuse a sample that ends where it should not, or goes on where it should have ended."""
    early = next((token for token in ids[:-1] if token in request.stop_ids), None)
    if early is not None:
        raise UserError(f"the vLLM server went on after token {early}, which ends a turn; is its version supported?")
    if finish == "stop" and ids[-1] not in request.stop_ids:
        raise UserError(f"the vLLM server stopped with 'stop' at token {ids[-1]}, which was not requested")
    if len(ids) > request.max_tokens or (finish == "length" and len(ids) < request.max_tokens):
        raise UserError(
            f"the vLLM server returned {len(ids)} tokens where {request.max_tokens} were asked for; start it with "
            "--generation-config vllm, and without max_new_tokens in --override-generation-config"
        )


def message_of(answer: httpx.Response) -> str:
    """The message of an error response, on one line."""
    try:
        told = from_json(answer.content)
        told = told.get("error") or told
        text = told if isinstance(told, str) else told.get("message") or told
    except (ValueError, AttributeError):
        text = answer.text
    return " ".join(str(text).split())[:300]
