"""Peak memory of an update, predicted by forage/policy/footprint.py and measured.

    python -m bench.memory

Shapes with random weights: SmolLM2-135M and two of its layers, two layers of Qwen2.5-7B, a Qwen2 of 1.3B; in bf16 and
NF4, with and without checkpointed activations. With few layers and a small vocabulary the peak lies in a layer, with a
large one in the output layer. Each case is one update (Learner: forward, backward, AdamW) in a process of its own, on a
GPU if there is one, else on one thread of the CPU, where it takes at most 6 GB.

Compared are bytes of tensors: what the policy, its gradients and AdamW hold, plus the peak of torch's allocator during
the update (on a GPU, `torch.cuda.max_memory_allocated`). Once for the whole, and once for the update
alone, over what was held before. The process's resident memory is shown beside it: it has the matrix library's buffers
too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast, get_args

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from bench.report import Bar, finish
from forage.cli import run_script
from forage.errors import UserError
from forage.grpo.learner import Learner
from forage.policy.card import read_policy_card
from forage.policy.creation import create_policy
from forage.policy.footprint import Batch, Device, Footprint, Lora, Precision, training
from forage.policy.options import AdapterOptions
from forage.policy.packing import TokenBatch, pack, pack_trees
from forage.policy.policy import load_policy
from forage.policy.shapes import KNOWN, ModelShape

MIB = 2**20
SHAPES = {
    "10M": ModelShape(2, 576, 1536, 9, 3, 64, 2048, True),
    "135M": KNOWN["SmolLM2-135M"],
    "7B/14": ModelShape(2, 3584, 18944, 28, 4, 128, 2048, True, True),
    "1.3B": ModelShape(16, 2048, 8192, 16, 4, 128, 151936, True, True),
}
TOLERANCE = 0.15
# glibc gives large blocks back as soon as they are freed, so that resident memory follows what is in use.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One update: what is trained, and on which micro-batch."""

    model: str
    precision: Precision
    checkpointing: bool
    batch: Batch

    @property
    def name(self) -> str:
        rows = f"{self.batch.rows} x {self.batch.tokens}"
        kind = ", ragged" if self.batch.padded else ", a tree" if self.batch.tree else ""
        again = ", checkpointed" if self.checkpointing else ""
        return f"{self.model} {self.precision}{again}, {rows}{kind}"


BATCHES = {
    "10M": (Batch(1, 512),),
    "135M": (Batch(1, 512), Batch(2, 512)),
    "7B/14": (Batch(1, 512),),
    "1.3B": (Batch(1, 128), Batch(2, 192)),
}
CASES = [
    *(
        Case(model, precision, checkpointing, batch)
        for model, batches in BATCHES.items()
        for precision in get_args(Precision)
        for checkpointing in (False, True)
        for batch in batches
    ),
    Case("7B/14", "nf4", True, Batch(1, 1536)),
    Case("135M", "bf16", False, Batch(2, 512, padded=True)),
    Case("135M", "bf16", False, Batch(1, 1024, tree=True)),
]


@dataclass(frozen=True)
class BenchOptions:
    """What to measure."""

    only: str = ""
    """Measure only cases whose name contains this."""
    case: int = -1
    """Measure this case alone in this process, and print its figures as JSON."""
    policy: Path = Path()
    """With --case: its policy folder."""


@dataclass(frozen=True)
class Measured:
    """Bytes of one update."""

    held: int
    """Tensors before it: policy, gradients, optimizer."""
    peak: int
    """Tensors more than that, at its peak."""
    resident: int
    """The process's peak over what it had before the policy was loaded."""


