"""Manifests: what contradicts, what may change, and digests of code that follow what a file imports."""

import importlib.machinery
import json
import re
import sys
from functools import cache, partial, wraps
from types import ModuleType

import pytest

from forage.errors import UserError
from forage.manifest import agree, contradictions, digest, own_module, read_manifest, source_digest


def test_contradictions_are_named_all_at_once():
    before = {"options": {"epochs": 1, "deep": {"weights": [1, 2]}}, "data": "beef", "rewards": {"mrr": 1.0}}
    now = {"options": {"epochs": 2, "deep": {"weights": [2, 1]}, "new": 3}, "data": "c0de", "rewards": {"mrr": 1.0}}
    assert contradictions(now, before) == ["--epochs 1, not 2", "--weights 1 2, not 2 1", "another data"]
    assert contradictions(now, before, free=("options.epochs", "data")) == ["--weights 1 2, not 2 1"]


def test_a_folder_keeps_its_manifest(tmp_path):
    path = tmp_path / "run.json"
    agree(path, {"options": {"epochs": 1, "max_steps": 4}}, "another --run-dir")
    with pytest.raises(UserError, match=r"was begun with --epochs 1, not 2: give that, or another --run-dir"):
        agree(path, {"options": {"epochs": 2, "max_steps": 4}}, "another --run-dir")
    agree(path, {"options": {"epochs": 1, "max_steps": 8}}, "another --run-dir", free=("options.max_steps",))
    assert json.loads(path.read_text())["options"]["max_steps"] == 8


