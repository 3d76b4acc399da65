"""Publishes a merged model: its model card, and the upload to the hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from forage.errors import UserError, first_line
from forage.machine import hub_reachable
from forage.policy.full_base import FullBase
from forage.policy.merge_proof import Proof
from forage.policy.merging import CARD_MARK
from forage.policy.peft_adapter import Adapter


def model_card(title: str, adapter: Adapter, base: FullBase, dtype: str, proof: Proof | None) -> str:
    """README.md. It will be published, so it shows only the last parts of this machine's paths."""
    config, name = adapter.config, base.name if base.folder != Path(base.name) else base.folder.resolve().name
    kind = ("rsLoRA" if config.get("use_rslora") else "LoRA") + (" with DoRA" if config.get("use_dora") else "")
    modules = config.get("target_modules")
    rows = {
        "base": name,
        "adapter": "/".join(adapter.folder.resolve().parts[-3:]),
        "kind": kind,
        "r, alpha": f"{config['r']}, {config['lora_alpha']}",
        "modules": modules if isinstance(modules, str) else " ".join(sorted({m.split(".")[-1] for m in modules or ()})),
        "weights": dtype,
        "proof": str(proof or "not made (--no-prove)"),
    }
    head = f"---\nbase_model: {name}\nlibrary_name: transformers\npipeline_tag: text-generation\n---\n\n"
    head += f"# {title}\n\nA LoRA adapter {CARD_MARK}.\n\n"
    return head + table(rows) + run_figures(adapter.folder.resolve())


def run_figures(adapter: Path) -> str:
    """Tables of the last statistics and the settings of the adapter's training run, if it lies in a run folder."""
    if adapter.parent.name != "adapters":
        return ""
    run = adapter.parent.parent
    stats = sorted(run.glob("training_stats_*.json"), key=lambda path: (len(path.name), path.name))
    return "".join(
        f"\n`{path.name}` of its run:\n\n" + table(numbers(json.loads(path.read_text())))
        for path in [*stats[-1:], *run.glob("config.json")]
    )


def table(rows: dict[str, Any]) -> str:
    return "| | |\n|---|---|\n" + "".join(f"| {name} | {value} |\n" for name, value in rows.items())


def numbers(record: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The numbers in a JSON record, nested ones as outer.inner. Texts are left out: they may be paths."""
    found: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, dict):
            found |= numbers(value, f"{prefix}{name}.")
        elif isinstance(value, int | float):
            found[prefix + name] = f"{value:.4g}" if isinstance(value, float) else value
    return found


def push_to_hub(repository: str, folder: Path) -> None:
    """Upload the folder. If that fails, say that the folder is kept."""
    import httpx
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    kept = f"the merged folder is kept at {folder}; upload it later with `hf upload {repository} {folder}`"
    if not hub_reachable():
        raise UserError(f"the hub can't be reached; {kept}")
    try:
        HfApi().create_repo(repository, exist_ok=True)
        HfApi().upload_folder(repo_id=repository, folder_path=folder, commit_message="merge_lora.py")
    except (HfHubHTTPError, httpx.HTTPError, OSError, ValueError) as error:  # ValueError: not a valid name
        raise UserError(f"the upload to {repository} failed ({first_line(error)}); {kept}") from error
