"""A model hub within reach, and bf16 units and what they gain."""

from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
import torch

from forage import machine
from forage.machine import has_bf16, hub_reachable, unseen_gpu
from forage.policy.base_models import PACKAGED_MODEL, model_choice
from tests.refusals import refused


def test_the_hub_is_asked_over_real_sockets(monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    hub_reachable.cache_clear()
    assert hub_reachable() is False
    server = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    hub_reachable.cache_clear()
    assert hub_reachable(60) is True  # a server that is there, however slow this machine is
    server.shutdown()
    server.server_close()
    hub_reachable.cache_clear()


@pytest.mark.parametrize(
    ("vendor", "flags", "gains"),
    [
        ("AuthenticAMD", "avx2 avx512_bf16", True),
        ("GenuineIntel", "avx2 avx512_bf16", False),
        ("GenuineIntel", "avx512_bf16 amx_bf16", True),
        ("ARM", "asimd bf16", True),
        ("AuthenticAMD", "avx2 avx512f", False),
    ],
)
def test_bf16_only_where_the_processor_multiplies_faster_in_it(monkeypatch, vendor, flags, gains):
    monkeypatch.setattr(machine.Path, "read_text", lambda self: f"vendor_id\t: {vendor}\nflags\t: {flags}\n")
    assert has_bf16("cpu") == gains


def test_a_gpu_that_torch_does_not_see_is_no_machine_without_one(tmp_path, monkeypatch):
    """nvidia-smi is a stand-in: the small model is not trained unasked beside a card."""
    if torch.cuda.is_available():
        pytest.skip("left out: torch sees a GPU here")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert unseen_gpu() == ""
    assert model_choice()[0] == PACKAGED_MODEL
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 535.183.01\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    with refused(f"torch.*; to train the small model on the CPU .*: {PACKAGED_MODEL}$"):
        model_choice()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # hidden on purpose
    assert model_choice()[0] == PACKAGED_MODEL
