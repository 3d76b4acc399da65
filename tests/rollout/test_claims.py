"""Claims: one owner, a restart keeps its own, a dead worker's fall free, many at once never share."""

import os
import sys
import threading
import time

from forage.rollout.claims import Claims


def test_one_worker_gets_it_and_keeps_it(tmp_path):
    first, second = Claims(tmp_path / "claims", "a"), Claims(tmp_path / "claims", "b")
    assert first.take("q/1 ü")
    assert not second.take("q/1 ü")
    assert Claims(tmp_path / "claims", "a").take("q/1 ü")  # restarted under its name
    assert first.holds("q/1 ü")
    assert not second.holds("q/1 ü")


def test_a_dead_workers_claim_falls_free_after_its_lease(tmp_path):
    """Again and again: who took it over may die too."""
    dead, other, third = (Claims(tmp_path, name, lease=60) for name in "abc")
    assert dead.take("q")
    os.utime(tmp_path / "q", (time.time() - 50,) * 2)
    assert not other.take("q")
    os.utime(tmp_path / "q", (time.time() - 70,) * 2)
    assert other.take("q")
    assert not third.take("q")
    assert not dead.holds("q")
    dead.refresh("q")  # it only slept: it must not take anything back
    assert other.holds("q")
    os.utime(tmp_path / "q~1", (time.time() - 70,) * 2)
    assert third.take("q")
    assert not other.holds("q")


def test_a_refreshed_claim_stays(tmp_path):
    slow, other = Claims(tmp_path, "a", lease=60), Claims(tmp_path, "b", lease=60)
    assert slow.take("q")
    os.utime(tmp_path / "q", (time.time() - 70,) * 2)
    slow.refresh("q")
    assert not other.take("q")


def test_a_slow_look_at_a_void_claim_takes_nothing_away(tmp_path, monkeypatch):
    """Between the slow worker's look and its claim, a fast one takes the question over."""
    Claims(tmp_path, "dead").take("q")
    os.utime(tmp_path / "q", (0, 0))
    slow, fast = Claims(tmp_path, "slow"), Claims(tmp_path, "fast")
    link, taken = os.link, []

    def late(source, target):
        if ".claim.slow." in str(source):
            taken.append(fast.take("q"))
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    assert not slow.take("q")
    assert taken == [True]
    assert fast.holds("q")


def test_names_of_questions_and_of_later_claims_do_not_collide(tmp_path):
    """The claim after q's is q~1, which is a question's name as well."""
    Claims(tmp_path, "dead").take("q")
    os.utime(tmp_path / "q", (0, 0))
    first, second = Claims(tmp_path, "a"), Claims(tmp_path, "b")
    assert first.take("q~1")
    assert second.take("q")
    assert first.holds("q~1")
    assert not first.holds("q")


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
    for number in range(0, 50, 2):
        Claims(folder, "dead").take(str(number))
        os.utime(folder / str(number), (0, 0))
    taken = {name: [] for name in "abcdefgh"}
    barrier = threading.Barrier(len(taken))

    def work(name):
        claims = Claims(folder, name)
        barrier.wait()
        taken[name] = [number for number in range(50) if claims.take(str(number))]

    threads = [threading.Thread(target=work, args=(name,)) for name in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(number for numbers in taken.values() for number in numbers)
