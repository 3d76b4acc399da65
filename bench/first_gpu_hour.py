"""The shortest real runs that test on one NVIDIA card what this repository promises, with one report to send.

    scripts/first_gpu_hour.sh              needs .venv (make setup), a hub or its cache, and for the server .venv-vllm
    scripts/first_gpu_hour.sh --dry-run    the same steps on a CPU, with the small model

Each step is a command that users type, and what is expected of it. A step that fails stops only the steps that need it.
The report is rewritten after each step. Ends with status 1 if a step failed or didn't come out as expected.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from bench.harness import VLLM, running, wait_for
from forage.arguments import run_script
from forage.errors import UserError
from forage.machine import output
from forage.policy.adapters import versions
from forage.policy.base_models import PACKAGED_MODEL
from forage.policy.manifest import read_policy_manifest
from forage.runs.run_folder import environment
from forage.runs.stats import read_stats

STACK = "scripts/stack.sh"
MOST_KL = 0.01  # of sampler to trainer, in nats a token
LIMIT = 1800.0  # seconds of a step
SHOWN = 12  # last lines of what a step printed
PACKAGES = ("torch", "transformers", "peft", "bitsandbytes", "deepspeed")


@dataclass(frozen=True)
class Options:
    """Where, and on what."""

    dry_run: bool = False
    """Walk through the same steps on a CPU, with fewer updates."""
    base: str = ""
    """Base model; left out: what create_lora_model.py takes by itself."""
    work: Path = Path("runs/first_gpu_hour")
    """Folder for models, runs, logs and report.md."""


@dataclass(frozen=True)
class Step:
    """A command for a shell in the repository's root, and what is expected of it."""

    name: str
    command: str
    expected: str
    found: Callable[[str], str]
    """What came of it, by what it printed; raises Otherwise where that is not what was expected."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Environment variables for scripts/stack.sh."""
    before: str = ""
    """A command that comes first."""
    beside: tuple[str, ...] = ()
    """Services of the stack that run meanwhile."""
    needs: str = ""
    """A step without which this one can't be."""
    left_out: str = ""
    """Why it is not done here."""


@dataclass(frozen=True)
class Outcome:
    """What became of a step."""

    step: Step
    verdict: str
    found: str = ""
    seconds: float = 0.0
    gib: float | None = None
    tail: Sequence[str] = ()


class Otherwise(Exception):
    """It ran, and what came of it is not what was expected."""


def main(options: Options) -> None:
    work = options.work.resolve()
    for folder in ("runs", "merged"):  # models and data are kept
        shutil.rmtree(work / folder, ignore_errors=True)
    (work / "logs").mkdir(parents=True, exist_ok=True)
    if not options.dry_run and not output("nvidia-smi"):
        raise UserError("nvidia-smi finds no GPU; on a CPU take --dry-run, which walks through the same steps")
    told, outcomes = settings(options, work), list[Outcome]()
    machine = facts(options)
    for step in steps(options, work, there=(VLLM / "bin/python").exists()):
        why = step.left_out or lacking(step, outcomes)
        outcomes.append(Outcome(step, f"left out: {why}") if why else run(step, told, work / "logs"))
        print(f"{step.name}: {outcomes[-1].verdict}. {outcomes[-1].found}", flush=True)
        (work / "report.md").write_text(report(machine, outcomes))
    print(f"the report: {work / 'report.md'}")
    sys.exit(0 if all(each.verdict == "as expected" or each.verdict.startswith("left out") for each in outcomes) else 1)


