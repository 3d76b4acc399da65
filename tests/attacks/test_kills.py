"""Every script, killed at moments chosen at random and started again, comes to the end of an undisturbed run."""

import os
import random
import re
import signal
import time
from pathlib import Path

import pytest

from tests.attacks.targets import contents, differences
from tests.kills import start, start_ranks
from tests.tiny_training import TINY

# Killed, and what became of it


def kill(script, arena, changes, seconds, draw):
    """Start a script and kill it at a change drawn at random, or after a share of its time; say where."""
    if draw.random() < 0.8:
        started = script.start(arena, {draw.randint(1, changes): signal.SIGKILL})
        status = started.wait()
    else:  # here and there by the clock, which reaches what is written by libraries outside Python
        started = script.start(arena)
        time.sleep(draw.random() * seconds)
        started.process.kill()
        status = started.wait()
    assert status in (0, -signal.SIGKILL) or script.is_finished(started), started.said[-3000:]
    return started.last


def complete(script, arena):
    """Start the same command again: it must come to its end."""
    started = script.start(arena)
    assert started.wait() == 0 or script.is_finished(started), started.said[-3000:]


def attack(script, arena, undisturbed, kills, seed):
    """Kill a script at random moments, every third time twice in a row; return where, and what differed in the end."""
    whole, changes, seconds, _ = undisturbed
    draw, found, tried = random.Random(seed), {}, 0
    while tried < kills:
        script.fresh(arena)
        places = [kill(script, arena, changes, seconds, draw) for _ in range(1 + (tried % 3 == 2))]
        complete(script, arena)
        tried += len(places)
        found[" and ".join(places)] = differences(whole, script.look(arena))
    same = sum(not names for names in found.values())
    print(f"killed {tried} times: {same} of {len(found)} came to the same end, {len(found) - same} to another")
    return {place: names for place, names in found.items() if names}


KILLS = {
    "data_prep": 3, "store": 3, "collection": 3, "create": 3, "merge": 3, "sft": 3, "grpo": 6, "ppo_own": 3,
    "ppo_trl": 1, "evaluate": 3,
}  # fmt: skip


@pytest.fixture(scope="module", params=KILLS)
def name(request):
    """So all tests of a script come one after the other, in one process, and share its undisturbed run."""
    return request.param


@pytest.mark.slow
def test_a_killed_script_comes_to_the_end_of_an_undisturbed_one(ground, undisturbed, name):
    _, arena, scripts = ground
    assert attack(scripts[name], arena, undisturbed(name), KILLS[name], seed=17) == {}


# Stopped, interrupted, started twice


def wait_until_stopped(started):
    while (state := Path(f"/proc/{started.pid}/stat").read_text().rpartition(")")[2].split()[0]) != "T":
        assert state != "Z", started.said[-3000:]
        time.sleep(0.01)


