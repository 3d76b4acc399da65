"""run.json: what every start and every worker of a run must agree on; what differs is told in one line."""

import shutil
from dataclasses import replace

import pytest
from safetensors.numpy import load_file, save_file

import grpo_rollout
from forage.agent.episode import read_episodes
from forage.engines.base import EngineOptions
from forage.policy.adapters import adapter_path, list_contents
from forage.rollout.agreement import read_run, write_run
from forage.rollout.options import RolloutOptions, WorkerOptions
from forage.rollout.worker import FINISHED, as_in_run, refuse_change
from forage.runs.stats import read_stats
from forage.store.document_store import DocumentStore
from forage.store.embedder import PACKAGED_EMBEDDER
from forage.store.opening import open_address
from tests.refusals import refused
from tests.tiny import rewards_of_tokens
from tests.tiny_training import tiny_options, train


@pytest.fixture(scope="module")
def begun(tiny, tmp_path_factory):
    """A run of one step, with data and a policy of its own."""
    folder = tmp_path_factory.mktemp("begun")
    for name in ("base", "policy", "data"):
        shutil.copytree(tiny / name, folder / name)
    train(options_of(folder))
    return folder


@pytest.fixture
def run(begun, tmp_path):
    """A copy that a test may change."""
    for name in ("policy", "data", "run"):
        shutil.copytree(begun / name, tmp_path / name)
    return tmp_path


def options_of(folder, **more):
    fewest = {"batch_size": 2, "num_rollouts": 2, "max_turn_tokens": 6, "max_steps": 1, "eval_every": 1}
    return tiny_options(folder, **{"run_dir": folder / "run"} | fewest | more)


def resume(folder, rewards=rewards_of_tokens, **more):
    train(options_of(folder, max_steps=2, **more), rewards)


def play(folder, rewards=rewards_of_tokens, follow=True, **more):
    """A worker of the run, which is finished: one that is let in ends at once."""
    given = RolloutOptions(folder / "data", folder / "policy", EngineOptions(engine="local"), **more)
    grpo_rollout.main(grpo_rollout.Options(given, WorkerOptions(folder / "run", follow=follow)), rewards)


def scale(adapter):
    path = adapter / "adapter_model.safetensors"
    save_file({name: 1.5 * value for name, value in load_file(path).items()}, path)


def changed_low(embedder):
    """rewards_of_tokens, with another meaning of low."""
    return rewards_of_tokens(embedder) | {"low": lambda episodes, questions: [0.25] * len(episodes)}


def only_even(embedder):
    return {"even": rewards_of_tokens(embedder)["even"]}


# The trainer


def test_a_policy_remade_in_place_does_not_resume_the_old_run(run):
    scale(adapter_path(run / "policy", 0))
    list_contents(adapter_path(run / "policy", 0))
    told = r"run was begun with another adapter_weights: give that, or another --run-dir"
    with refused(told):
        resume(run)
    with refused("give this worker the trainer's --policy"):
        play(run)
    train(options_of(run, run_dir=run / "other"))  # the way out


@pytest.mark.parametrize("start", [shutil.copytree, shutil.move])
def test_a_policy_that_was_trained_further_is_still_the_one_the_run_began_with(run, start):
    """Also where the adapter of the start is gone: the run has its own copy."""
    start(adapter_path(run / "policy", 0), adapter_path(run / "policy", 1))
    scale(adapter_path(run / "policy", 1))
    list_contents(adapter_path(run / "policy", 1))
    resume(run)
    play(run)
    assert read_run(run / "run").adapter == "v000000"
    assert [row.step for row in read_stats(run / "run")] == [0, 1]


@pytest.mark.parametrize("name", ["train.jsonl", "store/chunks.jsonl"])
def test_data_remade_in_place_is_noticed(run, name):
    path = run / "data" / name
    before = path.read_text()
    path.write_text(before.replace("emedy 1", "emedy 9").replace("emedy 7", "emedy 9"))
    shown = name.partition("/")[0].removesuffix(".jsonl")
    with refused(rf"run was begun with another data.{shown}: give that, or another --run-dir"):
        resume(run)
    with refused(rf"another data.{shown}: give this worker the trainer's --policy, --data"):
        play(run)
    path.write_text(before)  # the way out
    resume(run)


