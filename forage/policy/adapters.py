"""Adapters of a policy or run folder: adapters/v000000, v000001, ..., each there whole or not at all."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from forage.errors import UserError
from forage.files import replacing_folder

NAME = re.compile(r"v(\d{6})")


def adapter_path(folder: Path, version: int) -> Path:
    return folder / "adapters" / f"v{version:06d}"


def versions(folder: Path) -> list[int]:
    """Versions that are there, oldest first."""
    found = (NAME.fullmatch(path.name) for path in (folder / "adapters").glob("v*"))
    return sorted(int(match[1]) for match in found if match)


def newest_adapter(folder: Path) -> Path:
    """The newest adapter of a policy or run folder."""
    there = versions(folder)
    if not there:
        raise UserError(f"{folder} holds no adapters/v000000; make one with create_lora_model.py")
    return adapter_path(folder, there[-1])


def weights_digest(folder: Path) -> str:
    """Of all weights in a folder, which may be trained or merged anew under its old name; empty where it has none."""
    files = sorted(folder.glob("*.safetensors")) if folder.is_dir() else []
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while part := file.read(1 << 24):
                digest.update(part)
    return digest.hexdigest()[:16] if files else ""


def publish_adapter(policy: Any, folder: Path, version: int) -> Path:
    """Save a PEFT model's adapter as the given version: under another name first, so that no reader sees half of it."""
    target = adapter_path(folder, version)
    with replacing_folder(target) as partial:
        try:
            policy.save_pretrained(partial, selected_adapters=["default"])
        except SafetensorError as error:  # hides in a message what the system said
            number = re.search(r"os error (\d+)", str(error))
            raise OSError(int(number[1]) if number else 0, str(error), str(folder)) from error
        (partial / "README.md").unlink(missing_ok=True)  # PEFT's form, with every line left to be filled in
    return target