@pytest.mark.parametrize("content", ["", "[1]"])
def test_a_damaged_manifest_is_one_line(tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(UserError, match=r"run\.json is damaged .*; put it back"):
        read_manifest(tmp_path / "run.json", "put it back")


SOURCE = '''"""Rewards."""
import json
import re
from functools import cached_property, partial
from helper_of_test import LIMIT
from namespace_of_test.deep import DEPTH

SCALE = 2


class Base:
    least = 3

    def floor(self):
        return 0.125


class Short(Base):
    words = ("a", "b")
    names = ["c", "d"]
    kinds = {"e": 1}
    seen = {"f"}
    pattern = re.compile("[0-9]+")
    other: str = "g"

    @cached_property
    def table(self):
        return {word: 5 for word in self.words}

    @property
    def width(self):
        return 6

    @staticmethod
    def even(number):
        return number % 7

    def __call__(self, episodes, questions):
        """Scores."""
        return [float(len(e.answer) < LIMIT) for e in episodes]


def doubled(function):
    return lambda *given: [value * 0.75 for value in function(*given)]


@doubled
def helper(episodes, questions, most=8):
    def inner(episode):
        return 9
    return list(map(inner, episodes))


def plain(episodes, questions):
    return [1.0 for e in episodes]  # each one


def main():
    import never_there
'''


@pytest.fixture
def digest_of(tmp_path, monkeypatch):
    """The digest of the reward in a module with this source, beside a helper with that one."""

    own_module.cache_clear()

    def of(source=SOURCE, helper="LIMIT = 3\n", name="plain", deep="", further="DEPTH = 1\n"):
        (tmp_path / "helper_of_test.py").write_text(helper)
        (tmp_path / "namespace_of_test").mkdir(exist_ok=True)
        (tmp_path / "namespace_of_test" / "deep.py").write_text(f"from .further import DEPTH\n{deep}")
        (tmp_path / "namespace_of_test" / "further.py").write_text(further)
        path = tmp_path / "rewards_of_test.py"
        path.write_text(source)
        module = ModuleType("rewards_of_test")
        module.__file__ = str(path)
        monkeypatch.setitem(sys.modules, "rewards_of_test", module)
        monkeypatch.syspath_prepend(tmp_path)
        importlib.invalidate_caches()
        exec(compile(source, path, "exec"), vars(module))
        return source_digest(partial(getattr(module, name)) if name == "plain" else getattr(module, name)())

    yield of
    for name in ("helper_of_test", "namespace_of_test", "namespace_of_test.deep", "namespace_of_test.further"):
        sys.modules.pop(name, None)


CHANGES = {
    "what a function returns": ("1.0", "0.5"), "a constant of the module": ("SCALE = 2", "SCALE = 3"),
    "a tuple of the class": ('("a", "b")', '("a", "c")'), "a list of the class": ('["c", "d"]', '["c"]'),
    "a dictionary of the class": ('{"e": 1}', '{"e": 2}'), "a set of the class": ('{"f"}', '{"g"}'),
    "a regex of the class": ("[0-9]+", "[0-8]+"), "an annotated attribute": ('"g"', '"h"'),
    "a cached property": ("word: 5", "word: 6"), "a property": ("return 6", "return 7"),
    "a static method": ("% 7", "% 8"), "an attribute of a base class": ("least = 3", "least = 4"),
    "a method of a base class": ("0.125", "0.25"), "a decorator": ("0.75", "0.7"), "a default": ("most=8", "most=9"),
    "a nested function": ("return 9", "return 10"),
}  # fmt: skip


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("name", ["plain", "Short"])
def test_what_changes_a_reward_changes_its_digest(digest_of, kind, name):
    assert SOURCE.count(CHANGES[kind][0]) == 1
    assert digest_of(SOURCE.replace(*CHANGES[kind]), name=name) != digest_of(name=name)


def test_modules_that_a_reward_imports_are_part_of_its_digest(digest_of):
    first = digest_of()
    assert digest_of() == first
    assert digest_of(helper="LIMIT = 4\n") != first
    assert digest_of(deep="DEPTH = 3\n") != first  # of a package without __init__.py
    assert digest_of(further="DEPTH = 2\n") != first  # by a relative import
    assert digest_of(name="Short") != first  # another function of the same file


class Scaled:
    def __init__(self, scale):
        self.scale = scale

    def __call__(self, episodes, questions):
        return [self.scale for _ in episodes]

    def method(self, episodes, questions):
        return self(episodes, questions)


def closed(limit):
    return lambda episodes, questions: [float(limit) for _ in episodes]


def defaulted(limit):
    return lambda episodes, questions, most=limit: [float(most) for _ in episodes]


def wrapped(limit):
    @wraps(agree)
    def scaled(*given):
        return [limit * value for value in agree(*given)]

    return scaled


@pytest.mark.parametrize(
    "made",
    [
        lambda n: partial(agree, free=(n,)),
        lambda n: partial(agree, free={"a": [n]}),
        lambda n: partial(agree, free=frozenset({"a", n})),
        lambda n: partial(agree, free=re.compile(f"a{n}")),
        lambda n: partial(agree, free=[closed, [contradictions, digest][n]]),
        lambda n: partial(partial(agree, free=closed(n))),
        closed,
        defaulted,
        wrapped,
        Scaled,
        lambda n: Scaled(n).method,
        lambda n: cache(closed(n)),
    ],
)
def test_what_a_reward_holds_is_part_of_its_digest(made):
    assert source_digest(made(0)) != source_digest(made(1))
    assert source_digest(made(0)) == source_digest(made(0))


def test_a_function_that_calls_itself_has_a_digest():
    def fall(number):
        return fall(number - 1) if number else 0

    assert source_digest(fall)


def test_comments_docstrings_layout_and_what_main_does_change_nothing(digest_of):
    other = SOURCE.replace("# each one", "# every one").replace("Scores", "Gives scores").replace("\n\n\n", "\n\n\n\n")
    assert digest_of(other) == digest_of()


@pytest.mark.parametrize("kind", ["own", "compiled", "installed"])
def test_of_a_compiled_module_the_bytes_count_and_one_that_pip_installed_is_a_library(tmp_path, monkeypatch, kind):
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0] if kind == "compiled" else ".py"
    module, rewards = tmp_path / f"{kind}_of_test{suffix}", tmp_path / "rewards.py"
    module.write_bytes(b"\x7fELF\xe2(" if kind == "compiled" else b"LIMIT = 1")
    if kind == "installed":  # by pip install --target
        (tmp_path / "kept-1.0.dist-info").mkdir()
        rewards = tmp_path.with_name("mine.py")
    rewards.write_text(f"import {kind}_of_test\ndef plain(episodes, questions): return []")
    monkeypatch.syspath_prepend(tmp_path)
    exec(compile("def plain(episodes, questions): return []", rewards, "exec"), named := {})
    first = source_digest(named["plain"])
    module.write_bytes(module.read_bytes() + b"1")
    assert (source_digest(named["plain"]) == first) == (kind == "installed")
