"""The routes of vLLM's sleep mode, and what a server's answers say."""

from __future__ import annotations

from typing import Any

import httpx

from forage.engines.completion import UnreadyError
from forage.errors import UserError

SLEEP = "/sleep?level=1&mode=wait"  # wait: what is being sampled is finished first
WAKE = "/wake_up"
IS_SLEEPING = "/is_sleeping"
CONFIGURATION = "/server_info?config_format=json"


def asleep_of(answer: httpx.Response) -> bool | None:
    """Whether the server sleeps; None if the answer doesn't say, as most servers have no such route."""
    try:
        asleep: Any = answer.json()["is_sleeping"]
    except (ValueError, KeyError, TypeError):
        return None
    return asleep if isinstance(asleep, bool) else None


def has_sleep_mode(answer: httpx.Response, client: httpx.AsyncClient | httpx.Client) -> bool:
    """What a server's configuration says of --enable-sleep-mode."""
    if answer.status_code == 404:
        return False
    try:
        configuration = answer.json()
    except ValueError as error:  # a proxy's page, for one
        raise UnreadyError(f"status {answer.status_code}, but no configuration") from error
    try:
        return bool(configuration["vllm_config"]["model_config"]["enable_sleep_mode"])
    except (KeyError, TypeError) as error:
        raise UserError(f"{client.base_url} does not say if it has sleep mode; is its version supported?") from error


def without_sleep_mode(client: httpx.AsyncClient) -> UserError:
    return UserError(
        f"{client.base_url} has no sleep mode; start it with --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1, on a "
        "private network only, as that opens other routes too, or leave out --vllm-sleep"
    )


def waking(client: httpx.AsyncClient | httpx.Client) -> str:
    """The command that wakes a server by hand."""
    return f"curl -X POST {str(client.base_url).rstrip('/')}{WAKE}"
