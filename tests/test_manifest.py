"""Manifests: what contradicts, what may change, and digests of code that follow what a file imports."""

import hashlib
import importlib.machinery
import json
import re
import sys
import time
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path

import pytest

from forage.agent.rewards import get_mrr
from forage.manifest import agree, code_of, contradictions, digest, made_of, own_module, read_manifest
from tests.refusals import refused


def test_contradictions_are_named_all_at_once():
    before = {"options": {"epochs": 1, "deep": {"weights": [1, 2]}}, "data": "beef", "rewards": {"mrr": 1.0}}
    now = {"options": {"epochs": 2, "deep": {"weights": [2, 1]}, "new": 3}, "data": "c0de", "rewards": {"mrr": 1.0}}
    assert contradictions(now, before) == ["--epochs 1, not 2", "--weights 1 2, not 2 1", "another data"]
    assert contradictions(now, before, free=("options.epochs", "data")) == ["--weights 1 2, not 2 1"]


def test_a_folder_keeps_its_manifest(tmp_path):
    path = tmp_path / "run.json"
    agree(path, {"options": {"epochs": 1, "max_steps": 4}}, "another --run-dir")
    with refused(r"was begun with --epochs 1, not 2: give that, or another --run-dir"):
        agree(path, {"options": {"epochs": 2, "max_steps": 4}}, "another --run-dir")
    agree(path, {"options": {"epochs": 1, "max_steps": 8}}, "another --run-dir", free=("options.max_steps",))
    assert json.loads(path.read_text())["options"]["max_steps"] == 8


@pytest.mark.parametrize("content", ["", "[1]"])
def test_a_damaged_manifest_is_one_line(tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    with refused(r"run\.json is damaged .*; put it back"):
        read_manifest(tmp_path / "run.json", "put it back")


SOURCE = """import json
from functools import cache
from decorators_of_test import doubled
from namespace_of_test.deep import DEPTH

@doubled
def get_reward(episodes, questions):
    from helper_of_test import LIMIT
    return [float(len(e.answer) < LIMIT) for e in episodes]

def other(): return 1

def main():
    import aside_of_test
"""
FILES = {
    "rewards_of_test.py": SOURCE,
    "decorators_of_test.py": "def doubled(function):\n    return lambda *given: function(*given) * 2\n",
    "helper_of_test.py": "LIMIT = 3\n",
    "aside_of_test.py": "A = 1\n",
    "namespace_of_test/deep.py": "from .further import DEPTH\n",
    "namespace_of_test/further.py": "DEPTH = 1\n",
}
MODULES = [name.removesuffix(".py").replace("/", ".") for name in FILES] + ["namespace_of_test"]


@pytest.fixture
def code_with(tmp_path, monkeypatch):
    """The digests of the reward's files, of which one may be another."""
    monkeypatch.syspath_prepend(tmp_path)

    def of(**changed):
        for name, text in FILES.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(changed.get(Path(name).stem, text).encode())
        for name in MODULES:
            sys.modules.pop(name, None)
        own_module.cache_clear()
        importlib.invalidate_caches()
        return code_of(cache(partial(importlib.import_module("rewards_of_test").get_reward)))

    yield of
    for name in MODULES:
        sys.modules.pop(name, None)


def test_a_reward_s_code_is_its_files_and_those_that_they_import(code_with):
    """Also where a decorator that tells nothing of the function lies elsewhere."""
    first = code_with()
    assert sorted(first) == sorted(Path(name).name for name in FILES if name != "aside_of_test.py")
    for name, text in FILES.items():
        changed = code_with(**{Path(name).stem: f"{text}# a comment\n"})
        differ = [each for each in first if changed[each] != first[each]]
        assert differ == [Path(name).name] * (name != "aside_of_test.py")
        assert code_with(**{Path(name).stem: text.replace("\n", "\r\n")}) == first


def test_no_python_version_counts(code_with):
    """The digest, worked out by sha256sum."""
    one = hashlib.sha256(b"LIMIT = 3\n").hexdigest()[:16]
    assert code_with()["helper_of_test.py"] == hashlib.sha256(one.encode()).hexdigest()[:16]


def test_code_of_the_project_goes_by_its_place_in_it():
    assert "forage/agent/rewards.py" in code_of(get_mrr)
    assert not any(name.startswith("/") for name in code_of(get_mrr))


@dataclass
class Scaled:
    scale: int
    url: str = field(default="", compare=False)

    def __call__(self, episodes, questions):
        return [self.scale for _ in episodes]


def closed(limit):
    return lambda episodes, questions: [float(limit) for _ in episodes]


@pytest.mark.parametrize(
    "made",
    [
        lambda n: partial(agree, free=(n,)),
        lambda n: partial(agree, free={"a": [n]}),
        lambda n: partial(agree, free=re.compile(f"a{n}")),
        lambda n: partial(agree, free=[closed, [contradictions, digest][n]]),
        lambda n: partial(partial(agree, free=closed(n))),
        closed,
        lambda n: Scaled(n, url=str(time.monotonic_ns())),
        lambda n: cache(closed(n)),
    ],
)
def test_what_a_reward_holds_is_what_it_is_made_of(made):
    assert made_of(made(0)) != made_of(made(1))
    assert made_of(made(0)) == made_of(made(0))