def settings(options: Options, work: Path) -> dict[str, str]:
    """What all steps have in their environment. One card is for both, however many there are."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    told = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PY": sys.executable, "ENV_FILE": os.devnull,
        "SHARED": str(work), "VLLM_PORT": port, "DATASET": "sample", "QUANTIZE": "1", "EVAL_EVERY": "0",
        "MAX_STALENESS": "0",
    }  # fmt: skip
    if options.dry_run:
        return told | {
            "DEVICE": "cpu", "CUDA_VISIBLE_DEVICES": "", "BASE_MODEL": options.base or PACKAGED_MODEL,
            "DATA_ARGS": "--embedder none", "WARM_STEPS": "4", "MAX_STEPS": "1", "BATCH_SIZE": "2", "NUM_ROLLOUTS": "2",
            "WARM_ARGS": "--batch-size 2 --eval-every 4 --num-demonstrations 16 --answer-tokens 40",
        }  # fmt: skip
    return told | {
        "DEVICE": "cuda", "CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "VLLM_GPUS": "0",
        "TRAIN_GPUS": "0", "BASE_MODEL": options.base or "auto", "WARM_STEPS": "20", "MAX_STEPS": "3",
    }  # fmt: skip


def steps(options: Options, work: Path, *, there: bool) -> list[Step]:
    """`there`: there is a vLLM."""
    dry = options.dry_run
    count, lacks = (
        (1 if dry else 3),
        "" if there else ".venv-vllm is missing, which python -m forage.extras.doctor explains",
    )
    policies = f"{work}/models/policy {work}/models/warm"
    small = " --requests 4 --tokens 12 --bar 0.08" if dry else ""
    whole = {"VLLM_GPU_MEMORY": "0.85"}  # of the card, as nothing is trained meanwhile
    learnt = f"{count + 1} published adapters; mismatch_kl below {MOST_KL:g}, a gradient in some step"

    def served(way: str) -> Step:
        return Step(
            f"served, {way}", f"python -m bench.mismatch --work {work}/mismatch-{way} --policies {policies}{small}",
            f"sampler and trainer {'.08' if dry else '.04'} nats apart or less; a swapped adapter's tokens are its own",
            last_line, {"SERVE": way} | whole, f"{STACK} prepare", needs="policy", left_out=lacks,
        )  # fmt: skip

    local = {"ENGINE": "local", "TRAIN_ARGS": "--rollouts own", "VLLM_GPU_MEMORY": "0.5"}
    in_turns = {
        "RUN": "asleep", "VLLM_GPU_MEMORY": "0.52", "VLLM_SERVER_DEV_MODE": "1", "VLLM_ARGS": "--enable-sleep-mode",
        "TRAIN_ARGS": "--rollouts own --vllm-sleep",
    }  # fmt: skip
    return [
        Step("doctor", "python -m forage.extras.doctor",
             f"nothing that is needed is missing{'; a GPU is seen' * (not dry)}",
             lambda said: line_of(said, "Nothing that is needed" if dry else "GPU")),
        Step("figures", f"python -m bench.gpu --json {work}/gpu.json{' --tiny' * dry}", "each row has figures",
             lambda _: rows_of(work / "gpu.json")),
        Step("policy", f"{STACK} prepare", "a base in 4 bits; the warm start's held-out loss fell",
             lambda _: warm_start_of(work / "models"), whole),
        served("nf4"),
        served("bf16"),
        Step("lock-step", f"{STACK} train", learnt, lambda _: learnt_by(work / "runs/lockstep", count),
             {"RUN": "lockstep"} | ({} if there else local), f"{STACK} prepare",
             ("vllm", "rollout") if there else (), "policy"),
        Step("server asleep during updates", f"{STACK} train", learnt, lambda _: learnt_by(work / "runs/asleep", count),
             in_turns, f"{STACK} prepare", ("vllm",), "policy",
             "vLLM has no sleep mode on CPUs" if dry else lacks),
        Step("merge", f"python merge_lora.py --lora-model {work}/models/warm --output-path {work}/merged",
             "proved: log-probabilities are those of base and adapter", lambda said: line_of(said, "proof:"),
             needs="policy"),
        Step("chat", f'python chat.py --policy {work}/merged --data {work}/data --engine local --question "What is '
             'gout?"', "a search and an answer", answered, needs="merge"),
    ]  # fmt: skip


def lacking(step: Step, outcomes: Sequence[Outcome]) -> str:
    """A step that ended otherwise than expected has still left what others need."""
    gone = [each for each in outcomes if each.step.name == step.needs and each.verdict.startswith(("failed", "left"))]
    return f"it needs {step.needs}" if gone else ""


# Running a step


def run(step: Step, told: Mapping[str, str], logs: Path) -> Outcome:
    log, started = logs / f"{step.name.replace(' ', '_')}.log", time.monotonic()
    own = dict(told) | dict(step.settings)
    log.unlink(missing_ok=True)
    with Peak() as peak:
        try:
            if step.before:
                finished(step.before, log, own)
            with ExitStack() as stack:
                for verb in step.beside:
                    of_verb = log.with_suffix(f".{verb}.log")
                    process = stack.enter_context(running([STACK, verb], of_verb, **own))
                    if verb == "vllm":
                        wait_for(f"http://127.0.0.1:{own['VLLM_PORT']}", process, of_verb)
                said = finished(step.command, log, own)
            verdict, found = "as expected", step.found(said)
        except Otherwise as why:
            verdict, found = "not as expected", str(why)
        except UserError as why:
            verdict, found = "failed", str(why)
    tail = log.read_text(errors="replace").splitlines()[-SHOWN:] if log.exists() else []
    return Outcome(step, verdict, found, time.monotonic() - started, peak.gib, tail)


def finished(command: str, log: Path, settings: Mapping[str, str]) -> str:
    """What a command printed. A benchmark whose bars fall short ends with status 1 too."""
    before = log.stat().st_size if log.exists() else 0
    with running(["bash", "-c", command], log, **settings) as process:
        try:
            status = process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            raise UserError(f"it had no end after {LIMIT:g} s") from None
    said = log.read_bytes()[before:].decode(errors="replace")
    last = (said.strip().splitlines() or ["it printed nothing"])[-1]
    if status and "SHORT" in last:
        raise Otherwise(last)
    if status:
        raise UserError(last)
    return said


class Peak:
    """The most of the card's memory that was taken meanwhile, by all processes, looked at each second."""

    def __init__(self) -> None:
        self.gib: float | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        query = ("nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits")
        while mib := output(*query):
            self.gib = max(self.gib or 0.0, float(mib) / 1024)
            if self._over.wait(1):
                break


