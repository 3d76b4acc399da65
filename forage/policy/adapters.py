"""What training changes, on the disk: adapters and checkpoints.

The adapters of a policy or run folder are adapters/v000000, v000001, ..., each complete or absent.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from forage.errors import UserError
from forage.files import GONE, remove_folder, replacing, replacing_folder
from forage.manifest import file_digest, read_manifest, write_manifest

DIGITS = 8  # of a digest in a served name
LEAST_B = 1e-3
CONTENTS = "contents.json"  # in an adapter's folder: its files and their sizes, and the digest of its weights
CONFIG = "adapter_config.json"
NAME = re.compile(r"v(\d{6})")
SERVED = re.compile(r".*-v(\d+)(?:-([0-9a-f]+))?")


def adapter_path(folder: Path, version: int) -> Path:
    return folder / "adapters" / version_name(version)


def version_name(version: int) -> str:
    """Example: version_name(7) is "v000007"."""
    return f"v{version:06d}"


def served_name(run: str, version: int, digest: str = "") -> str:
    """An adapter's name on the servers and in its episodes, with a digest of its weights.

    Example: served_name("gout", 7, "1a2b3c4d") is "gout-v000007-1a2b3c4d".
    """
    return f"{run}-{version_name(version)}-{digest[:DIGITS]}".removesuffix("-")


def sampled_by(name: str) -> tuple[int, str]:
    """(version, digest) of a served name. Example: (7, "1a2b3c4d") for gout-v000007-1a2b3c4d."""
    found = SERVED.fullmatch(name)
    if not found:
        raise UserError(f"{name!r} is not the name of a run's adapter; are these episodes of grpo_rollout.py?")
    return int(found[1]), found[2] or ""


def versions(folder: Path) -> list[int]:
    """The versions in a folder, oldest first."""
    found = (NAME.fullmatch(path.name) for path in (folder / "adapters").glob("v*"))
    return sorted(int(match[1]) for match in found if match)


def newest_adapter(folder: Path) -> Path:
    """The newest adapter of a policy or run folder; refuses a folder without any, and a damaged one."""
    there = versions(folder)
    if not there:
        raise UserError(f"{folder} holds no adapters/v000000; make one with create_lora_model.py")
    return undamaged(adapter_path(folder, there[-1]))


def undamaged(adapter: Path) -> Path:
    """The adapter's folder; refused if it lists its contents, and they are others by now."""
    if (adapter / CONTENTS).exists() and whole_digest(adapter) is None:
        raise UserError(
            f"{adapter} is not what its {CONTENTS} says; put it back, or delete that list if you changed it"
        )
    return adapter


def weights_digest(folder: Path) -> str:
    """Digest of all weights in a folder, to notice new weights under an old name; empty if it has none."""
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while part := file.read(1 << 24):
                digest.update(part)
    return digest.hexdigest()[:16] if files else ""


def list_contents(folder: Path) -> None:
    """Write down what an adapter consists of, so that another machine can tell whether it sees all of it."""
    files = {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.name != CONTENTS}
    with replacing(folder / CONTENTS) as file:
        json.dump({"files": files, "config": file_digest(folder / CONFIG), "weights": weights_digest(folder)}, file)


def whole_digest(folder: Path) -> str | None:
    """The digest of a published adapter's weights if all of it can be read here, else None.

    On a shared file system an adapter that another machine published may appear file by file, and each bit by bit.
    """
    try:
        contents = json.loads((folder / CONTENTS).read_text())
        if any((folder / name).stat().st_size != size for name, size in contents["files"].items()):
            return None
        digest = weights_digest(folder)
        same = contents["weights"] == digest and contents.get("config") in (None, file_digest(folder / CONFIG))
    except OSError as error:
        if error.errno not in GONE:
            raise
        return None
    except (ValueError, KeyError, TypeError, AttributeError):  # of these, all but the first are damage
        return None
    return digest if same else None


def changes_tokens(folder: Path) -> bool:
    """Whether a LoRA adapter is so far from zero that its log-probabilities can't be its base's, even in bf16.

    A fresh one has B = 0. With B of .001, the product with A changes a layer's output by about half a percent.
    """
    path = folder / "adapter_model.safetensors"
    if not path.is_file():
        return False
    from safetensors.torch import load_file

    parts = [tensor.float() for name, tensor in load_file(path).items() if "lora_B" in name]
    size = sum(part.numel() for part in parts)
    return bool(size) and sum(float(part.square().sum()) for part in parts) / size >= LEAST_B**2


