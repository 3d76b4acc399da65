"""Processor, memory, GPUs and disks of machines that are made up."""

import shutil
import subprocess
import sys
import warnings
from types import SimpleNamespace

import pytest
import torch

from forage.doctor import hardware
from forage.doctor.hardware import Limits, Place, cgroup_limits, disk_line, memory_line, processor_line, torch_lines
from forage.doctor.lines import GIB

CARD = SimpleNamespace(name="NVIDIA RTX 4090", total_memory=24 * GIB, major=8, minor=9)
OLD = SimpleNamespace(name="Tesla V100", total_memory=16 * GIB, major=7, minor=0)


@pytest.fixture
def one_gpu(monkeypatch):
    """A machine with GPUs, of which torch sees these."""

    def put(*cards, free=20 * GIB, bf16=True):
        monkeypatch.setattr(torch.version, "cuda", "12.8")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(cards))
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda place: cards[place])
        monkeypatch.setattr(torch.cuda, "device", lambda place: warnings.catch_warnings())  # any context
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, cards[0].total_memory))
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bf16)

    return put


# GPUs


def test_each_gpu_with_what_is_free_of_it(one_gpu):
    one_gpu(CARD, CARD)
    built, first, second = torch_lines()
    assert built.why == "built for CUDA 12.8"
    assert (first.state, first.what) == ("ok", "GPU 0: NVIDIA RTX 4090, 24.0 GiB")
    assert first.why == "20.0 GiB are free; compute capability 8.9, with bf16 units"
    assert second.what.startswith("GPU 1: ")
    assert first.figures == {
        "name": "NVIDIA RTX 4090", "total": 24 * GIB, "capability": "8.9", "free": 20 * GIB, "bf16": True,
    }  # fmt: skip


def test_a_gpu_without_bf16(one_gpu):
    one_gpu(OLD, bf16=False)
    [_, line] = torch_lines()
    assert line.why.endswith("compute capability 7.0, without bf16 units, so fp32 is taken")


def test_a_gpu_that_another_process_has_alone(one_gpu, monkeypatch):
    one_gpu(CARD)

    def busy():
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable\nmore")

    monkeypatch.setattr(torch.cuda, "mem_get_info", busy)
    [_, line] = torch_lines()
    assert (line.state, line.command) == ("problem", "nvidia-smi")
    assert line.why == "CUDA error: all CUDA-capable devices are busy or unavailable"


def driver_is_old():
    warnings.warn("CUDA initialization: The NVIDIA driver on your system is too old", UserWarning, stacklevel=2)
    return False


@pytest.mark.parametrize(
    ("built", "available", "why", "command"),
    [
        (None, lambda: False, "this torch is the CPU build", "scripts/install_torch.sh .venv/bin/python cuda"),
        ("12.8", driver_is_old, "CUDA initialization: The NVIDIA driver on your system is too old", "nvidia-smi"),
        ("12.8", lambda: False, "CUDA_VISIBLE_DEVICES is ''", "nvidia-smi"),
    ],
)
def test_why_torch_sees_no_gpu(monkeypatch, built, available, why, command):
    monkeypatch.setattr(torch.version, "cuda", built)
    monkeypatch.setattr(torch.cuda, "is_available", available)
    monkeypatch.setattr(hardware, "nvidia_smi", lambda: "NVIDIA L4")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    [_, line] = torch_lines()
    assert (line.state, line.why, line.command) == ("problem", why, command)
    assert line.what == "no GPU for torch, but nvidia-smi lists NVIDIA L4"
    assert not line.fails  # the CPU does


