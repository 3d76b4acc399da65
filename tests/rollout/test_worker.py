"""Which adapter a worker plays with, which plan, and where it writes."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

from forage.agent.episode import read_episodes
from forage.policy.adapters import CONTENTS, adapter_path
from forage.rollout.agreement import write_run
from forage.rollout.plans import Claims, Plan, write_plan
from forage.rollout.rollout import EpisodeWriter, load_newest
from forage.rollout.worker import FINISHED, next_plan, play_plans
from tests.factories import EPISODE, MANIFEST, empty_adapter
from tests.refusals import refused


def test_before_anything_is_published_the_adapter_of_the_runs_start_is_played(tmp_path):
    """Not one that was added to the policy since: the run has not begun with that."""
    policy, run_dir = tmp_path / "policy", tmp_path / "run"
    for version in (0, 1):
        adapter_path(policy, version).mkdir(parents=True)
    write_run(run_dir, MANIFEST)
    loaded = []

    async def load_adapter(name, folder):
        loaded.append(folder)

    rollout = SimpleNamespace(engine=SimpleNamespace(load_adapter=load_adapter), options=SimpleNamespace(policy=policy))
    asyncio.run(load_newest(rollout, run_dir))
    assert loaded == [adapter_path(policy, 0)]


class Engine:
    def __init__(self):
        self.loaded = []

    async def load_adapter(self, name, folder):
        self.loaded.append(folder.name)


def load(run_dir, least=0, within=0.05):
    engine = Engine()
    rollout = SimpleNamespace(engine=engine, options=None)
    asyncio.run(load_newest(rollout, run_dir, least, poll=0.01, within=within))
    return engine.loaded


def test_an_adapter_of_which_a_part_is_missing_is_not_loaded(tmp_path):
    """What another machine published may appear file by file, and with wrong bytes."""
    for version in (0, 1):
        empty_adapter(tmp_path, version)
    newer = adapter_path(tmp_path, 1)
    (newer / CONTENTS).write_text('{"files": {"adapter_config.json": 2}, "weights": ""}')
    assert load(tmp_path) == ["v000000"]
    (newer / "adapter_config.json").write_text("{")
    assert load(tmp_path) == ["v000000"]
    (newer / "adapter_config.json").write_text("{}")
    assert load(tmp_path) == ["v000001"]
    (newer / "adapter_model.safetensors").write_bytes(b"other weights than were published")
    assert load(tmp_path) == ["v000000"]


def test_an_adapter_that_never_appears_whole_is_told_by_its_path(tmp_path):
    empty_adapter(tmp_path, 0)
    adapter_path(tmp_path, 1).mkdir()
    with refused(r"adapters/v000001 can't be read whole here after 0 s; check that this machine"):
        load(tmp_path, least=1)


def test_no_plan_is_begun_with_an_adapter_whose_episodes_would_not_count(tmp_path):
    """After a rollback the plan may be seen before the adapter that it asks for."""
    plan = Plan("000009", 9, ("a",), oldest=9)
    write_plan(tmp_path, plan)
    empty_adapter(tmp_path, 8)
    assert next_plan(tmp_path, {}) is None
    empty_adapter(tmp_path, 9)
    assert next_plan(tmp_path, {}) == plan


def test_no_life_of_a_worker_writes_to_an_earlier_ones_file(tmp_path):
    """On another machine the earlier one's last lines may not be seen yet."""
    for life in range(2):
        claims = Claims(tmp_path / "claims", "w")
        assert claims.take("q")
        write = EpisodeWriter(tmp_path, claims)
        write("q", [replace(EPISODE, answer=str(life))])
        write("q", [replace(EPISODE, answer=str(life))])
    lives = {path.name: [e.answer for e in read_episodes(path)] for path in tmp_path.glob("*.jsonl")}
    assert lives == {"w.jsonl": ["0", "0"], "w~2.jsonl": ["1", "1"]}


def test_an_old_word_that_the_run_is_finished_does_not_end_a_worker_with_a_plan(tmp_path, monkeypatch):
    write_plan(tmp_path, plan := Plan("000000", 0, ("a",)))
    empty_adapter(tmp_path, 0)
    (tmp_path / FINISHED).touch()
    played = []

    async def play(rollout, run_dir, plan, name, **_):
        played.append(plan)
        (run_dir / "plans" / "000000.json").unlink()

    monkeypatch.setattr("forage.rollout.worker.play_plan", play)
    rollout = SimpleNamespace(engine=Engine(), options=None)
    asyncio.run(play_plans(rollout, tmp_path, "w"))
    assert played == [plan]
