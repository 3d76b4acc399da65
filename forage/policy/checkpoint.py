"""Checkpoints: everything a training run needs to resume exactly, in safetensors and JSON, nothing pickled.

state/000040/ holds the trained weights, the optimiser's state, torch's random states (of the CPU and of every GPU),
what else the script keeps, and a digest of each of these files. A checkpoint is written under a temporary name and
renamed; once it is on the disk, the previous one is removed.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from forage.errors import UserError
from forage.files import remove_folder, replacing_folder
from forage.manifest import file_digest, read_manifest, write_manifest

DIGESTS = "digests.json"  # of a checkpoint's other files


def trained_tensors(model: Any) -> dict[str, Tensor]:
    return {name: weight.detach() for name, weight in model.named_parameters() if weight.requires_grad}


def save_checkpoint(folder: Path, step: int, model: Any, optimizer: torch.optim.Optimizer, kept: Any) -> None:
    older, target = checkpoints(folder), folder / f"{step:06d}"
    with replacing_folder(target, overwrite=True) as partial:
        # Written by Python, because safetensors' own writer reports a full disk only in a message.
        trained = {name: weight.contiguous() for name, weight in trained_tensors(model).items()}
        (partial / "model.safetensors").write_bytes(save(trained))
        state = optimizer.state_dict()["state"].items()  # {0: {"step": s, "exp_avg": m}} as 0.step and 0.exp_avg
        moments = {f"{number}.{name}": value.contiguous() for number, part in state for name, value in part.items()}
        (partial / "optimizer.safetensors").write_bytes(save(moments))
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
    state["state"] = defaultdict(dict)
    for key, value in load_file(newest / "optimizer.safetensors").items():
        number, name = key.split(".", 1)
        # Copied, as load_file maps the file into memory: on NFS, a mapped file can't be removed once it is outdated.
        state["state"][int(number)][name] = value.clone()
    optimizer.load_state_dict(state)
    set_random_states(load_file(newest / "random.safetensors"))
    return int(newest.name), json.loads((newest / "kept.json").read_text())
