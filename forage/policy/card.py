"""The card of a policy folder, model.json: which base it was made from, and how that base is loaded. No torch here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from forage.errors import UserError
from forage.files import replacing
from forage.machine import Dtype


@dataclass(frozen=True)
class PolicyCard:
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
    """Tells the full base from others (identity.py); empty in policies of earlier versions."""

    @property
    def base_digest(self) -> str:
        """The digest of `base`, where that is the full one: a 4-bit base lies in the folder and needs none."""
        return "" if self.quantized else self.full_base_digest


def read_policy_card(folder: Path) -> PolicyCard:
    """Read a folder's card; refuse a card that is missing or damaged, or whose base is gone."""
    path = folder / "model.json"
    if not path.is_file():
        raise UserError(f"{folder} has no model.json; make a policy with create_lora_model.py --output-dir {folder}")
    try:
        card = json.loads(path.read_text())
        base, full_base, quantized = card["base"], card["full_base"], card["quantized"]
        dtype, digest = card.get("dtype", "auto"), card.get("full_base_digest", "")  # earlier versions wrote neither
        if dtype not in get_args(Dtype):
            raise ValueError(f"dtype {dtype}")
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error}); make the policy again") from error
    base = str(folder / base) if quantized else base  # an absolute path stays as it is
    if (quantized or Path(base).is_absolute()) and not Path(base).is_dir():
        raise UserError(f"{path} names the base {base}, which is gone; put it back, or write its new place there")
    return PolicyCard(folder, base, full_base, quantized, dtype, digest)


def write_policy_card(card: PolicyCard, folder: Path) -> None:
    """Write the card into its own folder, or into another folder of adapters for the same base.

    A 4-bit base inside the folder is named relative to it, so that the folder can be moved; one outside, in full.
    """
    base = card.base
    if card.quantized:
        inner, outer = Path(base).resolve(), folder.resolve()
        base = str(inner.relative_to(outer) if inner.is_relative_to(outer) else inner)
    fields = {"base": base, "full_base": card.full_base, "quantized": card.quantized, "dtype": card.dtype}
    if card.full_base_digest:
        fields["full_base_digest"] = card.full_base_digest
    with replacing(folder / "model.json") as file:
        json.dump(fields, file, indent=1)
        file.write("\n")


def full_base_of(folder: Path) -> str | None:
    """The full-precision base that a policy folder's card names; None where there is no card."""
    card = _card_in(folder)
    return None if card is None else str(card["full_base"])


def full_base_digest_of(folder: Path) -> str:
    """The digest of that base; empty where there is no card, or one of an earlier version."""
    return str((_card_in(folder) or {}).get("full_base_digest", ""))


def _card_in(folder: Path) -> dict[str, Any] | None:
    path = folder / "model.json"
    if not path.is_file():
        return None
    try:
        card: dict[str, Any] = json.loads(path.read_text())
        card["full_base"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error}); make the policy again") from error
    return card
