"""What a worker waits, by a clock of the test, in its file and as the trainer reads it."""

import asyncio

import pytest

from forage.rollout import waits as module
from forage.rollout.waits import Waits, read_waits, waited_since, waits_path
from tests.factories import Clock


@pytest.fixture
def clock(monkeypatch):
    """Sleeping sets it, and takes no time."""
    clock = Clock()

    async def sleep(seconds):
        clock.seconds += seconds

    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    return clock


def wait(waits, kind, *seconds):
    async def all_of_them():
        for each in seconds:
            await waits.sleep(kind, each)

    asyncio.run(all_of_them())


def test_a_wait_is_written_now_and_then_and_at_its_end(tmp_path, clock):
    path = waits_path(tmp_path, "a")
    path.parent.mkdir()
    waits = Waits(path, clock)
    assert waits.words() == ""
    waits.save()
    assert not path.exists()  # nothing to say
    wait(waits, "backpressure", 1, 1, 1)
    assert read_waits(tmp_path) == {}
    wait(waits, "backpressure", 1, 1, 1)
    assert read_waits(tmp_path) == {"a": {"backpressure": 5.0, "tail": 0.0}}
    wait(waits, "tail", 2)
    waits.save()
    assert read_waits(tmp_path) == {"a": {"backpressure": 6.0, "tail": 2.0}}
    assert waits.words() == "6 s for the trainer, 2 s for other workers"
    assert [part.name for part in path.parent.iterdir()] == ["a.json"]


def test_what_a_power_cut_left_counts_as_nothing(tmp_path):
    folder = waits_path(tmp_path, "a").parent
    assert read_waits(tmp_path) == {}
    folder.mkdir()
    good = '{"backpressure": 1.5, "tail": 0}'
    broken = ("", "[]", "null", '{"tail": 1}', '{"backpressure": NaN, "tail": 0}', '{"backpressure": -1, "tail": 0}',
              '{"backpressure": "x", "tail": 0}', "\xff")  # fmt: skip
    for number, text in enumerate(broken):
        (folder / f"broken-{number}.json").write_bytes(text.encode("latin-1"))
    for name in ("host.name-2.json", ".half.json.part", ".hidden.json", "host.lock"):
        (folder / name).write_text(good)
    assert read_waits(tmp_path) == {"host.name-2": {"backpressure": 1.5, "tail": 0.0}}


def test_only_what_was_waited_in_between_counts():
    def of(backpressure, tail=0.0):
        return {"backpressure": backpressure, "tail": tail}

    before = {"a": of(10.0, 1.0), "b": of(10.0), "c": of(5.0), "gone": of(9.0)}
    now = {"a": of(14.0, 1.0), "b": of(3.0, 2.0), "c": of(5.0), "new": of(0.5)}
    assert waited_since(before, now) == {"a": of(4.0), "b": of(3.0, 2.0), "new": of(0.5)}
    assert waited_since({}, {}) == {}
