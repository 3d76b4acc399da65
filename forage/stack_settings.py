"""Stack settings: checks what .env sets, so that nothing in it is silently ignored.

    echo BATCH_SIZE | python -m forage.stack_settings

Takes the names, one a line; unknown ones and impossible values, which the environment has, are errors.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast, get_args

from forage.arguments import run_script
from forage.errors import UserError
from forage.processes import Offload, Sharding, check_sharding

EXAMPLE = Path(__file__).parents[1] / ".env.example"
# Read by docker compose and the containers' runtimes themselves, or by this repository's own scripts, not by the stack.
OTHERS = re.compile(
    r"(COMPOSE|DOCKER|BUILDKIT|NVIDIA|CUDA)_\w+|(HTTPS?|NO|FTP|ALL)_PROXY|(https?|no|ftp|all)_proxy"
    r"|HF_HUB_\w+|OMP_WAIT_POLICY|DEVICE|SHARED|ENV_FILE|PY|VLLM_PY|PATH|HOME|HOSTNAME|PWD|OLDPWD|SHLVL|TERM|LANG"
    r"|LC_\w+|ONEDNN_PRIMITIVE_CACHE_CAPACITY|LRU_CACHE_CAPACITY|_"
)
CHOICES = {
    "SHARDING": get_args(Sharding), "OFFLOAD": get_args(Offload),
    "SERVE": ("auto", "nf4", "bf16"), "QUANTIZE": ("0", "1"), "REPORT_TO": ("none", "wandb", "trackio"),
    "ENGINE": ("vllm", "local"), "CARD": ("24", "40", "48", "80"),
}  # fmt: skip
MAX_RANK = 512  # of an adapter that vLLM serves
NUMBERS = (
    "LORA_RANK", "WARM_STEPS", "BATCH_SIZE", "NUM_ROLLOUTS", "MAX_TOKENS", "MAX_STEPS", "TRAIN_PROCESSES",
    "TRAIN_NODES", "TRAIN_PORT", "MAX_STALENESS", "VLLM_GPUS",
)  # fmt: skip


@dataclass(frozen=True)
class Options:
    """None."""


def known_names() -> list[str]:
    return re.findall(r"^(?:# )?([A-Z][A-Z0-9_]*)=", EXAMPLE.read_text(), re.MULTILINE)


def check_names(given: Iterable[str]) -> None:
    """Refuse a name that nothing reads."""
    known = known_names()
    for name in given:
        if name in known or OTHERS.fullmatch(name):
            continue
        near = difflib.get_close_matches(name.upper(), known, 1, 0.6)
        way_out = f"is it {near[0]}?" if near else "see .env.example for those there are"
        raise UserError(f"{os.environ.get('ENV_FILE', '.env')}: nothing reads {name}; {way_out}")


def check_values(given: Mapping[str, str]) -> None:
    """Refuse values that some service would refuse only after the others have worked for an hour."""
    for name, possible in CHOICES.items():
        if given.get(name) and given[name] not in possible:
            raise UserError(f"{name}={given[name]} is none of {', '.join(possible)}; set one of these")
    for name in NUMBERS:
        if given.get(name) and not given[name].isdecimal():
            raise UserError(f"{name}={given[name]} is no whole number; set one")
    if sharding := given.get("SHARDING"):
        check_sharding(cast(Sharding, sharding), offload=cast(Offload, given.get("OFFLOAD") or "none"))
    if int(given.get("LORA_RANK") or 1) not in range(1, MAX_RANK + 1):
        raise UserError(f"LORA_RANK={given['LORA_RANK']} is no rank that vLLM serves; set 1 to {MAX_RANK}")
    if given.get("TRAIN_PROCESSES") == "0":
        raise UserError("TRAIN_PROCESSES=0 trains nothing; set 1 or more")


def main(options: Options) -> None:
    check_names(filter(None, sys.stdin.read().splitlines()))
    check_values(os.environ)


if __name__ == "__main__":
    run_script(main, __doc__)
