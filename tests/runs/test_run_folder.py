"""A run folder is one process's, under one set of options."""

import json
from dataclasses import dataclass, field

import pytest

from forage.errors import UserError
from forage.runs.run_folder import run_folder, set_aside


@dataclass
class Inner:
    top_k: int = 1
    urls: tuple[str, ...] = ("http://me:secret@gpu1:8100/", "http://gpu2")


@dataclass
class Options:
    learning_rate: float = 0.1
    inner: Inner = field(default_factory=Inner)
    max_steps: int = 3


def test_options_and_code_are_kept(tmp_path):
    with run_folder(tmp_path / "run", Options()):
        pass
    kept = json.loads((tmp_path / "run" / "config.json").read_text())
    assert kept == {
        "options": {
            "learning_rate": 0.1,
            "inner": {"top_k": 1, "urls": ["http://gpu1:8100/", "http://gpu2"]},
            "max_steps": 3,
        }
    }
    assert (tmp_path / "run" / "code.diff").exists()
    assert "secret" not in (tmp_path / "run" / "config.json").read_text()


def test_an_option_newer_than_the_run_does_not_stop_it(tmp_path):
    with run_folder(tmp_path, Options()):
        pass
    before = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({"options": {"learning_rate": 0.1, "inner": {}, "gone": 1}}))
    with run_folder(tmp_path, Options()):
        assert json.loads((tmp_path / "config.json").read_text()) == before


def test_what_stands_aside_keeps_its_name_and_nothing_is_overwritten(tmp_path, capsys):
    for content in ("first", "second"):
        for name in ("plans/000001.json", "episodes/000001/a.jsonl"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(content)
        set_aside(
            tmp_path, [tmp_path / "plans/000001.json", tmp_path / "episodes/000001", tmp_path / "no"], "another's"
        )
    set_aside(tmp_path, [tmp_path / "no"], "nothing to move")
    stale = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*.json*")}
    assert stale == {
        "stale/000/plans/000001.json": "first", "stale/000/episodes/000001/a.jsonl": "first",
        "stale/001/plans/000001.json": "second", "stale/001/episodes/000001/a.jsonl": "second",
    }  # fmt: skip
    said = capsys.readouterr().out.splitlines()
    assert said == [
        f"moved to {tmp_path}/stale/{n}: plans/000001.json, episodes/000001 (another's)" for n in ("000", "001")
    ]


@pytest.mark.parametrize("stop", [UserError("no data"), KeyboardInterrupt()])
def test_a_start_that_made_nothing_does_not_refuse_the_corrected_command(tmp_path, stop):
    for folder in (tmp_path / "runs" / "new", tmp_path):
        with pytest.raises(type(stop)), run_folder(folder, Options(max_steps=2)):
            raise stop
        assert list(tmp_path.iterdir()) == []
    with run_folder(tmp_path, Options(max_steps=4)):
        (tmp_path / "plans").mkdir()
