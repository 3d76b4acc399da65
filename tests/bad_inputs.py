"""Bad inputs to each script, and the table of what they say: `python -m tests.bad_inputs docs/errors.md` writes it.

The table is checked by tests/scripts/test_bad_inputs.py, which runs every one of them.
"""

from __future__ import annotations

import shlex
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.here import run_here

HEAD = """# What mistakes say

A misspelt option or subcommand (of two scripts), a value that can't be, something that isn't there, something that is
not what it should be, and a place that can't be written to. Each ends with one line that says what is wrong, where, and
what to do, and with a status that is not 0; nothing is written. `tests/scripts/test_bad_inputs.py` runs all of them,
and `python -m tests.bad_inputs docs/errors.md` writes this page. `work` holds a policy, its base and data, a file of
documents, a broken one and a plain file.

| typed | said |
|---|---|
"""
# In the order of HEAD's sentence. {w} is the folder `work`.
CASES = {
    "data_prep.py": (
        "--dataset-nam sample --output-dir {w}/out",
        "--dataset-name sample --output-dir {w}/out --eval-share 2",
        "--dataset-name {w}/none.jsonl --no-scrape --output-dir {w}/out",
        "--dataset-name {w}/broken.jsonl --no-scrape --output-dir {w}/out",
        "--dataset-name sample --embedder none --output-dir {w}/file",
    ),
    "document_store.py": (
        "serch --store {w}/data/store gout",
        "search --store {w}/data/store --k 0 gout",
        "search --store {w}/none gout",
        "delete --ids gout --store {w}/none",
        "build --documents {w}/broken.jsonl --store {w}/out",
        "build --documents {w}/docs.jsonl --embedder none --store {w}/file",
    ),
    "create_lora_model.py": (
        "--base-model {w}/base --r 0 --output-dir {w}/out",
        "--base-model {w}/none --no-quantize --output-dir {w}/out",
        "--base-model {w}/data --no-quantize --output-dir {w}/out",
        "--base-model {w}/base --no-quantize --output-dir {w}/policy",
    ),
    "sft_train.py": (
        "--data {w}/data --policy {w}/policy --output-dir {w}/out --batch-size 0",
        "--data {w}/none --policy {w}/policy --output-dir {w}/out",
        "--data {w}/data --policy {w}/data --output-dir {w}/out",
        "--data {w}/data --policy {w}/policy --output-dir {w}/policy",
    ),
    "grpo_rollout.py": (
        "--data {w}/data --policy {w}/policy --run-dir {w}/out --num-rollouts 0",
        "--data {w}/none --policy {w}/policy --run-dir {w}/out",
        "--data {w}/data --policy {w}/base --run-dir {w}/out",
        "--data {w}/data --policy {w}/policy --run-dir {w}/data",
    ),
    "grpo_train.py": (
        "--data {w}/data --policy {w}/policy --run-dir {w}/out --learning-rate -1",
        "--data {w}/data --policy {w}/none --run-dir {w}/out",
        "--data {w}/policy --policy {w}/policy --run-dir {w}/out --engine local",
        "--data {w}/data --policy {w}/policy --run-dir {w}/policy",
    ),
    "evaluate.py": (
        "--data {w}/data --policy {w}/policy --output-dir {w}/out --systems singel",
        "--data {w}/data --policy {w}/policy --output-dir {w}/out --store http://127.0.0.1:1 --store-patience 0",
        "--data {w}/data --policy {w}/data --output-dir {w}/out",
        "--data {w}/data --policy {w}/policy --output-dir {w}/file",
    ),
    "merge_lora.py": (
        "--lora-model {w}/policy --output-path {w}/out --dtype int3",
        "--lora-model {w}/none --output-path {w}/out",
        "--lora-model {w}/data --output-path {w}/out",
        "--lora-model {w}/policy --output-path {w}/base",
    ),
    "train_ppo.py": (
        "--output-dir {w}/out --max-steps -1",
        "--output-dir {w}/out --data {w}/none",
        "--output-dir {w}/out --base-model {w}/data",
        "--output-dir {w}/file",
    ),
    "chat.py": (
        "--policy {w}/policy --data {w}/data --temperature -1 --question a",
        "--policy {w}/none --data {w}/data --question a",
        "--policy {w}/policy --data {w}/base --question a",
        "--policy {w}/policy --data {w}/data --web 99999",
    ),
}


class Said(NamedTuple):
    """What a script made of a bad input."""

    status: int
    lines: list[str]
    """Its errors."""
    out: str


def command(script, arguments):
    """As a person types it."""
    return f"python {script} {arguments.format(w='work')}"


def said(script, arguments, work):
    done = run_here([sys.executable, script, *shlex.split(arguments.format(w=work))])
    errors = [line for line in done.stderr.splitlines() if line.strip()]
    return Said(done.returncode, [line.replace(str(work), "work") for line in errors], done.stdout + done.stderr)


def make_work(folder):
    """What the inputs name."""
    from tests.tiny import make_tiny

    work = make_tiny(folder / "work")
    (work / "broken.jsonl").write_text('{"question": "What\n')
    (work / "docs.jsonl").write_text('{"id": "gout", "title": "Gout", "text": "Rest mends it."}\n')
    (work / "file").write_text("not a folder\n")
    return work


def rows(work):
    for script, inputs in CASES.items():
        for arguments in inputs:
            yield command(script, arguments), said(script, arguments, work).lines[-1]


def shown(typed, line):
    """A row of the page."""
    return f"| `{typed.replace('|', '&#124;')}` | {line.replace('|', '&#124;')} |\n"


def main():
    with tempfile.TemporaryDirectory() as folder:
        Path(sys.argv[1]).write_text(HEAD + "".join(shown(*row) for row in rows(make_work(Path(folder)))))


if __name__ == "__main__":
    main()
