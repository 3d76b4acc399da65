"""Links to the exact base that a policy is trained on, for a vLLM server to serve.

    python -m forage.policy.served_base models/policy models/served

A 4-bit base is served in 4 bits: in another precision it would be another policy, and every token's log-probability
would be a little wrong.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import tyro

from forage.cli import run_script
from forage.disk import make_folder, sync
from forage.errors import UserError
from forage.policy.card import read_policy_card


def link_base(policy: Path, link: Path) -> Path:
    """Create or replace the link; return its target. A hub model is downloaded into the hub's cache."""
    if link.exists() and not link.is_symlink():
        raise UserError(f"{link} is there already and no link; choose another path for the link")
    base = Path(read_policy_card(policy).base)
    if not base.is_dir():
        from huggingface_hub import snapshot_download

        base = Path(snapshot_download(str(base)))
    make_folder(link.parent)
    # Relative, so that the folder with both can be mounted elsewhere; renamed into place, so that it is never missing.
    partial = link.with_name(f".{link.name}.partial")
    partial.unlink(missing_ok=True)
    partial.symlink_to(os.path.relpath(base.resolve(), link.parent.resolve()))
    partial.replace(link)
    sync(link.parent)
    return base


@dataclass(frozen=True)
class Options:
    """The policy and the link."""

    policy: tyro.conf.Positional[Path]
    """Policy folder."""
    link: tyro.conf.Positional[Path]
    """Link to create."""


def main(options: Options) -> None:
    print(f"{options.link} points to {link_base(options.policy, options.link)}")


if __name__ == "__main__":
    run_script(main, description=__doc__)
