"""A vLLM server of a run's own: started on this machine where none answers and none is named, and ended with the run.

So one command trains on one card. The server loads the policy's base, or the copy of it that the trainer computes with,
and gets the share of the card that the memory plan leaves it; with --vllm-sleep, nearly all of it in turns.
"""

from __future__ import annotations

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
from forage.policy.card import PolicyCard
from forage.policy.footprint import GIB, Precision, shape_of
from forage.policy.memory import APART, Work, plan
from forage.policy.room import precision_of, rank_of
from forage.policy.served_base import Options as Served
from forage.policy.served_base import downloaded, serve_base
from forage.runs.run_folder import SERVER_LOG
from forage.text import say

SCRIPTS = Path(__file__).parents[2] / "scripts"
VLLM = SCRIPTS.parent / ".venv-vllm" / "bin" / "vllm"
LAST_WORDS = 60  # seconds that a server has to end


def wants_one(options: TrainOptions) -> bool:
    """Whether this process plays through vLLM, and none is named, none answers, and it is installed here."""
    engine = options.rollout.engine
    by_name = options.rollouts == "own" and engine.engine == "vllm" and engine.urls == EngineOptions().urls
    return by_name and VLLM.exists() and not answers(engine)


@contextmanager
def own_server(options: TrainOptions, card: PolicyCard, adapter: Path, tokens: int) -> Iterator[TrainOptions]:
    """The options with the address of a server that is started here, if they want one; it ends with this process.

    `tokens`: an episode's most.
    """
    if not wants_one(options):
        yield options
        return
    rollout, log, rank = options.rollout, options.run_dir / SERVER_LOG, rank_of(adapter)
    work = Work(rank, precision_of(card), tokens, rollout.concurrent_episodes)
    on_gpu = torch.cuda.is_available()
    told, serve = told_on_gpu(card, work, sleeps=options.vllm_sleep) if on_gpu else ({}, "bf16")
    link = rollout.policy.with_name(f"{rollout.policy.name}-served")
    base = serve_base(Served(rollout.policy, link, serve)) if card.quantized else downloaded(card.base)
    port = free_port()
    told |= {"MODEL": str(base.resolve()), "PORT": str(port), "LORA_RANK": str(rank)}
    told |= {"MAX_TOKENS" if on_gpu else "MAX_LEN": str(tokens)}
    told |= {} if card.dtype == "auto" else {"DTYPE": card.dtype}
    print(f"engine: no vLLM server answers at {rollout.engine.urls[0]}; this run starts its own, with its log in {log}")
    sleeping = ["--enable-sleep-mode"] if options.vllm_sleep else []
    server = start([str(SCRIPTS / f"vllm_{'gpu' if on_gpu else 'cpu'}.sh"), *sleeping], told, log)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_up(server, url, log)
        yield replace(options, rollout=replace(rollout, engine=replace(rollout.engine, urls=(url,))))
    finally:
        end(server)


def told_on_gpu(card: PolicyCard, work: Work, *, sleeps: bool) -> tuple[dict[str, str], Precision]:
    """What scripts/vllm_gpu.sh is told about this process's card, and what it should serve there."""
    gib = torch.cuda.get_device_properties(0).total_memory / GIB
    found = plan(shape_of(card.base), gib, work, shared=not sleeps)
    if found is None:
        turns = "" if sleeps else "let them take turns (--vllm-sleep), or "
        raise UserError(
            f"{card.base} does not fit into a card of {gib:.1f} GiB beside what trains it; {turns}lower --max-tokens, "
            "or take a smaller model"
        )
    server = found[1]
    told = {
        "VLLM_GPUS": os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0], "PLAN_VLLM_ARGS": server.flags,
        "VLLM_GPU_MEMORY": f"{APART if sleeps else server.share(gib):.2f}",
    }  # fmt: skip
    return told | ({"VLLM_SERVER_DEV_MODE": "1"} if sleeps else {}), server.serve


def start(command: list[str], told: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """The process. The kernel ends it with this one, however that ends; Ctrl-C reaches this one alone."""
    bound = [setpriv, "--pdeathsig", "TERM", "--"] if (setpriv := shutil.which("setpriv")) else []
    with log.open("ab") as file:
        return subprocess.Popen(  # noqa: S603
            [*bound, *command], env=os.environ | told, stdout=file, stderr=file, stdin=subprocess.DEVNULL,
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
