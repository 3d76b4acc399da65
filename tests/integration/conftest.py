"""A real vLLM server on this machine, out of .venv-vllm, which is set up where it is missing (about two minutes)."""

import contextlib
import json
import os
import signal
import subprocess
import time

import httpx
import pytest
import torch

from tests import ROOT
from tests.containers import docker
from tests.factories import stir
from tests.integration.agreement import adapted
from tests.ports import free_port

STARTUP = 600  # seconds; about 60 on two idle cores


class Server:
    """A vLLM process that can be killed and started again on its port."""

    def __init__(self, model, log, arguments=(), **settings):
        self.port = free_port()
        self.url, self.model, self.log, self.process = f"http://127.0.0.1:{self.port}", model, log, None
        self.arguments, self.settings = arguments, settings

    def start(self):
        environment = os.environ | {
            "MODEL": str(self.model), "PORT": str(self.port), "KV_GIB": "1", "LORA_RANK": "8",
            "DTYPE": "float32",  # as the trainer of these tests, whatever the processor: so what differs is a mistake
        } | self.settings  # fmt: skip
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [ROOT / "scripts" / "vllm_cpu.sh", *self.arguments], env=environment, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        return self

    def wait(self):
        deadline = time.monotonic() + STARTUP
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            try:
                if httpx.get(f"{self.url}/health", timeout=10).status_code == 200:
                    return self
            except httpx.TransportError:
                pass
            time.sleep(0.5)
        pytest.fail(f"the vLLM server did not start:\n{self.log.read_text()[-3000:]}")

    def kill(self):
        """SIGKILL, the engine's own process included."""
        if self.process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.fixture(scope="session")
def vllm_environment():
    # One set up by an earlier version lacks the plugin for 4-bit bases.
    plugin = (ROOT / ".venv-vllm").glob("lib/python3*/site-packages/vllm_bnb_plugin")
    if not (ROOT / ".venv-vllm" / ".installed").exists() or not any(plugin):
        done = subprocess.run([ROOT / "scripts" / "install_vllm_cpu.sh"], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"left out: vLLM for CPUs can't be had here ({done.stderr.strip().splitlines()[-1]})")


@pytest.fixture(scope="session")
def start_server(vllm_environment, tmp_path_factory):
    servers = []

    def start(model, *arguments, **settings):
        servers.append(Server(model, tmp_path_factory.mktemp("vllm") / "log", arguments, **settings))
        return servers[-1].start().wait()

    yield start
    for server in servers:
        server.kill()


# Defaults for whatever a request leaves out, as a model's generation_config.json may give them.
DEFAULTS = {
    "temperature": 0.3, "top_p": 0.5, "top_k": 3, "min_p": 0.2, "repetition_penalty": 1.5, "presence_penalty": 1.0,
    "frequency_penalty": 1.0,
}  # fmt: skip


@pytest.fixture(scope="session")
def server(start_server, model_folder):
    """The packaged model in fp32, for all tests that need nothing else; it has the routes for sleeping."""
    return start_server(model_folder, "--override-generation-config", json.dumps(DEFAULTS), VLLM_SERVER_DEV_MODE="1")


@pytest.fixture(scope="session")
def adapters(model_folder, tmp_path_factory):
    """Two adapters that say something else than the base and each other."""
    folder = tmp_path_factory.mktemp("adapters")
    for version in (1, 2):
        torch.manual_seed(version)
        policy = adapted(model_folder)
        stir(policy, 0.05)
        policy.save_pretrained(folder / f"v{version:06d}")
    return folder


@pytest.fixture(scope="session")
def engine():
    try:
        found = docker("info", check=False).returncode == 0 and docker("compose", "version", check=False)
    except FileNotFoundError:
        found = None
    if not found or found.returncode:
        pytest.skip("left out: no Docker engine with compose answers here")
