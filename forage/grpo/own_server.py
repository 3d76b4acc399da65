"""A vLLM server of a run's own: started on this machine where none answers and none is named, and ended with the run.

So one command trains on one GPU. The server loads the policy's base, or the copy of it that the trainer computes with,
and gets the share of the card that scripts/cards.txt gives it, or with --vllm-sleep about half.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import torch

from forage.engines.base import EngineOptions
from forage.engines.choice import answers
from forage.engines.vllm import SAY_EVERY
from forage.errors import UserError
from forage.grpo.options import TrainOptions
from forage.heartbeat import beat
from forage.policy.adapters import CONFIG
from forage.policy.manifest import PolicyManifest
from forage.policy.served_base import Options as Served
from forage.policy.served_base import Precision, downloaded, serve_base
from forage.runs.run_folder import SERVER_LOG
from forage.text import say

SCRIPTS = Path(__file__).parents[2] / "scripts"
VLLM = SCRIPTS.parent / ".venv-vllm" / "bin" / "vllm"
CARDS = SCRIPTS / "cards.txt"
ASLEEP = "0.52"  # share of a GPU for a server that sleeps during updates: the trainer's weights stay there
LAST_WORDS = 60  # seconds that a server has to end


def wants_one(options: TrainOptions) -> bool:
    """Whether this process plays through vLLM, and none is named, none answers, and it is installed here."""
    engine = options.rollout.engine
    by_name = options.rollouts == "own" and engine.engine == "vllm" and engine.urls == EngineOptions().urls
    return by_name and VLLM.exists() and not answers(engine)


@contextmanager
def own_server(options: TrainOptions, manifest: PolicyManifest, adapter: Path, tokens: int) -> Iterator[TrainOptions]:
    """The options with the address of a server that is started here, if they want one; it ends with this process.

    `tokens`: an episode's most.
    """
    if not wants_one(options):
        yield options
        return
    rollout, log, on_gpu = options.rollout, options.run_dir / SERVER_LOG, torch.cuda.is_available()
    rank = json.loads((adapter / CONFIG).read_text())["r"]
    environment, serve, flags = environment_on_gpu(sleeps=options.vllm_sleep) if on_gpu else ({}, "bf16", [])
    link = rollout.policy.with_name(f"{rollout.policy.name}-served")
    base = serve_base(Served(rollout.policy, link, serve)) if manifest.quantized else downloaded(manifest.base)
    port = free_port()
    environment |= {"MODEL": str(base.resolve()), "PORT": str(port), "LORA_RANK": str(rank)}
    environment |= {"MAX_TOKENS" if on_gpu else "MAX_LEN": str(tokens)}
    environment |= {} if manifest.dtype == "auto" else {"DTYPE": manifest.dtype}
    print(f"engine: no vLLM server answers at {rollout.engine.urls[0]}; this run starts its own, with its log in {log}")
    server = start([str(SCRIPTS / f"vllm_{'gpu' if on_gpu else 'cpu'}.sh"), *flags], environment, log)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_up(server, url, log)
        yield replace(options, rollout=replace(rollout, engine=replace(rollout.engine, urls=(url,))))
    finally:
        end(server)


def environment_on_gpu(*, sleeps: bool) -> tuple[dict[str, str], Precision, list[str]]:
    """What scripts/vllm_gpu.sh is told about this process's GPU, what it should serve there, and further flags.

    A VLLM_GPU_MEMORY in the environment stays.
    """
    size = torch.cuda.get_device_properties(0).total_memory / 1e9
    row, share = row_of(size), os.environ.get("VLLM_GPU_MEMORY", "")
    share = share or (ASLEEP if sleeps else row[1] if row else "")
    if not share:
        raise UserError(
            f"a GPU of {size:.0f} GB is too small for a vLLM server and the trainer of a 7B model at once; let them "
            "take turns (--vllm-sleep), set the server's share for a smaller model (VLLM_GPU_MEMORY=0.4), or give "
            "--engine local"
        )
    environment = {
        "VLLM_GPUS": os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0], "VLLM_GPU_MEMORY": share
    }  # fmt: skip
    if sleeps:
        environment["VLLM_SERVER_DEV_MODE"] = "1"
    serve: Precision = "bf16" if row and row[0] == "bf16" else "nf4"
    return environment, serve, ["--enable-sleep-mode"] if sleeps else ["--max-num-seqs", "64"]


def row_of(gigabytes: float) -> list[str] | None:
    """What scripts/cards.txt has for a card: how vLLM serves a base in 4 bits, its share. Below its first row nothing.

    Example: 25.4 (of a card of 24 GB) gives ["nf4", "0.49", ...], and so does 23.7, as CUDA keeps some of an L4.
    """
    rows = [line.split() for line in CARDS.read_text().splitlines() if not line.startswith("#")]
    return next((row[1:] for row in reversed(rows) if int(row[0]) <= gigabytes + 1), None)


def start(command: list[str], environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """The process. The kernel ends it with this one, however that ends; Ctrl-C reaches this one alone."""
    bound = [setpriv, "--pdeathsig", "TERM", "--"] if (setpriv := shutil.which("setpriv")) else []
    with log.open("ab") as file:
        return subprocess.Popen(  # noqa: S603
            [*bound, *command], env=os.environ | environment, stdout=file, stderr=file, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip


def wait_until_up(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Wait while the server loads its model, saying every other minute what it said last."""
    begun = said = time.monotonic()
    while not answers(EngineOptions(urls=(url,))):
        beat()
        lines = log.read_text(errors="replace").splitlines()
        if server.poll() is not None:
            last = next((line for line in reversed(lines) if "Error" in line or "error:" in line), "it said nothing")
            raise UserError(f"the vLLM server ended while it started ({last.strip()}); see {log}, or --engine local")
        if (now := time.monotonic()) - said > SAY_EVERY:
            said = now
            say(f"waiting for the vLLM server for {now - begun:.0f} s now ({lines[-1] if lines else log})")
        time.sleep(0.5)


def end(server: subprocess.Popen[bytes]) -> None:
    """Let the server end, and its engine with it."""
    server.terminate()
    with suppress(subprocess.TimeoutExpired):
        server.wait(LAST_WORDS)
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
