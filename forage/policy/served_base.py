"""Makes a policy's base ready for a vLLM server: a link to the base itself, or to a copy beside the link.

    python -m forage.policy.served_base models/policy models/served
    python -m forage.policy.served_base models/policy models/served --serve bf16

A base that is not in 4 bits is served as it is. A 4-bit base can be served in two ways, both with the weights that the
trainer computes with; the full base that it was made from would be another policy, every token's log-probability a
little wrong.

    nf4    in 4 bits, by vLLM's plugin for bitsandbytes: the least memory
    bf16   as a copy, unpacked to bf16 (models/served-bf16): faster, but four times the memory, and as much of the disk.
           For a policy that is computed in fp32 the copy is in fp32, as rounded weights would be others
    auto   bf16 if the card has room for it (python -m forage.policy.memory), else nf4; without a card bf16, as 4 bits
           make a processor only slower, and the plugin wants a server in bf16, which not every processor computes in

A second call keeps a copy that is there. A copy of another base is replaced.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from forage.arguments import POSITIONAL
from forage.cli import run_script
from forage.disk import make_folder, sync
from forage.errors import UserError, check_at_least_one
from forage.machine import compute_dtype
from forage.policy.adapters import newest_adapter
from forage.policy.card import PolicyCard, read_policy_card
from forage.policy.footprint import GIB, Precision
from forage.policy.memory import Serve, Work, plan
from forage.policy.shapes import shape_of


@dataclass(frozen=True)
class Options:
    """The policy, the link, and what to serve."""

    policy: Annotated[Path, POSITIONAL]
    """Policy folder."""
    link: Annotated[Path, POSITIONAL]
    """Link to create."""
    serve: Serve = "auto"
    """A 4-bit base in 4 bits, or its copy in bf16; auto: by the card's memory."""
    gpu_gib: float | None = None
    """Memory of the server's card, for auto; left out: that of this machine's first GPU."""
    max_tokens: int = 2048
    """Most tokens of an episode, for auto."""
    apart: bool = False
    """The server has a card of its own, for auto."""

    def check(self) -> None:
        check_at_least_one(self, "max_tokens")
        if self.gpu_gib is not None and self.gpu_gib <= 0:
            raise UserError(f"--gpu-gib {self.gpu_gib:g} must be over 0")


def main(options: Options) -> None:
    options.check()
    base = serve_base(options)
    print(f"{options.link} points to {base}")


def serve_base(options: Options) -> Path:
    """Create or replace the link; return its target. A hub model is downloaded into the hub's cache."""
    link = options.link
    if link.exists() and not link.is_symlink():
        raise UserError(f"{link} is there already and no link; choose another path for the link")
    card = read_policy_card(options.policy)
    if card.quantized:
        base = servable(card, link, chosen(options, card))
    elif options.serve == "nf4":
        raise UserError(
            f"--serve nf4: {options.policy} has no 4-bit base; give --serve auto, or make the policy with --quantize"
        )
    else:
        base = folder_of(card.base)
    point(link, base)
    return base


def folder_of(base: str) -> Path:
    if Path(base).is_dir():
        return Path(base)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(base))


def chosen(options: Options, card: PolicyCard) -> Precision:
    """The form in which a 4-bit base is served."""
    if options.serve != "auto":
        return options.serve
    gib = options.gpu_gib or card_gib()
    if gib is None:
        return "bf16"
    from forage.policy.room import lora_of

    work = Work(lora_of(newest_adapter(options.policy)), "nf4", options.max_tokens)
    try:
        return plan(shape_of(card.base), gib, work, "auto", apart=options.apart).server.serve
    except UserError as error:
        print(f"--serve nf4, the smaller: {error}")
        return "nf4"


def card_gib() -> float | None:
    """Memory of this machine's first GPU; None without one."""
    import torch

    return torch.cuda.get_device_properties(0).total_memory / GIB if torch.cuda.is_available() else None


def servable(card: PolicyCard, link: Path, serve: Precision) -> Path:
    """A 4-bit base in a form that vLLM reads: itself if it is one, else a copy beside the link."""
    import torch

    from forage.policy.serving_copy import NAMES, keep_copy, stored_as

    base = Path(card.base)
    if serve == "nf4" and stored_as(base) == "uint8":
        return base
    dtype = torch.uint8 if serve == "nf4" else compute_dtype(card.dtype)
    copy = link.with_name(f"{link.name}-{NAMES[dtype]}")
    keep_copy(base, copy, dtype)
    return copy


def point(link: Path, base: Path) -> None:
    """Lead the link to the base."""
    make_folder(link.parent)
    # Relative, so that the folder with both can be mounted elsewhere; renamed into place, so that it is never missing.
    partial = link.with_name(f".{link.name}.partial")
    partial.unlink(missing_ok=True)
    partial.symlink_to(os.path.relpath(base.resolve(), link.parent.resolve()))
    partial.replace(link)
    sync(link.parent)


if __name__ == "__main__":
    run_script(main, description=__doc__)
