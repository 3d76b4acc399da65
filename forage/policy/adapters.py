"""The adapters of a policy or run folder: adapters/v000000, v000001, ..., each complete or absent."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from forage.errors import UserError
from forage.files import GONE, replacing_folder
from forage.manifest import file_digest, write_manifest

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
    digests = {"config": file_digest(folder / CONFIG), "weights": weights_digest(folder)}
    write_manifest(folder / CONTENTS, {"files": files} | digests)


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


def publish_adapter(policy: Any, folder: Path, version: int, *, overwrite: bool = False, **more: Any) -> Path:
    """Save a PEFT model's adapter as the given version. It appears complete: no reader sees half of it.

    `more` is for PEFT, such as the `state_dict` of a policy that is shared out.
    """
    target = adapter_path(folder, version)
    with replacing_folder(target, overwrite=overwrite) as partial:
        # Left to choose, PEFT asks the hub at each publish whether the base has another vocabulary there.
        policy.save_pretrained(partial, selected_adapters=["default"], save_embedding_layers=False, **more)
        (partial / "README.md").unlink(missing_ok=True)  # PEFT's template of a model card, not filled in
        list_contents(partial)
    return target