# What came of it


def last_line(said: str) -> str:
    return said.strip().splitlines()[-1]


def line_of(said: str, part: str) -> str:
    lines = [" ".join(line.split()) for line in said.splitlines() if part in line]
    if not lines or lines[0].startswith(("--", "no ")):
        raise Otherwise(lines[0] if lines else f"it says nothing of {part}")
    return lines[0]


def rows_of(path: Path) -> str:
    """Example: the update in 4 bits failed, and two rows have figures: "1 of 3 rows failed: update NF4 (...)"."""
    rows = json.loads(path.read_text())["rows"]
    failed = [f"{name} ({row['failed']})" for name, row in rows.items() if "failed" in row]
    if failed:
        raise Otherwise(f"{len(failed)} of {len(rows)} rows failed: {', '.join(failed)}")
    return ", ".join(
        f"{name} {row['tokens_per_second']:,.0f} tokens/s" for name, row in rows.items() if "tokens_per_second" in row
    )


def warm_start_of(models: Path) -> str:
    rows = [json.loads(line) for line in (models / "warm/stats.jsonl").read_text().splitlines()]
    first, last, bits = rows[0], rows[-1], 4 if read_policy_manifest(models / "policy").quantized else 16
    found = (
        f"{bits} bits; held-out loss {first['held_out_loss']:.3f}, after {last['step']} updates "
        f"{last['held_out_loss']:.3f}"
    )
    if bits != 4 or last["held_out_loss"] >= first["held_out_loss"]:
        raise Otherwise(found)
    return found


def learnt_by(run_dir: Path, count: int) -> str:
    steps, adapters = [stats.training for stats in read_stats(run_dir)], versions(run_dir)
    found, norms = f"{len(adapters)} adapters", [step["grad_norm"] for step in steps]
    if not any(norms):
        raise Otherwise(f"{found}, and no step had a gradient: all episodes of a question earned the same")
    kl = max(step["mismatch_kl"] for step in steps if "mismatch_kl" in step)
    found += f", mismatch_kl {kl:.2g} at most, norm of the gradient {', '.join(f'{norm:.2g}' for norm in norms)}"
    if adapters != list(range(count + 1)) or kl >= MOST_KL:
        raise Otherwise(found)
    return found


def answered(said: str) -> str:
    lines = said.splitlines()
    if "answer" not in lines or not any(line.startswith("search ") for line in lines):
        raise Otherwise(next((line for line in lines if line.startswith("no answer")), "an answer without a search"))
    return lines[lines.index("answer") + 1].strip()


# The report


def facts(options: Options) -> dict[str, str]:
    """The machine and what is installed."""
    known = environment()
    says = "from importlib.metadata import version as v; print(v('vllm'))"
    gpu = (
        ""
        if options.dry_run
        else output("nvidia-smi", "--query-gpu=name,memory.total,driver_version,compute_cap", "--format=csv,noheader")
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "date": f"{datetime.now():%Y-%m-%d %H:%M}", "dry run": "yes, on a CPU" if options.dry_run else "no",
        "commit": output("git", "describe", "--always", "--dirty"), "GPU (name, memory, driver, capability)": gpu,
        "host": f"{known['processor']}, {os.cpu_count()} cores, {memory:.0f} GiB", "Python": known["python"],
        **{name: known.get(name, "") for name in PACKAGES}, "vLLM": output(str(VLLM / "bin/python"), "-c", says),
    }  # fmt: skip


def report(machine: Mapping[str, str], outcomes: Sequence[Outcome]) -> str:
    lines = ["# First hour on a GPU", "", *(f"- {name}: {value or 'none'}" for name, value in machine.items()), ""]
    lines += ["| step | verdict | expected | found | seconds | peak GiB |", "|---|---|---|---|---|---|"]
    for each in outcomes:
        gib = "" if each.gib is None else f"{each.gib:.1f}"
        cells = (each.step.name, each.verdict, each.step.expected, each.found, f"{each.seconds:.0f}", gib)
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    for each in (each for each in outcomes if each.tail):
        step = each.step
        said = " ".join(f"{name}='{value}'" for name, value in step.settings.items())
        services = [f"{STACK} {verb} &" for verb in step.beside]
        lines += ["", f"## {step.name}", "", "```"]
        lines += [f"{said} {line}".strip() for line in (step.before, *services, step.command) if line]
        lines += ["", *each.tail, "```"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    run_script(main, __doc__)
