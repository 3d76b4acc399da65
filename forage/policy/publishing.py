"""Publishes a merged model on the hub."""

from __future__ import annotations

from pathlib import Path

from forage.errors import UserError, first_line
from forage.machine import hub_reachable


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
