"""Servers that sleep between rollouts, against a stand-in server: vLLM's build for CPUs refuses --enable-sleep-mode.

tests/integration/test_sleeping.py has the same routes of a real server, which frees nothing. Whether a GPU's memory is
freed, and is what it was afterwards, has not been seen: what can go wrong there is played by the stand-in.
"""

import threading
from functools import partial

import numpy as np
import pytest
from safetensors.numpy import save_file

from forage.engines.base import EngineOptions, Sample
from forage.engines.vllm import alike
from tests.misbehaving_vllm import REQUEST, RIGHT, with_engine
from tests.refusals import refused

SLEEP, WAKE = "/sleep?level=1&mode=wait", "/wake_up"


@pytest.fixture
def fake(fake):
    fake.sleep_mode = True
    return fake


@pytest.fixture
def adapter(tmp_path):
    """A folder whose weights change tokens."""
    save_file({"x.lora_B.weight": np.ones(4, np.float32)}, tmp_path / "adapter_model.safetensors")
    return tmp_path


def options_of(fake):
    return EngineOptions(urls=(fake.url,), patience=60.0)


with_engine = partial(with_engine, sleeps=True)


async def slept(engine, adapter):
    await engine.load_adapter("run-v000001", adapter)
    await engine.sleep()


@pytest.mark.parametrize("sleep_mode", [None, False])
def test_a_server_without_sleep_mode_is_refused(fake, sleep_mode):
    """False: started without the flag, it has the routes, says that it sleeps, and frees nothing."""
    fake.sleep_mode = sleep_mode
    told = (
        rf"{fake.url} has no sleep mode; start it with --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1, on a private "
        r"network only, .* or leave out --vllm-sleep$"
    )
    with refused(told):
        with_engine(lambda engine: engine.sleep(), fake)
    assert fake.turns == []


def test_a_base_whose_memory_is_spoilt_ends_in_one_line(fake, adapter):
    async def act(engine):
        await slept(engine, adapter)
        fake.spoilt_base = True
        await engine.wake()

    with refused("gives other answers than before it slept, so its memory was corrupted"):
        with_engine(act, fake)
    assert fake.turns == ["load", SLEEP, WAKE]


def test_a_server_that_dies_asleep_and_comes_back_awake_is_probed_and_loads_its_adapter(fake, adapter):
    async def act(engine):
        await slept(engine, adapter)
        fake.stop()
        fake.asleep, fake.probes = False, []
        fake.adapters.clear()
        threading.Timer(0.7, fake.start).start()
        await engine.wake()
        assert len(fake.probes) == 6  # three prompts at two temperatures
        return await engine.generate(REQUEST)

    assert with_engine(act, fake) == RIGHT
    assert fake.turns == ["load", SLEEP, "load", "completion"]


def test_the_next_start_wakes_what_a_killed_trainer_left_asleep(fake, adapter):
    fake.asleep = True
    assert with_engine(lambda engine: engine.generate(REQUEST), fake) == RIGHT
    assert fake.turns == [WAKE, "completion"]


def test_a_trainer_that_ends_leaves_the_server_awake(fake, adapter):
    with_engine(lambda engine: slept(engine, adapter), fake)
    assert not fake.asleep

    async def fails(engine):
        await slept(engine, adapter)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        with_engine(fails, fake)
    assert not fake.asleep


def test_two_trainers_on_one_server_are_refused(fake, adapter):
    async def act(engine):
        await engine.load_adapter("run-v000001", adapter)
        fake.asleep = True  # by the other one
        await engine.sleep()

    with refused("is asleep already; give each trainer a server of its own"):
        with_engine(act, fake)


# Others that use the server


def test_a_server_that_sleeps_is_named_at_once(fake, capsys):
    fake.asleep = True
    with refused("asleep until its trainer wakes it"):
        with_engine(slept, fake, sleeps=False, patience=1.2)
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith(f"waiting for {fake.url} for 0 s now (asleep until its trainer wakes it")


# Answers that say nothing


def test_rounding_is_no_corruption():
    before = Sample((5, 7, 9), (-0.5, -0.1, -2.0), "length")
    assert alike(before, Sample((5, 8, 3), (-0.46, -3.0, -1.0), "length"))  # a near tie fell the other way
    assert not alike(before, Sample((5, 7, 9), (-0.56, -0.1, -2.0), "length"))
    assert not alike(before, Sample((6, 7, 9), (-0.5, -0.1, -2.0), "length"))
