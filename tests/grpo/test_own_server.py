"""When a run starts its own vLLM server, and what it tells it. tests/integration/test_service.py starts a real one."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from forage.engines.base import EngineOptions
from forage.errors import UserError
from forage.grpo import own_server
from forage.grpo.options import TrainOptions
from forage.grpo.own_server import start, told_on_gpu, wait_until_up, wants_one
from forage.policy.card import PolicyCard
from forage.policy.footprint import GIB, KNOWN
from forage.policy.memory import APART, Work, plan
from forage.rollout.options import RolloutOptions

QWEN = "Qwen/Qwen2.5-7B-Instruct"
CARD = PolicyCard(Path("policy"), QWEN, QWEN, True, "auto")


def test_only_where_vllm_is_meant_and_none_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(own_server, "VLLM", tmp_path)
    monkeypatch.setattr(own_server, "answers", lambda engine: engine.patience == 1)

    def run(rollouts="own", **engine):
        return TrainOptions(RolloutOptions(engine=EngineOptions(**engine)), rollouts=rollouts)

    assert wants_one(run(engine="vllm"))
    assert not wants_one(run())  # auto comes to this process
    assert not wants_one(run("service", engine="vllm"))
    assert not wants_one(run(engine="vllm", urls=("http://127.0.0.1:8101",)))
    assert not wants_one(run(engine="vllm", patience=1))  # one answers
    monkeypatch.setattr(own_server, "VLLM", tmp_path / "missing")
    assert not wants_one(run(engine="vllm"))


def test_a_server_that_ends_while_it_starts_is_said_with_why(tmp_path):
    log = tmp_path / "vllm.log"
    server = start(["sh", "-c", "echo 'ValueError: no room for keys'; echo bye; exit 1"], {}, log)
    with pytest.raises(UserError, match=r"ended while it started \(ValueError: no room for keys\); see .*vllm.log"):
        wait_until_up(server, "http://127.0.0.1:9", log)


def card_of(gib, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=gib * GIB))


@pytest.mark.parametrize(("gib", "sleeps", "serve"), [(24, False, "nf4"), (80, False, "bf16"), (24, True, "bf16")])
def test_the_share_of_a_card(monkeypatch, gib, sleeps, serve):
    card_of(gib, monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    told, served = told_on_gpu(CARD, Work(), sleeps=sleeps)
    _, server = plan(KNOWN[QWEN], gib, Work(), shared=not sleeps)
    assert served == server.serve == serve
    assert told["VLLM_GPUS"] == "3"
    assert told["PLAN_VLLM_ARGS"] == server.flags
    assert float(told["VLLM_GPU_MEMORY"]) == (APART if sleeps else server.share(gib))
    assert ("VLLM_SERVER_DEV_MODE" in told) is sleeps


def test_a_card_without_room_is_refused_with_the_way_out(monkeypatch):
    card_of(16, monkeypatch)
    with pytest.raises(UserError, match=r"does not fit into a card of 16.0 GiB .*--vllm-sleep"):
        told_on_gpu(CARD, Work(), sleeps=False)
    card_of(6, monkeypatch)
    with pytest.raises(UserError, match=r"does not fit into a card of 6.0 GiB .*; lower --max-tokens"):
        told_on_gpu(CARD, Work(), sleeps=True)