def restore_adapter(policy: Any, folder: Path) -> None:
    """Give a PEFT model's adapter the weights of a published one. Nothing else is loaded: no second base."""
    from peft import load_peft_weights, set_peft_model_state_dict

    device = next(policy.parameters()).device
    set_peft_model_state_dict(policy, load_peft_weights(str(folder), device=str(device)))


def publish_adapter(policy: Any, folder: Path, version: int, *, overwrite: bool = False) -> Path:
    """Save a PEFT model's adapter as the given version. It appears complete: no reader sees half of it."""
    target = adapter_path(folder, version)
    with replacing_folder(target, overwrite=overwrite) as partial:
        # Left to choose, PEFT asks the hub at each publish whether the base has another vocabulary there.
        policy.save_pretrained(partial, selected_adapters=["default"], save_embedding_layers=False)
        (partial / "README.md").unlink(missing_ok=True)  # PEFT's template of a model card, not filled in
        list_contents(partial)
    return target


# What a LoRA adapter of create_lora_model.py does to the layers of its base, for the engine in this process.

Shapes = Mapping[str, tuple[int, ...]]  # a model's weights by name
PART = re.compile(r"base_model\.model\.(.+)\.(lora_A|lora_B|lora_magnitude_vector)(?:\.weight)?")


@dataclass(frozen=True)
class Change:
    """What an adapter does to one weight: lora_A, lora_B and maybe lora_magnitude_vector."""

    parts: dict[str, Tensor]
    scale: float
    transposed: bool
    """The weight is (in, out), as in gpt2's Conv1D."""


def find_changes(folder: Path, base: str, shapes: Shapes, tied_vocabulary: int | None) -> dict[str, Change]:
    """The change to each weight, by its name; an adapter that does more than that is refused.

    `base` names the model in errors; `tied_vocabulary`: its size where input and output share one weight.
    """
    config = json.loads((folder / "adapter_config.json").read_text())
    parts: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for name, tensor in load_file(folder / "adapter_model.safetensors").items():
        match = PART.fullmatch(name)
        if not match or config["rank_pattern"] or config["alpha_pattern"]:
            raise UserError(f"{folder} is no adapter of create_lora_model.py ({name}); start a vLLM server for it")
        parts[f"{match[1]}.weight"][match[2]] = tensor
    if missing := parts.keys() - shapes.keys():
        raise UserError(f"{folder}: {min(missing)} is no weight of {base}; is that its base?")
    if twice := [key for key in parts if shapes[key][0] == tied_vocabulary]:
        raise UserError(f"{folder} changes {twice[0]}, which {base} uses as both input and output")
    # rsLoRA's scale: https://arxiv.org/abs/2312.03732
    scale = config["lora_alpha"] / (math.sqrt(config["r"]) if config["use_rslora"] else config["r"])
    return {key: Change(each, scale, config["fan_in_fan_out"]) for key, each in parts.items()}