def main(bench: BenchOptions) -> None:
    if bench.case >= 0:
        print(json.dumps(asdict(measure(CASES[bench.case], bench.policy))))
        return
    chosen = [number for number, case in enumerate(CASES) if bench.only in case.name]
    if not chosen:
        raise UserError(f"--only {bench.only} is part of no case's name, such as {CASES[0].name}")
    with tempfile.TemporaryDirectory() as folder:
        figures = {number: run_alone(number, Path(folder)) for number in chosen}
    rows = [compare(CASES[number], found) for number, found in figures.items()]
    Console(width=120).print(table(rows))
    apart = max(abs(ratio - 1) for row in rows for ratio in (row.whole, row.update))
    finish([Bar(f"largest deviation {apart:.3f}, within {TOLERANCE}", float(apart <= TOLERANCE), 1)])


# Comparing


@dataclass(frozen=True)
class Row:
    """A case, predicted and measured."""

    case: Case
    predicted: Footprint
    measured: Measured

    @property
    def working(self) -> float:
        """Predicted bytes of the update alone."""
        return self.predicted.activations + self.predicted.dequantized + self.predicted.logits

    @property
    def whole(self) -> float:
        return (self.predicted.total - self.predicted.context) / (self.measured.held + self.measured.peak)

    @property
    def update(self) -> float:
        return self.working / self.measured.peak


def compare(case: Case, measured: Measured) -> Row:
    shape, device = SHAPES[case.model], "cuda" if torch.cuda.is_available() else "cpu"
    predicted = training(
        shape, Lora(), case.precision, case.batch, checkpointing=case.checkpointing, device=cast(Device, device)
    )
    return Row(case, predicted, measured)


def table(rows: Sequence[Row]) -> Table:
    made = Table(title="Peak of an update, MiB")
    for column in ("case", "predicted", "measured", "ratio", "update alone", "measured", "ratio", "resident"):
        made.add_column(column, justify="left" if column == "case" else "right")
    for row in rows:
        found = row.measured
        sizes = [
            row.predicted.total - row.predicted.context,
            found.held + found.peak,
            row.working,
            found.peak,
            found.resident,
        ]
        whole, both, working, peak, resident = (f"{size / MIB:,.0f}" for size in sizes)
        made.add_row(row.case.name, whole, both, f"{row.whole:.3f}", working, peak, f"{row.update:.3f}", resident)
    return made


# Measuring


def run_alone(number: int, folder: Path) -> Measured:
    """Measure a case in a process of its own; its policy is made first, in another."""
    case = CASES[number]
    policy = folder / f"{case.model}-{case.precision}"
    if not policy.exists():
        make = "import sys, bench.memory as m; m.make_policy(m.CASES[int(sys.argv[1])], m.Path(sys.argv[2]))"
        run_python("-c", make, str(number), str(folder))
    printed = run_python("-m", f"bench.{Path(__file__).stem}", "--case", str(number), "--policy", str(policy))
    found = Measured(**json.loads(printed.splitlines()[-1]))
    print(f"{case.name}: {found.held / MIB:,.0f} MiB held, {found.peak / MIB:,.0f} more at the peak", flush=True)
    return found


def run_python(*arguments: str) -> str:
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | ENVIRONMENT, check=False)
    if done.returncode:
        raise UserError(f"{' '.join(arguments[:2])} failed: {done.stderr.strip()[-400:]}")
    return done.stdout


