"""Manifests: what contradicts, what may change, and digests of code that follow what a file imports."""

import json
import sys
from functools import partial
from types import ModuleType

import pytest

from forage.errors import UserError
from forage.manifest import agree, contradictions, read_manifest, source_digest


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
from helper_of_test import LIMIT


class Short:
    words = ("a", "b")

    def __call__(self, episodes, questions):
        """Scores."""
        return [float(len(e.answer) < LIMIT) for e in episodes]


def plain(episodes, questions):
    return [1.0 for e in episodes]  # each one


def main():
    import never_there
'''


@pytest.fixture
def digest_of(tmp_path, monkeypatch):
    """The digest of the reward in a module with this source, beside a helper with that one."""

    def of(source=SOURCE, helper="LIMIT = 3\n", name="plain"):
        (tmp_path / "helper_of_test.py").write_text(helper)
        path = tmp_path / "rewards_of_test.py"
        path.write_text(source)
        module = ModuleType("rewards_of_test")
        module.__file__ = str(path)
        monkeypatch.setitem(sys.modules, "rewards_of_test", module)
        monkeypatch.syspath_prepend(tmp_path)
        exec(compile(source, path, "exec"), vars(module))
        return source_digest(partial(getattr(module, name)) if name == "plain" else getattr(module, name)())

    yield of
    sys.modules.pop("helper_of_test", None)


def test_what_changes_a_reward_changes_its_digest(digest_of):
    first = digest_of()
    assert digest_of(SOURCE.replace("1.0", "0.5")) != first
    assert digest_of(SOURCE.replace('("a", "b")', '("a", "c")')) != first  # a class attribute
    assert digest_of(helper="LIMIT = 4\n") != first  # a module it imports
    assert digest_of(name="Short") != first  # another function of the same file


def test_what_a_reward_holds_is_part_of_its_digest():
    assert source_digest(partial(agree, free=("a",))) != source_digest(partial(agree, free=("b",)))
    assert source_digest(partial(agree, free=("a",))) == source_digest(partial(agree, free=("a",)))

    def closed(limit):
        return lambda episodes, questions: [float(limit) for _ in episodes]

    assert source_digest(closed(1)) != source_digest(closed(2))
    assert source_digest(closed(1)) == source_digest(closed(1))


def test_comments_docstrings_layout_and_what_main_does_change_nothing(digest_of):
    other = SOURCE.replace("# each one", "# every one").replace("Scores", "Gives scores").replace("\n\n\n", "\n\n\n\n")
    assert digest_of(other) == digest_of()
