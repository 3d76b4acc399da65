"""When a run starts its own vLLM server, and what it tells it. tests/integration/test_service.py starts a real one."""

from types import SimpleNamespace

import pytest
import torch

from forage.engines.base import EngineOptions
from forage.grpo import own_server
from forage.grpo.options import TrainOptions
from forage.grpo.own_server import environment_on_gpu, start, wait_until_up, wants_one
from forage.rollout.options import RolloutOptions
from tests.refusals import refused


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
    with refused(r"ended while it started \(ValueError: no room for keys\); see .*vllm.log"):
        wait_until_up(server, "http://127.0.0.1:9", log)


def manifest_of(mib, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=mib * 2**20))


@pytest.mark.parametrize(
    ("mib", "sleeps", "serve", "share"),
    [(81559, False, "bf16", "0.27"), (16384, True, "nf4", "0.52")],
)
def test_the_share_of_a_card(monkeypatch, mib, sleeps, serve, share):
    manifest_of(mib, monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    told, served, flags = environment_on_gpu(sleeps=sleeps)
    assert (told["VLLM_GPUS"], told["VLLM_GPU_MEMORY"], served) == ("3", share, serve)
    assert flags == (["--enable-sleep-mode"] if sleeps else ["--max-num-seqs", "64"])
    assert ("VLLM_SERVER_DEV_MODE" in told) is sleeps


def test_a_small_card_is_refused_unless_its_share_is_said(monkeypatch):
    manifest_of(16384, monkeypatch)
    with refused(r"a GPU of 17 GB is too small .*--vllm-sleep"):
        environment_on_gpu(sleeps=False)
    monkeypatch.setenv("VLLM_GPU_MEMORY", "0.4")
    assert environment_on_gpu(sleeps=False)[0]["VLLM_GPU_MEMORY"] == "0.4"
