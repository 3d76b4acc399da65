"""Stack settings: checks what .env sets, so that nothing in it is silently ignored.

    python -m forage.stack_settings --file .env

Unknown names and impossible values are errors. Without --file it checks the environment, through which docker compose
passes .env, except for the names in --image-names.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from forage.cli import run_script
from forage.errors import UserError
from forage.processes import OFFLOADS, Offload, Sharding

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
    "ENGINE": ("vllm", "local"),
}  # fmt: skip
MAX_RANK = 512  # of an adapter that vLLM serves
NUMBERS = (
    "LORA_RANK", "WARM_STEPS", "BATCH_SIZE", "NUM_ROLLOUTS", "MAX_TOKENS", "MAX_STEPS", "TRAIN_PROCESSES",
    "TRAIN_NODES", "TRAIN_PORT",
)  # fmt: skip


@dataclass(frozen=True)
class Options:
    """What to check."""

    file: Path | None = None
    """File of NAME=VALUE lines. A file that doesn't exist sets nothing."""
    image_names: Path | None = None
    """Without --file: file of names that the image itself sets, one per line."""


def lines_of(path: Path) -> Iterator[tuple[str, str]]:
    """Name and value of each line; the value with its quotes and without a comment."""
    for number, line in enumerate(path.read_text().splitlines() if path.exists() else [], start=1):
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if not name or name.startswith("#"):
            continue
        if not equals:
            raise UserError(f"{path}:{number}: {name} is no line NAME=VALUE; write one, or put a # before it")
        yield name.strip(), re.sub(r"(^|\s)#.*", "", value).strip().strip("\"'")


def known_names() -> list[str]:
    return re.findall(r"^(?:# )?([A-Z][A-Z0-9_]*)=", EXAMPLE.read_text(), re.MULTILINE)


def check_names(given: Mapping[str, str], where: str) -> None:
    """Refuse a name that nothing reads."""
    known = known_names()
    for name in given:
        if name in known or OTHERS.fullmatch(name):
            continue
        near = difflib.get_close_matches(name.upper(), known, 1, 0.6)
        way_out = f"is it {near[0]}?" if near else "see .env.example for those there are"
        raise UserError(f"{where}: nothing reads {name}; {way_out}")


def check_values(given: Mapping[str, str]) -> None:
    """Refuse values that some service would refuse only after the others have worked for an hour."""
    for name, possible in CHOICES.items():
        if given.get(name) and given[name] not in possible:
            raise UserError(f"{name}={given[name]} is none of {', '.join(possible)}; set one of these")
    for name in NUMBERS:
        if given.get(name) and not given[name].isdecimal():
            raise UserError(f"{name}={given[name]} is no whole number; set one")
    offload, sharding = given.get("OFFLOAD") or "none", given.get("SHARDING")
    if sharding and sharding not in OFFLOADS[offload]:
        raise UserError(
            f"OFFLOAD={offload} does not work with SHARDING={sharding}; set {' or '.join(OFFLOADS[offload])}"
        )
    if int(given.get("LORA_RANK") or 1) not in range(1, MAX_RANK + 1):
        raise UserError(f"LORA_RANK={given['LORA_RANK']} is no rank that vLLM serves; set 1 to {MAX_RANK}")
    if given.get("TRAIN_PROCESSES") == "0":
        raise UserError("TRAIN_PROCESSES=0 trains nothing; set 1 or more")


def main(options: Options) -> None:
    if options.file:
        given, where = dict(lines_of(options.file)), str(options.file)
        set_outside = {name: os.environ[name] for name in known_names() if name in os.environ}
        values = given | set_outside  # the environment takes precedence
    else:
        image = options.image_names.read_text().split() if options.image_names else []
        given = {name: value for name, value in os.environ.items() if name not in image}
        values, where = given, ".env"
    check_names(given, where)
    check_values(values)


if __name__ == "__main__":
    run_script(main, __doc__)
