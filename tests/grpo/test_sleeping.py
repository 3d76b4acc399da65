"""A trainer whose server sleeps during updates, against a stand-in server: vLLM's build for CPUs has no sleep mode."""

import math
import zlib

import pytest

from forage.engines.base import EngineOptions
from forage.grpo import served, training
from forage.runs.stats import read_stats
from tests.options import with_options
from tests.refusals import refused
from tests.tiny_training import adapter_bytes, stats_of, tiny_options, train

SLEEP, WAKE = "/sleep?level=1&mode=wait", "/wake_up"


def noise(body):
    """Tokens that depend on everything an episode's next turn depends on, the adapter's weights included."""
    seed = zlib.crc32(f"{body['model']} {body['prompt']} {body['seed']} {body['temperature']}".encode())
    ids = [3 + seed // 7**place % 500 for place in range(min(5, body["max_tokens"] - 1))]
    ids = [*ids, body["stop_token_ids"][0]]
    return {"token_ids": ids, "logprobs": {"token_logprobs": [-(seed % 97) / 97 - 0.1] * len(ids)}}


@pytest.fixture
def fake(fake, monkeypatch):
    monkeypatch.setattr(served, "FOREIGN", math.inf)  # of another model is all that this server says
    fake.sleep_mode, fake.says = True, noise
    return fake


def options_of(tiny, run_dir, fake, **more):
    engine = EngineOptions("vllm", (fake.url,), patience=120.0)
    return tiny_options(tiny, run_dir, **{"engine": engine, "vllm_sleep": True} | more)


def turns_of(fake):
    """What happened in turn, completions in a row as one."""
    turns = [turn for place, turn in enumerate(fake.turns) if [turn] != fake.turns[max(0, place - 1) : place]]
    fake.turns.clear()
    return turns


def test_a_run_in_turns_is_that_of_a_server_that_stays_awake(tiny, tmp_path, fake, monkeypatch):
    """Equal statistics and adapters; only while nothing is updated is the server awake."""
    during, real = [], training.update

    def watched(*given):
        during.append(fake.asleep)
        return real(*given)

    monkeypatch.setattr(training, "update", watched)
    in_turns = options_of(tiny, tmp_path / "turns" / "run", fake)
    train(in_turns)
    assert during == [True] * 3
    assert not fake.asleep
    play = ["load", "completion"]
    again = ["unload"]  # and loaded: the adapter that it had, as nothing is known of its memory
    assert turns_of(fake) == [
        *play, SLEEP,  # step 0, with the evaluation before it
        WAKE, *again, "load", "unload", "completion", SLEEP,
        WAKE, *again, "load", "unload", "completion", SLEEP,  # step 2, with an evaluation
        WAKE, *again, "load", "unload", "completion",  # the last evaluation; then awake for whoever comes next
    ]  # fmt: skip
    awake = options_of(tiny, tmp_path / "awake" / "run", fake, vllm_sleep=False)
    train(awake)
    assert during[3:] == [False] * 3
    assert not {SLEEP, WAKE} & set(fake.turns)
    assert stats_of(in_turns.run_dir) == stats_of(awake.run_dir)
    assert adapter_bytes(in_turns.run_dir, 3) == adapter_bytes(awake.run_dir, 3)
    assert adapter_bytes(in_turns.run_dir, 3) != adapter_bytes(in_turns.run_dir, 0)
    for stats in read_stats(in_turns.run_dir):
        assert min(stats.seconds["sleep"], stats.seconds["wake"]) > 0
    assert not {"sleep", "wake"} & set(read_stats(awake.run_dir)[0].seconds)


# Options


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"rollouts": "service"}, "--vllm-sleep works in lock-step only.*give --rollouts own"),
        ({"engine": EngineOptions("local")}, "--vllm-sleep needs a vLLM server; give --engine vllm"),
    ],
)
def test_what_does_not_go_with_sleep_is_refused(tiny, tmp_path, more, told):
    good = tiny_options(tiny, tmp_path / "run", engine=EngineOptions("vllm"), vllm_sleep=True)
    good.check()
    with refused(told):
        with_options(good, **more).check()
