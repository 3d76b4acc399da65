"""The road: every function that one step of grpo_train.py calls on the tiny model, from JSONL to gradient.

python -m tests.road        prints it file by file, the longest first
"""

import ast
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path

from tests import ROOT
from tests.kills import FORKS

OPTIONS = ("--engine", "local", "--mode", "sparse", "--max-turn-tokens", "12", "--max-turns", "2", "--max-steps", "1",
           "--batch-size", "2", "--num-rollouts", "2", "--eval-every", "0", "--report-to", "none",
           "--on-collapse", "warn")  # fmt: skip


def walk(tiny, run_dir):
    """{file: {first line of a function: its number of lines}} of what a step calls.

    In a process of its own: what an earlier caller left in a cache would not be called again.
    """
    with FORKS.Manager() as manager:
        found = manager.dict()
        process = FORKS.Process(target=_note, args=(str(tiny), str(run_dir), found))
        process.start()
        process.join()
        assert process.exitcode == 0, "grpo_train.py failed"
        return {file: lines_of(ROOT / file, firsts) for file, firsts in found.items()}


def _note(tiny, run_dir, found):
    import grpo_train
    from forage.arguments import run_script
    from forage.grpo.options import TrainOptions
    from tests.tiny import rewards_of_tokens

    called, package, scripts = set(), f"{ROOT}/forage/", {str(path) for path in ROOT.glob("*.py")}

    def watch(frame, event, arg):
        code = frame.f_code
        is_function = code.co_flags & 1 and not code.co_name.startswith("<")  # rather than a module or a class
        if event == "call" and is_function and (code.co_filename.startswith(package) or code.co_filename in scripts):
            called.add((code.co_filename, code.co_firstlineno))

    sys.argv = ["grpo_train.py", "--data", f"{tiny}/data", "--policy", f"{tiny}/policy", "--run-dir", run_dir, *OPTIONS]
    sys.setprofile(watch)
    threading.setprofile(watch)

    def main(options: TrainOptions) -> None:
        grpo_train.main(options, rewards_of_tokens)  # its own ones find all of the tiny model's noise equally bad

    main.__annotations__["options"] = TrainOptions
    run_script(main, grpo_train.__doc__, top=grpo_train.TOP, presets=grpo_train.PRESETS)
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
    from tests.tiny import make_tiny

    with tempfile.TemporaryDirectory() as scratch:
        found = walk(make_tiny(Path(scratch) / "tiny"), Path(scratch) / "run")
    for file, lines in Counter({file: sum(functions.values()) for file, functions in found.items()}).most_common():
        print(f"{file:45} {len(found[file]):4} functions {lines:5} lines")
    print(measure(found))
