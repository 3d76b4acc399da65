"""A server that answers, stumbles, refuses and is not there."""

import asyncio

import pytest

from forage.engines.chat_endpoint import Endpoint, RefusedError
from forage.errors import UserError
from tests.extras.questions.chat_server import chat_server


def ask(url, *prompts, model="m"):
    async def all_of_them():
        async with Endpoint(url, model, "Shout.", 40, "--make-questions-url") as server:
            return await asyncio.gather(*map(server.reply, prompts))

    return asyncio.run(all_of_them())


def test_what_is_sent_and_what_comes_back(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with chat_server(lambda prompt, number: prompt.upper()) as chat:
        assert ask(chat.url, "a", "b", model="tiny") == ["A", "B"]
    assert sorted(chat.asked) == ["a", "b"]
    assert chat.headers[0]["Authorization"] == "Bearer secret"
    body = chat.bodies[0]
    assert (body.path, body.model, body.temperature) == ("/v1/chat/completions", "tiny", 0)
    assert [message["role"] for message in body.messages] == ["system", "user"]


@pytest.mark.parametrize(
    "trouble", [(503, {}), (429, {}), (200, b"<html>"), (200, b"[" * 100_000), (200, {"choices": []})]
)
def test_a_server_that_stumbles_is_asked_again(trouble):
    with chat_server(lambda prompt, number: trouble if number < 3 else "yes") as chat:
        assert ask(chat.url, "a") == ["yes"]
    assert len(chat.asked) == 3


@pytest.mark.parametrize(
    ("status", "error", "says"),
    [
        (401, UserError, r"refuses the key \(status 401\); set OPENAI_API_KEY"),
        (404, UserError, r"status 404 \(no model m\); check --make-questions-url, and that it has a model m"),
        (400, RefusedError, "status 400: no model m"),
    ],
)
def test_a_refusal_is_not_repeated(status, error, says):
    with chat_server(lambda prompt, number: (status, {"error": {"message": "no\nmodel m"}})) as chat:
        with pytest.raises(error, match=says):
            ask(chat.url, "a")
        assert len(chat.asked) == 1


def test_a_password_in_the_address_is_sent_and_not_told():
    with chat_server(lambda prompt, number: (404, {})) as chat, pytest.raises(UserError) as error:
        ask(chat.url.replace("://", "://me:secret@"), "a")
    assert chat.headers[0]["Authorization"] == "Basic bWU6c2VjcmV0"
    assert str(error.value).startswith(chat.url)