def adding(layer: Any, change: Change) -> Callable[[Any, tuple[Tensor], Tensor], Tensor]:
    """A forward hook that makes the output of a linear layer with weights W that of one with W + sBA.

    The weights stay as they are: rounded to bf16, W + sBA would be W again where an adapter is young. What is added is
    computed in fp32. DoRA rescales the rows of W + sBA to learned magnitudes, https://arxiv.org/abs/2402.09353.
    """
    parts = {name: part.to(layer.weight.device, torch.float32) for name, part in change.parts.items()}
    first_DR, last_RO = parts["lora_A"].T.contiguous(), (change.scale * parts["lora_B"]).T.contiguous()
    factor_O = None
    if "lora_magnitude_vector" in parts:
        factor_O = parts["lora_magnitude_vector"] / row_norms(layer, first_DR @ last_RO, change.transposed)
        last_RO *= factor_O

    def add(_: Any, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        low_NR = inputs[0].flatten(0, -2).float() @ first_DR
        if output.dtype == torch.float32 and factor_O is None:
            output.flatten(0, -2).addmm_(low_NR, last_RO)  # in place, which is faster; in bf16 it would round more
            return output
        added = (low_NR @ last_RO).view(output.shape)
        if factor_O is not None:
            added += (factor_O - 1) * (output if layer.bias is None else output - layer.bias)
        return output.add_(added)

    return add


def row_norms(layer: Any, change_DO: Tensor, transposed: bool) -> Tensor:
    """(O,) lengths of the rows of a linear layer's changed weights, 4-bit ones unpacked."""
    from peft.utils.integrations import dequantize_module_weight

    weight: Tensor = dequantize_module_weight(layer).float()
    lengths_O: Tensor = torch.linalg.norm((weight if transposed else weight.T) + change_DO, dim=0)
    return lengths_O


# Checkpoints: everything a training run needs to resume exactly, in safetensors and JSON, nothing pickled.
#
# state/000040/ holds the trained weights, the optimiser's state, torch's random states (of the CPU and of every GPU),
# what else the script keeps, and a digest of each of these files. A checkpoint is written under a temporary name and
# renamed; once it is on the disk, the previous one is removed.

DIGESTS = "digests.json"  # of a checkpoint's other files


def trained_tensors(model: Any) -> dict[str, Tensor]:
    return {name: weight.detach() for name, weight in model.named_parameters() if weight.requires_grad}


def save_checkpoint(folder: Path, step: int, model: Any, optimizer: torch.optim.Optimizer, kept: Any) -> None:
    older, target = checkpoints(folder), folder / f"{step:06d}"
    with replacing_folder(target, overwrite=True) as partial:
        # Written by Python, because safetensors' own writer reports a full disk only in a message.
        trained = {name: weight.contiguous() for name, weight in trained_tensors(model).items()}
        (partial / "model.safetensors").write_bytes(save(trained))
        (partial / "optimizer.safetensors").write_bytes(save(_flat(optimizer.state_dict()["state"])))
        (partial / "random.safetensors").write_bytes(save(random_states()))
        (partial / "kept.json").write_text(json.dumps(kept))
        digests = {path.name: file_digest(path) for path in partial.iterdir()}
        write_manifest(partial / DIGESTS, digests)
    for path in older:
        if path != target:
            remove_folder(path)


def random_states() -> dict[str, Tensor]:
    """Torch's random states. Python's and numpy's are not drawn from, or seeded anew at each step."""
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"torch": torch.get_rng_state()} | {f"cuda.{number}": state for number, state in enumerate(gpus)}


def set_random_states(states: dict[str, Tensor]) -> None:
    """Restore what was saved; GPUs that were not there then keep their state."""
    torch.set_rng_state(states["torch"])
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        if f"cuda.{number}" in states:
            torch.cuda.set_rng_state(states[f"cuda.{number}"], number)


def checkpoints(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    return sorted(path for path in folder.glob("[0-9]*") if path.is_dir())


def load_checkpoint(folder: Path, model: Any, optimizer: torch.optim.Optimizer) -> tuple[int, Any] | None:
    """Restore model and optimiser from the newest checkpoint, if any; return its step and what the script kept."""
    there = checkpoints(folder)
    if not there:
        return None
    newest, way_out = there[-1], "put it back, or start over in another output folder"
    saved = read_manifest(newest / DIGESTS, way_out) if (newest / DIGESTS).exists() else {}
    if changed := [name for name, digest in saved.items() if file_digest(newest / name) != digest]:
        raise UserError(f"{newest / changed[0]} is not what was saved; {way_out}")
    weights = load_file(newest / "model.safetensors")
    trained = trained_tensors(model)
    if {name: w.shape for name, w in weights.items()} != {name: w.shape for name, w in trained.items()}:
        raise UserError(
            f"{newest} is of another model or adapter; choose another output folder, or start over by removing all of "
            f"{folder.parent} (not {folder.name}/ alone: the rest would be taken for the new run's)"
        )
    for name, weight in trained.items():
        weight.copy_(weights[name])
    state = optimizer.state_dict()
    # Copied, as load_file maps the file into memory: on NFS, a mapped file can't be removed once it is outdated.
    moments = {name: value.clone() for name, value in load_file(newest / "optimizer.safetensors").items()}
    state["state"] = _nested(moments)
    optimizer.load_state_dict(state)
    set_random_states(load_file(newest / "random.safetensors"))
    return int(newest.name), json.loads((newest / "kept.json").read_text())


def _flat(state: dict[int, dict[str, Tensor]]) -> dict[str, Tensor]:
    """Example: {0: {"step": s, "exp_avg": m}} gives {"0.step": s, "0.exp_avg": m}."""
    return {f"{number}.{name}": value.contiguous() for number, parts in state.items() for name, value in parts.items()}


def _nested(flat: dict[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in flat.items():
        number, name = key.split(".", 1)
        state.setdefault(int(number), {})[name] = value
    return state