@pytest.mark.slow
def test_of_two_starts_one_gets_a_line_and_nothing_is_damaged(ground, undisturbed, name):
    _, arena, scripts = ground
    script, (whole, changes, *_) = scripts[name], undisturbed(name)
    first = script.start(script.fresh(arena), {changes * 9 // 10: signal.SIGSTOP})
    wait_until_stopped(first)
    second = script.start(arena)
    if name == "evaluate":  # which several processes play together: the second one finishes what the first began
        assert second.wait() == 0, second.said[-3000:]
    else:
        assert second.wait() == 1, second.said[-3000:]
        assert re.fullmatch("error: .* (another|other) .*", second.said.splitlines()[-1])
    assert "Traceback" not in second.said
    os.kill(first.pid, signal.SIGCONT)
    assert first.wait() == 0, first.said[-3000:]
    assert differences(whole, script.look(arena)) == []


# Several processes


class Service:
    """A trainer and the worker that plays for it, both on one run folder."""

    def __init__(self, given, arena):
        shared = ("--data", given / "data", "--policy", given / "policy", "--run-dir", arena / "run")
        play = ("--engine", "local", "--mode", "sparse", "--max-turn-tokens", "12", "--max-turns", "2", "--batch-size",
                "3", "--num-rollouts", "4", "--worker", "a", "--concurrency", "1")  # fmt: skip
        module = ("-m", "tests.tiny_training")
        self.arena, self.commands = arena, {
            "trainer": (*module, "train", *shared, *TINY, "--max-steps", "3", "--rollouts", "service"),
            "worker": (*module, "play", *shared, "--follow", *play),
        }  # fmt: skip

    def run(self, signals):
        """Start both, start again whichever dies of its signal, and wait for the end; the number of changes of each."""
        running = {name: start(command, self.arena, signals.get(name)) for name, command in self.commands.items()}
        waiting = dict(signals)
        while waiting:  # one may have to start again before the other makes the change at which it dies
            for name in [name for name in waiting if running[name].process.exitcode is not None]:
                waiting.pop(name)
                assert running[name].wait() == -signal.SIGKILL, running[name].said[-3000:]
                running[name] = start(self.commands[name], self.arena)
            time.sleep(0.01)
        for started in running.values():
            assert started.wait() == 0, started.said[-3000:]
        return {name: started.changes for name, started in running.items()}

    def contents(self):
        """Without claims, which tell who played when."""
        return {name: value for name, value in contents(self.arena).items() if "/claims-" not in name}


@pytest.fixture(scope="module")
def service_undisturbed(ground):
    """(contents, each process's number of changes)"""
    given, arena, scripts = ground
    service = Service(given, arena)
    scripts["grpo"].fresh(arena)
    changes = service.run({})
    return service.contents(), changes


def outline(found):
    """What a killed worker can't change: which files there are, how much was played, and the first step's tokens.

    A question that is played beside others than before has log-probabilities that differ in their last bits, and so
    have the adapters learnt from them. A worker that was started again writes to a~2, which is taken as part of a.
    """
    outlined = {}
    for name, value in found.items():
        file, part = name.replace("/a~2.", "/a."), outline_of(name, value)
        outlined[file] = outlined.get(file, {}) | part if isinstance(part, dict) else part
    return outlined


def outline_of(name, value):
    if "episodes/000000" in name:
        return {row["id"]: row["ids"] for row in value}
    if "training_stats" in name:
        [stats] = value
        return stats["step"], stats["groups"]["total"], stats["episodes"]["count"]
    return "there"


@pytest.mark.slow
@pytest.mark.parametrize("names", [("trainer",), ("worker",), ("trainer", "worker")])
def test_a_killed_trainer_or_worker_of_a_service_is_started_again(ground, service_undisturbed, names):
    given, arena, scripts = ground
    service, draw, (whole, changes) = Service(given, arena), random.Random(17), service_undisturbed
    scripts["grpo"].fresh(arena)
    service.run({name: {draw.randint(1, changes[name] * 3 // 4): signal.SIGKILL} for name in names})
    found = service.contents()
    if "worker" in names:
        assert differences(outline(whole), outline(found)) == []
    else:
        assert differences(whole, found) == []


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["fsdp2", "zero3"])
def test_a_killed_process_group_comes_to_the_end_of_an_undisturbed_one(ground, sharding):
    _, arena, scripts = ground
    script = scripts["grpo"]
    command = (*script.command, "--sharding", sharding)
    script.fresh(arena)
    ranks = start_ranks(command, arena)
    assert [rank.wait() for rank in ranks] == [0, 0], ranks[0].said[-3000:]
    whole, changes = contents(arena), ranks[0].changes
    script.fresh(arena)
    died = start_ranks(command, arena, {random.Random(17).randint(changes // 4, changes): "group"})
    assert [rank.wait() for rank in died] == [-signal.SIGKILL] * 2
    ranks = start_ranks(command, arena)
    assert [rank.wait() for rank in ranks] == [0, 0], ranks[0].said[-3000:]
    assert differences(whole, contents(arena)) == []
