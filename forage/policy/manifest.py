"""What a policy folder's model.json says: which base it was made from, and how that base is loaded. No torch here."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path

from forage.errors import UserError
from forage.machine import Dtype
from forage.manifest import read_manifest, read_manifest_as, write_manifest

AGAIN = "make the policy again"


@dataclass(frozen=True)
class PolicyManifest:
    """One policy folder and its base."""

    folder: Path
    base: str
    """Folder or hub name of the base to load; a 4-bit one for a quantised policy."""
    full_base: str
    """The full-precision base: what `base` was quantised from, and what an adapter is merged into."""
    quantized: bool
    dtype: Dtype = "auto"
    """What the policy is computed in."""
    full_base_digest: str = ""
    """Tells the full base from others (base_models.py); empty for weights that are no safetensors."""

    @property
    def base_digest(self) -> str:
        """The digest of `base`, where that is the full one: a 4-bit base lies in the folder and needs none."""
        return "" if self.quantized else self.full_base_digest


def read_policy_manifest(folder: Path) -> PolicyManifest:
    """Read a folder's model.json; refuse one that is missing or damaged, or whose base is gone."""
    path = folder / "model.json"
    if not path.is_file():
        raise UserError(f"{folder} has no model.json; make a policy with create_lora_model.py --output-dir {folder}")
    manifest = read_manifest_as(PolicyManifest, path, AGAIN, folder=folder)
    base = str(folder / manifest.base) if manifest.quantized else manifest.base  # an absolute path stays as it is
    if (manifest.quantized or Path(base).is_absolute()) and not Path(base).is_dir():
        raise UserError(f"{path} names the base {base}, which is gone; put it back, or write its new place there")
    return replace(manifest, base=base)


def write_policy_manifest(manifest: PolicyManifest, folder: Path) -> None:
    """Write model.json into its own folder, or into another folder of adapters for the same base.

    A 4-bit base inside the folder is named relative to it, so that the folder can be moved; one outside, in full.
    """
    base = manifest.base
    if manifest.quantized:
        inner, outer = Path(base).resolve(), folder.resolve()
        base = str(inner.relative_to(outer) if inner.is_relative_to(outer) else inner)
    fields = asdict(replace(manifest, base=base))
    del fields["folder"]
    write_manifest(folder / "model.json", fields)


def full_base_of(folder: Path) -> tuple[str, str]:
    """The full-precision base that a folder's model.json names, and its digest; empty where there is none."""
    path = folder / "model.json"
    fields = read_manifest(path, AGAIN) if path.is_file() else {}
    return str(fields.get("full_base", "")), str(fields.get("full_base_digest", ""))


@dataclass(frozen=True)
class AdapterOptions:
    """The LoRA adapter."""

    r: int = 16
    """Rank of the adapter."""
    alpha: int = 32
    """Scale of the adapter: its output is multiplied by alpha / r, or by alpha / sqrt(r) with --rslora."""
    target_modules: tuple[str, ...] = ("all-linear",)
    """Layers to adapt: all-linear (every linear layer except the output layer), or names such as q_proj v_proj."""
    rslora: bool = False
    """Use the rank-stabilised scale (rsLoRA, https://arxiv.org/abs/2312.03732)."""
    dora: bool = False
    """Use weight-decomposed LoRA (DoRA, https://arxiv.org/abs/2402.09353)."""

    def check(self) -> None:
        if self.r < 1 or self.alpha < 1:
            raise UserError(f"--r {self.r} and --alpha {self.alpha} must be at least 1")
        if not self.target_modules:
            raise UserError("--target-modules names no layer; use all-linear")
