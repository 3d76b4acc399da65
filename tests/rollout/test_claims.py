"""Claims: one owner, a restart keeps its own, a dead worker's fall free, many at once never share."""

import errno
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from forage.rollout.plans import Claims
from tests.factories import Clock


def test_one_worker_gets_it_and_keeps_it(tmp_path):
    first, second = Claims(tmp_path / "claims", "a"), Claims(tmp_path / "claims", "b")
    assert first.take("q/1 ü")
    assert not second.take("q/1 ü")
    assert Claims(tmp_path / "claims", "a").take("q/1 ü")  # restarted under its name
    assert first.holds("q/1 ü")
    assert not second.holds("q/1 ü")


@pytest.mark.parametrize("name", ["痛" * 30, "https://example.org/" + "a" * 300, "a" * 240])
def test_ids_of_any_length_can_be_claimed_and_taken_over(tmp_path, name):
    """Also one that differs from another only at its end."""
    clock = Clock()
    first, second = (Claims(tmp_path, worker, clock=clock) for worker in "ab")
    void(clock, tmp_path, [name], first, second)
    assert first.take(name)
    assert not second.take(name)
    assert second.take(name + "b")
    assert first.holds(name)
    assert not first.holds(name + "b")


def test_a_dead_workers_claim_falls_free_after_its_lease(tmp_path):
    """Again and again: who took it over may die too."""
    clock = Clock()
    dead, other, third = (Claims(tmp_path, name, lease=60, clock=clock) for name in "abc")
    assert dead.take("q")
    assert not other.take("q")  # its lease begins when another looks
    clock.seconds = 50
    assert not other.take("q")
    assert not third.take("q")
    clock.seconds = 70
    assert other.take("q")
    assert not third.take("q")
    assert not dead.holds("q")
    dead.refresh("q")  # it only slept: it must not take anything back
    assert other.holds("q")
    clock.seconds = 140
    assert third.take("q")
    assert not other.holds("q")


@pytest.mark.parametrize("off", [-3600, 0, 3600])
def test_a_refreshed_claim_stays_whatever_another_machines_clock_says(tmp_path, off):
    """An hour behind, a live worker's claim looked long expired; an hour ahead, a dead one's blocked for an hour."""
    clock = Clock()
    owner, other = (Claims(tmp_path, name, lease=60, clock=clock) for name in "ab")
    assert owner.take("q")
    os.utime(tmp_path / "q", (time.time() + off,) * 2)
    assert not other.take("q")
    clock.seconds = 50
    owner.refresh("q")
    for clock.seconds in (50, 100):
        assert not other.take("q")
    clock.seconds = 111
    assert other.take("q")


def test_a_slow_look_at_a_void_claim_takes_nothing_away(tmp_path, monkeypatch):
    """Between the slow worker's look and its claim, a fast one takes the question over."""
    clock = Clock()
    slow, fast = (Claims(tmp_path, name, clock=clock) for name in ("slow", "fast"))
    void(clock, tmp_path, ["q"], slow, fast)
    link, taken = os.link, []

    def late(source, target):
        if Path(source).read_text() == "slow":
            taken.append(fast.take("q"))
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    assert not slow.take("q")
    assert taken == [True]
    assert fast.holds("q")


def test_names_of_questions_and_of_later_claims_do_not_collide(tmp_path):
    """The claim after q's is q~1, which is a question's name as well."""
    clock = Clock()
    first, second = (Claims(tmp_path, name, clock=clock) for name in "ab")
    void(clock, tmp_path, ["q"], first, second)
    assert first.take("q~1")
    assert second.take("q")
    assert first.holds("q~1")
    assert not first.holds("q")


def void(clock, folder, names, *watching):
    """A dead worker's claims of these questions, which all who watch have seen for longer than a lease."""
    dead = Claims(folder, "dead")
    for name in names:
        dead.take(name)
        assert not any(claims.take(name) for claims in watching)
    clock.seconds += dead.lease + 1


def test_many_at_once_never_share(tmp_path):
    """Fifty questions, eight workers, half of the claims void when they start; ten times over."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads cut in as often as they can
    try:
        for turn in range(10):
            assert shared_out(tmp_path / str(turn)) == list(range(50))
    finally:
        sys.setswitchinterval(interval)


def shared_out(folder):
    """What all workers got."""
    clock, taken = Clock(), {name: [] for name in "abcdefgh"}
    workers = {name: Claims(folder, name, clock=clock) for name in taken}
    void(clock, folder, map(str, range(0, 50, 2)), *workers.values())
    barrier = threading.Barrier(len(taken))

    def work(name):
        barrier.wait()
        taken[name] = [number for number in range(50) if workers[name].take(str(number))]

    threads = [threading.Thread(target=work, args=(name,)) for name in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(number for numbers in taken.values() for number in numbers)


def test_a_claim_that_cannot_be_seen_yet_still_counts(tmp_path, monkeypatch):
    """What another machine made may appear late; the file system's server refuses the second claim all the same."""
    first, second = (Claims(tmp_path, name) for name in "ab")
    assert first.take("q")
    monkeypatch.setattr(Claims, "_last", lambda claims, name: (None, tmp_path / name))
    assert not second.take("q")


def test_without_hard_links_one_worker_gets_it_all_the_same(tmp_path, monkeypatch):
    def refuse(source, target):
        raise OSError(errno.EPERM, "no links")

    monkeypatch.setattr(os, "link", refuse)
    first, second = (Claims(tmp_path, name) for name in "ab")
    assert first.take("q")
    assert first.holds("q")
    assert not second.take("q")
    assert [path.name for path in tmp_path.iterdir()] == ["q"]
