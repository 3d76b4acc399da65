"""The harness: bars decide, processes that fail say why, and the table passes nothing over."""

import json
import os
import sys

import pytest

from bench import table
from bench.harness import BARS, Bar, alone, finish
from bench.table import Options, Row, measured, share_taken
from tests import ROOT
from tests.refusals import refused


def test_bars_decide_the_exit_status(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv(BARS, str(tmp_path / "bars.json"))
    with pytest.raises(SystemExit) as ended:
        finish([Bar("speed", (2.0, 3.0), 2), Bar("quality", (0.5,))])
    assert ended.value.code == 0
    with pytest.raises(SystemExit) as ended:
        finish([Bar("speed", (1.7, 2.0), 2), Bar("quality", (0.98, 0.99), 1)])
    assert ended.value.code == 1
    assert capsys.readouterr().out.splitlines() == [
        "speed 2.5 (2 to 3) (bar 2, ok); quality 0.5 (stated)",
        "speed 1.85 (1.7 to 2) (bar 2, within its range); quality 0.985 (0.98 to 0.99) (bar 1, SHORT)",
    ]  # fmt: skip
    quality = json.loads((tmp_path / "bars.json").read_text())[1]
    assert quality == {"name": "quality", "figures": [0.98, 0.99], "least": 1}


def killed():
    os.kill(os.getpid(), 9)


def test_a_process_has_a_peak_of_its_own_and_may_be_killed():
    assert alone(len, "abc") == 3
    with refused("the process of killed was killed; is memory enough"):
        alone(killed)


# The table


def run(code):
    return measured(Row("made"), [sys.executable, "-c", f"from bench.harness import Bar, finish; {code}"])


def test_a_row_is_run_and_its_bars_decide(monkeypatch):
    monkeypatch.chdir(ROOT)
    good = run("finish([Bar('a / b', (2.0,), 1)])")
    assert (good.bars, good.reached, good.why) == ((Bar("a / b", (2,), 1),), True, "")
    short = run("finish([Bar('a / b', (2.0,), 3)])")
    assert (short.reached, short.why) == (False, "")
    failed = run("raise SystemExit(3)")
    assert (failed.bars, failed.reached, failed.why) == ((), False, "failed with status 3, as it says above")


def test_a_busy_machine_is_refused(tmp_path, monkeypatch):
    source = tmp_path / "stat"
    source.write_text("cpu  10 0 10 80 0 0")
    later = "cpu  35 0 15 140 10 0"  # of 100 ticks, 60 idle and 10 waiting
    monkeypatch.setattr(table.time, "sleep", lambda _: source.write_text(later))
    assert share_taken(source) == pytest.approx(0.3)
    monkeypatch.setattr(table, "share_taken", lambda: 0.3)
    with refused("other processes take 30% of the cores"):
        table.main(Options())
