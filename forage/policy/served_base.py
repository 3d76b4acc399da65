"""Served base: a link to the very base a policy is trained on, for a vLLM server to serve.

    python -m forage.policy.served_base models/policy models/served

4-bit weights are served as they are: the same base in another precision would be another policy, and every token's
log-probability a little wrong.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import tyro

from forage.cli import run_script
from forage.policy.card import read_policy_card


def link_base(policy: Path, link: Path) -> Path:
    """Make or change the link; what it leads to. A hub's model is fetched into the hub's cache."""
    base = Path(read_policy_card(policy).base)
    if not base.is_dir():
        from huggingface_hub import snapshot_download

        base = Path(snapshot_download(str(base)))
    link.parent.mkdir(parents=True, exist_ok=True)
    # Relative, so that the folder that holds both can be mounted elsewhere; swapped in whole, for who reads meanwhile.
    partial = link.with_name(f".{link.name}.partial")
    partial.unlink(missing_ok=True)
    partial.symlink_to(os.path.relpath(base.resolve(), link.parent.resolve()))
    partial.replace(link)
    return base


@dataclass(frozen=True)
class Options:
    """Whose base is linked, and where."""

    policy: tyro.conf.Positional[Path]
    """Policy folder."""
    link: tyro.conf.Positional[Path]
    """The link to make."""


def main(options: Options) -> None:
    print(f"{options.link} leads to {link_base(options.policy, options.link)}")


if __name__ == "__main__":
    run_script(main, description=__doc__)