def test_no_gpu_at_all_is_a_choice(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(hardware, "nvidia_smi", lambda: "")
    assert [line.state for line in torch_lines()] == ["ok", "choice"]


def test_nvidia_smi_is_asked(tmp_path, monkeypatch):
    real = subprocess.run
    monkeypatch.setattr(hardware.subprocess, "run", lambda *args, **more: real(*args, **more | {"timeout": 60}))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert hardware.nvidia_smi() == ""
    script = tmp_path / "nvidia-smi"
    script.write_text("#!/bin/sh\nprintf 'NVIDIA L4\\nNVIDIA L4\\n'\n")
    script.chmod(0o755)
    assert hardware.nvidia_smi() == "NVIDIA L4, NVIDIA L4"
    script.write_text("#!/bin/sh\nexit 9\n")
    assert hardware.nvidia_smi() == ""


def test_a_torch_that_is_missing_or_broken(monkeypatch, tmp_path):
    broken = tmp_path / "broken"
    (broken / "torch").mkdir(parents=True)
    (broken / "torch" / "__init__.py").write_text("raise OSError('libcudart.so.12: cannot open shared object file')")
    monkeypatch.setattr(sys, "path", [str(broken), *sys.path])
    monkeypatch.delitem(sys.modules, "torch")
    [line] = torch_lines()
    assert (line.state, line.fails) == ("problem", True)
    assert line.why == "can't be imported: libcudart.so.12: cannot open shared object file"
    monkeypatch.setitem(sys.modules, "torch", None)
    [line] = torch_lines()
    assert (line.state, line.fails, line.command) == ("missing", True, "scripts/install_torch.sh .venv/bin/python")


# Processor and memory


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_limits_of_the_second_version_of_cgroups(tmp_path):
    write(tmp_path / "own", "0::/pod/box\n")
    write(tmp_path / "fs/pod/memory.max", f"{8 * GIB}\n")
    write(tmp_path / "fs/pod/cpu.max", "max 100000\n")
    write(tmp_path / "fs/pod/box/memory.max", "max\n")
    write(tmp_path / "fs/pod/box/cpu.max", "150000 100000\n")
    assert cgroup_limits(tmp_path / "fs", tmp_path / "own") == Limits(8 * GIB, 1.5)


def test_limits_of_the_first_version_of_cgroups(tmp_path):
    write(tmp_path / "own", "4:memory:/docker/1\n3:cpu,cpuacct:/docker/1\n2:freezer:/\n")
    write(tmp_path / "fs/memory/memory.limit_in_bytes", "9223372036854771712\n")  # no limit
    write(tmp_path / "fs/memory/docker/1/memory.limit_in_bytes", f"{4 * GIB}\n")
    write(tmp_path / "fs/cpu/docker/1/cpu.cfs_quota_us", "200000\n")
    write(tmp_path / "fs/cpu/docker/1/cpu.cfs_period_us", "100000\n")
    assert cgroup_limits(tmp_path / "fs", tmp_path / "own") == Limits(4 * GIB, 2.0)


def test_no_limits(tmp_path):
    write(tmp_path / "own", "4:memory:/\n3:cpu:/\n")
    write(tmp_path / "fs/memory/memory.limit_in_bytes", "9223372036854771712\n")
    write(tmp_path / "fs/cpu/cpu.cfs_quota_us", "-1\n")
    write(tmp_path / "fs/cpu/cpu.cfs_period_us", "100000\n")
    assert cgroup_limits(tmp_path / "fs", tmp_path / "own") == Limits(None, None)
    assert cgroup_limits(tmp_path / "fs", tmp_path / "none") == Limits(None, None)


def test_a_container_with_fewer_cores_than_threads(monkeypatch):
    monkeypatch.setattr(hardware.os, "cpu_count", lambda: 64)
    monkeypatch.setattr(hardware.os, "sched_getaffinity", lambda process: set(range(32)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    line = processor_line(Limits(None, 2.5), threads=32)
    assert (line.state, line.what, line.command) == ("problem", "64 cores", "export OMP_NUM_THREADS=2")
    assert "32 of 64 for this process; its container may use 2.5" in line.why
    assert "torch takes 32: OMP_NUM_THREADS is not set" in line.why
    assert processor_line(Limits(None, 2.5), threads=2).state == "ok"


def test_memory_with_a_containers_limit(tmp_path):
    (tmp_path / "meminfo").write_text(f"MemTotal: {16 * 2**20} kB\nMemFree: 1 kB\nMemAvailable: {3 * 2**20} kB\n")
    line = memory_line(Limits(4 * GIB, None), tmp_path / "meminfo")
    assert line.what == "memory 16.0 GiB"
    assert line.why == "3.0 GiB are free; its container may use 4.0 GiB"
    assert memory_line(Limits(64 * GIB, None), tmp_path / "meminfo").why == "3.0 GiB are free"


# Disks


def usage(monkeypatch, free):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))


def test_a_disk_that_is_too_small_for_the_model(tmp_path, monkeypatch):
    place = Place("models", tmp_path / "not/there", 15 * GIB, "Qwen2.5-7B-Instruct")
    usage(monkeypatch, 14 * GIB)
    line = disk_line(place)
    assert (line.state, line.fails, line.command) == ("problem", True, f"df -h {tmp_path}")
    assert line.why == "Qwen2.5-7B-Instruct takes 15.0 GiB"
    usage(monkeypatch, 15 * GIB)
    assert disk_line(place).state == "ok"


def test_a_folder_that_this_user_may_not_write_to(tmp_path, monkeypatch):
    monkeypatch.setattr(hardware.os, "access", lambda path, mode: False)
    line = disk_line(Place("data", tmp_path / "data"))
    assert (line.state, line.fails, line.why) == ("problem", True, f"this user may not write to {tmp_path}")
