"""A run folder is one process's, under one set of options."""

import fcntl
import json
from dataclasses import dataclass, field

import pytest

from forage.errors import UserError
from forage.runs.run_folder import flat, run_folder


@dataclass
class Inner:
    top_k: int = 1
    api_key: str = "secret"


@dataclass
class Options:
    learning_rate: float = 0.1
    inner: Inner = field(default_factory=Inner)
    max_steps: int = 3


def test_options_and_code_are_kept(tmp_path):
    with run_folder(tmp_path / "run", Options()):
        pass
    kept = json.loads((tmp_path / "run" / "config.json").read_text())
    assert kept == {"learning_rate": 0.1, "inner": {"top_k": 1}, "max_steps": 3}
    assert (tmp_path / "run" / "code.diff").exists()
    assert "secret" not in (tmp_path / "run" / "config.json").read_text()
    assert flat(kept) == {"learning_rate": 0.1, "inner.top_k": 1, "max_steps": 3}


def test_a_run_goes_on_under_its_own_options_but_for_the_free_ones(tmp_path):
    with run_folder(tmp_path, Options()):
        pass
    with run_folder(tmp_path, Options(max_steps=9), free=["max_steps"]):
        assert json.loads((tmp_path / "config.json").read_text())["max_steps"] == 9
    says = "was begun with --top-k 1, not 2; give that, or another --run-dir"
    with pytest.raises(UserError, match=says), run_folder(tmp_path, Options(inner=Inner(2))):
        pass


def test_an_option_newer_than_the_run_does_not_stop_it(tmp_path):
    with run_folder(tmp_path, Options()):
        pass
    before = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({"learning_rate": 0.1, "inner": {}, "gone": 1}))
    with run_folder(tmp_path, Options()):
        assert json.loads((tmp_path / "config.json").read_text()) == before


def test_two_processes_do_not_train_in_one_folder(tmp_path):
    with (tmp_path / ".lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="is in use by another trainer"), run_folder(tmp_path, Options()):
            pass


def test_what_a_killed_process_left_half_written_is_cleared(tmp_path):
    with run_folder(tmp_path, Options()):
        pass
    (tmp_path / "adapters" / ".v000003.x1").mkdir(parents=True)
    (tmp_path / "state" / ".000003.x2").mkdir(parents=True)
    (tmp_path / "adapters" / "v000002").mkdir()
    with run_folder(tmp_path, Options()):
        pass
    assert [p.name for p in (tmp_path / "adapters").iterdir()] == ["v000002"]
    assert list((tmp_path / "state").iterdir()) == []


@pytest.mark.parametrize("part", ["adapters", "state"])
def test_a_run_whose_options_are_unknown_is_refused(tmp_path, part):
    (tmp_path / part).mkdir()
    says = "holds a run but no config.json.*remove all of"
    with pytest.raises(UserError, match=says), run_folder(tmp_path, Options()):
        pass
    assert [path.name for path in tmp_path.iterdir() if path.name != ".lock"] == [part]


@pytest.mark.parametrize("content", ["{", "[]"])
def test_broken_options_are_told(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with (
        pytest.raises(UserError, match=r"config.json is broken \(.*put it back, or give"),
        run_folder(tmp_path, Options()),
    ):
        pass
    assert (tmp_path / "config.json").read_text() == content


@pytest.mark.parametrize("stop", [UserError("no data"), KeyboardInterrupt()])
def test_a_start_that_made_nothing_does_not_refuse_the_corrected_command(tmp_path, stop):
    for folder in (tmp_path / "runs" / "new", tmp_path):
        with pytest.raises(type(stop)), run_folder(folder, Options(max_steps=2)):
            raise stop
        assert list(tmp_path.iterdir()) == []
    with run_folder(tmp_path, Options(max_steps=4)):
        (tmp_path / "plans").mkdir()


def test_a_stopped_run_that_holds_something_keeps_its_options(tmp_path):
    (tmp_path / "plans").mkdir()
    with pytest.raises(KeyboardInterrupt), run_folder(tmp_path, Options(max_steps=2)):
        raise KeyboardInterrupt
    with (
        pytest.raises(UserError, match="was begun with --max-steps 2, not 4"),
        run_folder(tmp_path, Options(max_steps=4)),
    ):
        pass
