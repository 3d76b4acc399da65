"""Who played how much how fast, by hand."""

from dataclasses import replace

from forage.grpo.reporting import server_figures, with_waits, worker_figures
from tests.factories import EPISODE

KINDS = ("backpressure", "tail")


def episode(worker, into_plan, sampled, server=""):
    mask = (1,) * sampled + (0,) * (10 - sampled)
    return replace(EPISODE, mask=mask, worker=worker, server=server, seconds={"into_plan": into_plan})


PLAYED = [
    episode("a", 1.0, 3, "gpu1:8100"),
    episode("a", 4.0, 5, "gpu2:8100"),
    episode("b", 2.0, 1, "gpu1:8100"),
]


def test_a_workers_rate_is_of_the_time_until_its_last_group():
    assert worker_figures(PLAYED) == {
        "a": {"episodes": 2, "tokens_per_s": 2.0}, "b": {"episodes": 1, "tokens_per_s": 0.5}
    }  # fmt: skip


def test_a_servers_rate_is_the_sum_of_its_workers():
    assert server_figures(PLAYED) == {
        "gpu1:8100": {"episodes": 2, "tokens_per_s": round(3 / 4 + 1 / 2, 1)},
        "gpu2:8100": {"episodes": 1, "tokens_per_s": round(5 / 4, 1)},
    }


def test_episodes_of_an_earlier_version_name_nobody():
    assert worker_figures([EPISODE]) == server_figures([EPISODE]) == {}
    assert worker_figures([]) == {}


def test_a_worker_that_only_waited_is_there():
    played = {"b": {"episodes": 2, "tokens_per_s": 7.0}}
    assert with_waits(played, {"a": {"backpressure": 1.26, "tail": 3.0}}, KINDS) == {
        "a": {"episodes": 0, "tokens_per_s": 0.0, "backpressure": 1.3, "tail": 3.0},
        "b": {"episodes": 2, "tokens_per_s": 7.0, "backpressure": 0.0, "tail": 0.0},
    }
    assert with_waits({}, {}, KINDS) == {}
