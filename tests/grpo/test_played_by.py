"""Who played how much how fast, by hand."""

from dataclasses import replace

from forage.grpo.reporting import server_figures, worker_figures
from tests.factories import EPISODE


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
