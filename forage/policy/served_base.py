"""Makes a policy's base ready for a vLLM server: a link to the base itself, or to an unpacked copy beside the link.

    python -m forage.policy.served_base models/policy models/served
    python -m forage.policy.served_base models/policy models/served --serve nf4

A base that is not in 4 bits is served as it is. A 4-bit base can be served in two ways, both with the weights that the
trainer computes with. (The full base it was made from would be another policy: every log-probability a little off.)

    bf16   as a copy, unpacked to bf16 (models/served-bf16): faster, but takes four times the memory, and as much disk.
           For a policy that is computed in fp32 the copy is in fp32, as rounding would change its weights
    nf4    in 4 bits, by vLLM's plugin for bitsandbytes: the least memory. On a CPU it is only slower

scripts/cards.txt says which of the two a GPU's size is for. An existing copy is kept, or replaced if it is of another
base.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from forage.arguments import POSITIONAL, run_script
from forage.errors import UserError
from forage.files import check_replaceable, make_folder, making_folder, sync, takes_files
from forage.machine import compute_dtype
from forage.manifest import write_manifest
from forage.policy.manifest import PolicyManifest, read_policy_manifest

Precision = Literal["bf16", "nf4"]


@dataclass(frozen=True)
class Options:
    """The policy, the link, and what to serve."""

    policy: Annotated[Path, POSITIONAL]
    """Policy folder."""
    link: Annotated[Path, POSITIONAL]
    """Link to create."""
    serve: Precision = "bf16"
    """How to serve a 4-bit base: as an unpacked copy (bf16) or in 4 bits (nf4)."""


def main(options: Options) -> None:
    print(f"{options.link} points to {serve_base(options)}")


def serve_base(options: Options) -> Path:
    """Create or replace the link; return its target. A hub model is downloaded into the hub's cache."""
    link = options.link
    if link.exists() and not link.is_symlink():
        raise UserError(f"{link} is there already and no link; choose another path for the link")
    manifest = read_policy_manifest(options.policy)
    if options.serve == "nf4" and not manifest.quantized:
        raise UserError(
            f"--serve nf4: {options.policy} has no 4-bit base; leave it out, or make the policy with --quantize"
        )
    base = unpacked(manifest, link) if manifest.quantized and options.serve == "bf16" else downloaded(manifest.base)
    point(link, base)
    return base


def downloaded(base: str) -> Path:
    if Path(base).is_dir():
        return Path(base)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(base))


def unpacked(manifest: PolicyManifest, link: Path) -> Path:
    """The copy beside the link, with the very weights that the trainer multiplies by."""
    import torch

    from forage.policy.base_models import COPY_MANIFEST, copy_manifest, is_copy_of
    from forage.policy.policy import load_base, load_tokenizer

    kind = "fp32" if compute_dtype(manifest.dtype) == torch.float32 else "bf16"
    base, copy = Path(manifest.base), link.with_name(f"{link.name}-{kind}")
    check_replaceable("link", copy, COPY_MANIFEST)
    if not is_copy_of(copy, base):
        with making_folder(copy, overwrite=True) as partial:
            # In the plain model's format: bitsandbytes' own can only be read.
            load_base(manifest, dequantize=True).save_pretrained(partial, save_original_format=False)
            load_tokenizer(manifest).save_pretrained(partial)
            write_manifest(partial / COPY_MANIFEST, copy_manifest(partial, base))
    return copy


def point(link: Path, base: Path) -> None:
    """Lead the link to the base."""
    make_folder(link.parent)
    # Relative, so that the folder with both can be mounted elsewhere; renamed into place, so that it is never missing.
    partial = link.with_name(f".{link.name}.partial")
    partial.unlink(missing_ok=True)
    with takes_files(link):
        partial.symlink_to(os.path.relpath(base.resolve(), link.parent.resolve()))
    partial.replace(link)
    sync(link.parent)


if __name__ == "__main__":
    run_script(main, __doc__)