def make_policy(case: Case, folder: Path) -> None:
    """A base with random weights, and the policy that create_lora_model.py makes of it."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    base = folder / case.model
    if not base.exists():
        torch.manual_seed(0)
        random_model(SHAPES[case.model]).save_pretrained(base)
        tokenizer: Any = PreTrainedTokenizerFast
        tokenizer(tokenizer_object=Tokenizer(models.BPE())).save_pretrained(base)
    quantize = case.precision == "nf4"
    create_policy(
        str(base), folder / f"{case.model}-{case.precision}", AdapterOptions(), quantize=quantize, dtype="bfloat16"
    )


def random_model(shape: ModelShape) -> Any:
    from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

    config = (Qwen2Config if shape.qkv_bias else LlamaConfig)(
        vocab_size=shape.vocabulary, hidden_size=shape.hidden, intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads,
        tie_word_embeddings=shape.tied, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model: Any = AutoModelForCausalLM
    return model.from_config(config, dtype=torch.bfloat16)


def measure(case: Case, folder: Path) -> Measured:
    torch.set_num_threads(1)
    learn(Learner(tiny_policy()), micro_batch(Batch(2, 16), 64))  # so that libraries have loaded what they need
    before = status("VmRSS")
    policy = load_policy(read_policy_card(folder))
    policy.train()
    if case.checkpointing:
        policy.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    learner, vocabulary = Learner(policy), SHAPES[case.model].vocabulary
    learn(learner, micro_batch(Batch(1, 16), vocabulary))
    batch = micro_batch(case.batch, vocabulary)
    for weight in learner.weights:  # as in every micro-batch but an update's first
        weight.grad = torch.zeros_like(weight)
    held = held_bytes(learner)
    Path("/proc/self/clear_refs").write_text("5")  # starts VmHWM over
    peak = gpu_peak(learner, batch) if torch.cuda.is_available() else cpu_peak(learner, batch)
    return Measured(held, peak, status("VmHWM") - before)


def gpu_peak(learner: Learner, batch: TokenBatch) -> int:
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    learn(learner, batch)
    return torch.cuda.max_memory_allocated() - before


def cpu_peak(learner: Learner, batch: TokenBatch) -> int:
    with torch.profiler.profile(profile_memory=True) as profile:
        learn(learner, batch)
    return peak_of(profile)


def learn(learner: Learner, batch: TokenBatch) -> None:
    learner.backward(learner.score(batch, 1.0).logprobs_BT.sum(), last=True)
    learner.step(1e-5, 1.0)


def tiny_policy() -> Any:
    from forage.policy.creation import add_adapter

    return add_adapter(random_model(ModelShape(1, 64, 64, 2, 1, 32, 64, True)), "tiny", AdapterOptions())


@dataclass(frozen=True)
class Tokens:
    """Made-up tokens: a prompt and as many sampled after it."""

    ids: Sequence[int]
    mask: Sequence[int]


def micro_batch(batch: Batch, vocabulary: int) -> TokenBatch:
    """Rows, or a tree of four: a prompt, and three branches of the same length."""
    torch.manual_seed(1)
    if batch.tree:
        part = batch.tokens // 4
        prompt = torch.randint(3, vocabulary, (part,)).tolist()
        branches = [[token, *torch.randint(3, vocabulary, (part - 1,)).tolist()] for token in range(3)]
        [made] = pack_trees([Tokens([*prompt, *ids], [0] * part + [1] * part) for ids in branches], batch.tokens)
    else:
        lengths = [batch.tokens - (row if batch.padded else 0) for row in range(batch.rows)]
        rows = [torch.randint(3, vocabulary, (length,)).tolist() for length in lengths]
        [made] = pack([Tokens(ids, [0] + [1] * (len(ids) - 1)) for ids in rows], batch.computed)
    assert made.tokens == batch.computed
    return made


def held_bytes(learner: Learner) -> int:
    """Bytes of all tensors that outlive an update, each storage once."""
    storages = {}
    for tensor in held_tensors(learner):
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return sum(storages.values())


def held_tensors(learner: Learner) -> Iterator[Tensor]:
    yield from learner.policy.buffers()
    for weight in learner.policy.parameters():
        yield weight
        if weight.grad is not None:
            yield weight.grad
        state = getattr(weight, "quant_state", None)
        if state is not None:
            yield from (part for part in (*vars(state).values(), *vars(state.state2).values()) if torch.is_tensor(part))
    for moments in learner.optimizer.state.values():
        yield from (part for part in moments.values() if torch.is_tensor(part))


def peak_of(profile: Any) -> int:
    """The most that the allocator held at once, over what it held when the profile began."""
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak


def status(name: str) -> int:
    """A figure of /proc/self/status, in bytes."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:")]
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    run_script(main, description=__doc__)
