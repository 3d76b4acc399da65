"""Progress is whole lines, few of them, and none for what is soon done."""

from forage import progress
from forage.progress import Counting


def test_a_log_gets_whole_lines(monkeypatch, capsys):
    monkeypatch.setattr(progress, "LOG_EVERY", 0.0)
    with Counting("pages", 1003, 1000) as bar:
        for _ in range(3):
            bar.update()
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(";")[0] for line in lines] == [f"pages: done 1,00{n} of 1,003" for n in (1, 2, 3)]
    assert lines[-1] == "pages: done 1,003 of 1,003; left 0 s"
    assert all(line.startswith("pages: done 1,00") for line in lines)
