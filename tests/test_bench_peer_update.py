"""The comparison with TRL's update: which of its micro-batches counts, and what is told where it can't be made."""

import pytest

from bench import peer_update
from bench.peer_update import BenchOptions, main, measured
from forage.agent.episode import write_episodes
from forage.errors import UserError
from forage.policy.adapters import newest_adapter
from tests.factories import EPISODE


def test_the_best_speed_and_the_least_memory_of_each_count(tiny, tmp_path, monkeypatch, capsys):
    """Our fastest is 3 times as fast as its fastest, and our leanest needs half of what its leanest does."""
    figures = {
        "ours, shared 2048": (300, 400), "ours, shared 512": (200, 100), "TRL, 1 a micro-batch": (40, 200),
        "TRL, 8 a micro-batch": (100, 900),
    }  # fmt: skip
    commands = []

    def given(name, command):
        commands.append([str(part) for part in command])
        return dict(zip(("rate", "mib"), figures[name], strict=True))

    (tmp_path / "python").touch()
    monkeypatch.setattr(peer_update, "PEERS", tmp_path / "python")
    monkeypatch.setattr(peer_update, "measured", given)
    write_episodes(tmp_path / "episodes.jsonl", [EPISODE])
    with pytest.raises(SystemExit) as ended:
        main(BenchOptions(tiny / "policy", tmp_path / "episodes.jsonl", batches=(1, 8)))
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert "tokens/s, the fastest of each 3 (bar 3) ok; TRL / our peak memory, the leanest of each 2 (bar 2)" in printed
    assert [command[-1] for command in commands] == ["1", "1", "1", "8"]  # one question, then TRL's batches
    assert str(newest_adapter(tiny / "policy")) in commands[2]  # both train the same adapter
    assert commands[2][commands[2].index("--dtype") + 1] in ("float32", "bfloat16")


def test_what_is_missing_or_fails_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(peer_update, "PEERS", tmp_path / "python")
    with pytest.raises(UserError, match="python is missing, which has TRL; run: make bench-env"):
        main(BenchOptions())
    with pytest.raises(UserError, match="TRL failed: out of luck"):
        measured("TRL", ["sh", "-c", "echo out of luck >&2; exit 3"])