@pytest.mark.parametrize("start", [resume, play])
def test_a_store_that_is_edited_between_the_look_and_the_opening_is_noticed(run, monkeypatch, start):
    def edited(address, data):
        with DocumentStore.open(data / "store") as store:
            store.add(["A rash."])
        return open_address(address, data)

    monkeypatch.setattr("forage.rollout.rollout.open_address", edited)
    with refused("store was changed just now; start the same command again"):
        start(run)
    monkeypatch.undo()
    with refused(r"another data\.store"):
        start(run)


@pytest.mark.parametrize(
    ("rewards", "says"),
    [
        (changed_low, "another rewards.low"),
        (only_even, "a reward 'low'"),
    ],
)
def test_changed_rewards_are_named(run, rewards, says):
    with refused(rf"run was begun with {says}: give that, or another --run-dir \(--policy"):
        resume(run, rewards)
    with refused(rf"{says}: give this worker the trainer's --policy, --data and grpo_"):
        play(run, rewards)
    assert (run / "run" / "finished").exists()  # nothing was begun


# The embedder


def test_the_embedder_is_chosen_once(run, monkeypatch):
    given = []

    def rewards(embedder):
        given.append(embedder.name)
        return rewards_of_tokens(embedder)

    monkeypatch.setattr("forage.store.embedder.choose_embedder", lambda: "another/embedder")
    resume(run, rewards)
    play(run, rewards)
    assert set(given) == {PACKAGED_EMBEDDER}


# Workers


def test_a_worker_plays_as_its_run_does_and_says_so(run, capsys):
    manifest = read_run(run / "run")
    given = RolloutOptions(concurrency=3, num_rollouts=4, temperature=0.5, seed=7)
    options = as_in_run(given, manifest, run / "run")
    assert (options.num_rollouts, options.batch_size, options.temperature, options.seed) == (2, 2, 1.0, 0)
    assert (options.weights, options.concurrency) == ((), 3)
    said = capsys.readouterr().out
    assert "run plays with num_rollouts 2, batch_size 2, temperature 1.0, seed 0\n" in said
    assert as_in_run(options, manifest, run / "run") == options
    assert capsys.readouterr().out == ""
    assert as_in_run(given, None, run / "run") == given


def test_a_worker_runs_no_code_that_only_the_run_names(run):
    manifest = read_run(run / "run")
    manifest = replace(
        manifest, options=manifest.options | {"rollout": manifest.options["rollout"] | {"weights": ["a:b=1"]}}
    )
    with refused("if you trust it, add --weights a:b=1"):
        as_in_run(RolloutOptions(), manifest, run / "run")
    assert as_in_run(RolloutOptions(weights=("a:b=1",)), manifest, run / "run").weights == ("a:b=1",)


def test_one_step_is_played_as_the_run_plays_and_the_run_goes_on_as_it_was_begun(run):
    before = read_run(run / "run")
    play(run, follow=False)
    [path] = (run / "run" / "episodes" / "000001").glob("*.jsonl")
    assert len(list(read_episodes(path))) == 4
    resume(run)  # and counts for it
    assert read_stats(run / "run")[1].episodes["count"] == 4
    after = read_run(run / "run")
    assert after == replace(before, options=after.options)
    assert (after.adapter, after.weights) == ("v000000", {"even": 1.0, "low": 1.0})
    assert (before.options["max_steps"], after.options["max_steps"]) == (1, 2)


def test_a_worker_notices_when_the_trainer_goes_on_with_other_rewards(run):
    known = read_run(run / "run")
    refuse_change(run / "run", known)
    write_run(run / "run", replace(known, options={"max_staleness": 1}))
    refuse_change(run / "run", known)  # of no consequence for what is played
    write_run(run / "run", replace(known, rewards={**known.rewards, "low": "other"}))
    with refused(r"run.json has changed since this worker started; start the worker again"):
        refuse_change(run / "run", known)


def test_a_worker_refuses_a_run_that_plays_its_episodes_itself(run):
    (run / "run" / FINISHED).unlink()
    with refused("--rollouts service"):
        play(run)
