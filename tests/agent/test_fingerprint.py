"""The fingerprint of a reward: the same after a comment, another after anything that changes what it computes."""

import importlib.util
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from forage.agent.fingerprint import fingerprint, fingerprints
from forage.agent.options import AgentSettings
from forage.agent.rewards import get_answer_similarity, get_mrr, get_search_gain
from forage.agent.searcher import Searcher
from forage.judge.judge import Judge
from grpo_rollout import get_reward_functions

SOURCE = '''
import re
from dataclasses import dataclass
from functools import cache, partial, wraps

import helpers
from helpers import shared

LIMIT = 3
WORDS = re.compile("a+")


def short(text):
    """Whether it is short."""
    return len(text) < LIMIT


@cache
def cached(text):
    return text.lower()


def logged(function):
    @wraps(function)
    def inner(*given):
        return function(*given)
    return inner


def plain(episodes, questions, scale=1.0):
    """Scores."""
    return [scale * short(cached(e.answer)) for e in episodes]  # each one


@logged
def decorated(episodes, questions):
    return [shared(e.answer) + helpers.other(e.answer) for e in episodes]


def closed(factor):
    return lambda episodes, questions: [factor * bool(WORDS.match(e.answer)) for e in episodes]


@dataclass
class Judge:
    weight: float

    def score(self, episode):
        return self.weight * short(episode.answer)

    def __call__(self, episodes, questions):
        return [self.score(e) for e in episodes]


def rewards(embedder):
    return {
        "plain": plain, "partial": partial(plain, scale=0.5), "decorated": decorated, "closed": closed(2),
        "judge": Judge(0.5), "method": Judge(0.5).__call__, "lambda": lambda e, q: [0.25] * len(e),
        "embedded": partial(plain, scale=embedder),
    }
'''
HELPERS = """
def shared(text):
    return len(text)


def other(text):
    return 0
"""
ALL = {"plain", "partial", "decorated", "closed", "judge", "method", "lambda", "embedded"}


@pytest.fixture
def loaded(tmp_path, monkeypatch):
    """The fingerprints of a file's rewards, after some of its text was replaced."""
    monkeypatch.syspath_prepend(tmp_path)
    count = iter(range(1000))

    def load(*changes):
        number = next(count)
        texts = {f"mine{number}": SOURCE.replace("helpers", f"helpers{number}"), f"helpers{number}": HELPERS}
        for old, new in changes:
            assert any(old in text for text in texts.values()), old
            texts = {name: text.replace(old, new) for name, text in texts.items()}
        for name, text in texts.items():
            (tmp_path / f"{name}.py").write_text(text.replace(f"helpers{number}", "helpers"))
        # Each time under the same names, as a script is.
        spec = importlib.util.spec_from_file_location("helpers", tmp_path / f"helpers{number}.py")
        helpers = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(__import__("sys").modules, "helpers", helpers)
        spec.loader.exec_module(helpers)
        spec = importlib.util.spec_from_file_location("mine", tmp_path / f"mine{number}.py")
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(__import__("sys").modules, "mine", module)
        spec.loader.exec_module(module)
        return fingerprints(module.rewards(Embedder()))

    return load


class Embedder:
    """As the real one, whose name is recorded elsewhere."""

    def __init__(self):
        self.name = object()


def changed(loaded, *changes):
    before, after = loaded(), loaded(*changes)
    return {name for name in before if before[name] != after[name]}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  # each one", ""),
        ('    """Scores."""\n', '    """Scores, in other words."""\n'),
        ('    """Scores."""\n', ""),
        ("[scale * short(cached(e.answer)) for e in episodes]",
         "[\n        scale * short(cached(e.answer))\n        for e in episodes\n    ]"),
        ("import re\n", "import re  # of words\n\n\n"),
    ],
)  # fmt: skip
def test_comments_docstrings_and_formatting_do_not_count(loaded, old, new):
    assert changed(loaded, (old, new)) == set()


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("scale * short", "2 * scale * short", {"plain", "partial", "embedded"}),
        ("scale=1.0", "scale=0.9", {"plain", "partial", "embedded"}),
        ("partial(plain, scale=0.5)", "partial(plain, scale=0.4)", {"partial"}),
        ("LIMIT = 3", "LIMIT = 4", {"plain", "partial", "embedded", "judge", "method"}),
        ("len(text) < LIMIT", "len(text) <= LIMIT", {"plain", "partial", "embedded", "judge", "method"}),
        ("text.lower()", "text.upper()", {"plain", "partial", "embedded"}),
        ("closed(2)", "closed(3)", {"closed"}),
        ('"a+"', '"b+"', {"closed"}),
        ('"judge": Judge(0.5)', '"judge": Judge(0.6)', {"judge"}),
        ("self.weight * short", "short", {"judge", "method"}),
        ("[0.25]", "[0.75]", {"lambda"}),
        ("return function(*given)", "return function(*reversed(given))", {"decorated"}),
        ("return len(text)\n", "return len(text) + 1\n", {"decorated"}),  # imported from another file
        ("return 0", "return 1", {"decorated"}),  # an attribute of an imported module
    ],
)
def test_what_changes_the_reward_changes_its_fingerprint(loaded, old, new, expected):
    assert changed(loaded, (old, new)) == expected <= ALL


def test_a_script_run_and_imported_are_the_same(tmp_path):
    """The worker runs grpo_rollout.py as __main__, the trainer imports it."""
    path = tmp_path / "script.py"
    path.write_text("def mine(episodes, questions):\n    return [1.0] * len(episodes)\n")
    found = []
    for name in ("__main__", "grpo_rollout"):
        namespace = {"__name__": name}
        exec(compile(path.read_text(), str(path), "exec"), namespace)
        found.append(fingerprint(namespace["mine"]))
    assert found[0] == found[1]


def test_without_a_file_the_compiled_code_counts():
    def mine(text):
        namespace = {}
        exec(f"def mine(episodes, questions):\n    return {text}", namespace)
        return fingerprint(namespace["mine"])

    assert mine("[1]") == mine("[ 1 ]") != mine("[2]")


def test_fields_that_are_not_compared_do_not_count():
    """A judge may move to another server, and be asked more, in a run that goes on."""
    judge = Judge("m", "http://one/v1", Path("one.jsonl"), max_judged=1)
    moved = replace(judge, url="http://other/v1", cache=Path("other.jsonl"), max_judged=2)
    moved.judgements.scores["key"] = 0.5
    assert fingerprint(judge) == fingerprint(moved)
    assert fingerprint(judge) != fingerprint(replace(judge, model="n"))
    assert fingerprint(judge) != fingerprint(replace(judge, reply_tokens=1000))


def test_the_projects_own_rewards_all_differ_and_stay():
    searcher = Searcher(lambda: None, AgentSettings())
    one, other = (fingerprints(get_reward_functions(Embedder(), searcher)) for _ in range(2))
    assert one == other
    assert len(set(one.values())) == 3
    assert fingerprint(get_mrr) == one["mrr"]
    other_searcher = Searcher(lambda: None, AgentSettings(k=7))  # agent.json records how it searches
    gains = (fingerprint(partial(get_search_gain, searcher=each)) for each in (searcher, other_searcher))
    assert len({*gains}) == 1
    assert fingerprint(partial(get_answer_similarity, embedder=SimpleNamespace())) != one["answer_similarity"]
