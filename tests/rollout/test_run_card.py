"""The run card: what every start and every worker of a run must agree on; what differs is told in one line."""

import asyncio
import json
import shutil
from dataclasses import replace

import pytest
from safetensors.numpy import load_file, save_file

import grpo_rollout
import grpo_train
from forage.agent.episode import read_episodes
from forage.agent.options import SearchOptions
from forage.engines.options import EngineOptions
from forage.errors import UserError
from forage.grpo.options import GuardOptions, TrainOptions, UpdateOptions
from forage.optimizer import MemoryOptions, OptimizerOptions
from forage.policy.adapters import adapter_path
from forage.rollout.options import RolloutOptions, WorkerOptions
from forage.rollout.plans import Plan, plan_path, write_plan
from forage.rollout.play_options import PlayOptions
from forage.rollout.run_card import open_embedder, read_run_card, write_run_card
from forage.rollout.worker import follow_trainer, refuse_change
from forage.runs.stats import read_stats
from forage.store.card import StoreCard
from forage.store.embedder import PACKAGED_EMBEDDER
from forage.store.options import StoreOptions
from tests.options import with_options
from tests.tiny import rewards_of_tokens

pytestmark = pytest.mark.usefixtures("no_plots")


@pytest.fixture(scope="module")
def begun(tiny, tmp_path_factory):
    """A run of one step, with data and a policy of its own."""
    folder = tmp_path_factory.mktemp("begun")
    for name in ("base", "policy", "data"):
        shutil.copytree(tiny / name, folder / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("forage.runs.plots.FIGURES", {})
        grpo_train.main(options_of(folder), rewards_of_tokens)
    return folder


@pytest.fixture
def run(begun, tmp_path):
    """A copy that a test may change, which knows itself under its new path."""
    for name in ("policy", "data", "run"):
        shutil.copytree(begun / name, tmp_path / name)
    path = tmp_path / "run" / "config.json"
    path.write_text(path.read_text().replace(str(begun), str(tmp_path)))
    return tmp_path


def options_of(folder, **more):
    rollout = RolloutOptions(
        data=folder / "data", policy=folder / "policy", engine=EngineOptions(engine="local"), batch_size=2,
        num_rollouts=2, search=SearchOptions(mode="sparse", max_turn_tokens=6, max_turns=2),
    )  # fmt: skip
    update = UpdateOptions(optimizer=OptimizerOptions(0.01), memory=MemoryOptions(token_budget=600))
    options = TrainOptions(
        rollout, update, guard=GuardOptions(on_collapse="warn"), run_dir=folder / "run", max_steps=1, eval_every=1
    )
    return with_options(options, **more)


def resume(folder, rewards=rewards_of_tokens, **more):
    grpo_train.main(options_of(folder, max_steps=2, **more), rewards)


def play(folder, rewards=rewards_of_tokens, follow=True, **more):
    """A worker of the run, which is finished: one that is let in ends at once."""
    given = PlayOptions(folder / "data", folder / "policy", EngineOptions(engine="local"), **more)
    grpo_rollout.main(grpo_rollout.Options(given, WorkerOptions(folder / "run", follow=follow)), rewards)


def scale(adapter):
    path = adapter / "adapter_model.safetensors"
    save_file({name: 1.5 * value for name, value in load_file(path).items()}, path)


def changed_low(embedder):
    """rewards_of_tokens, with another meaning of low."""
    return rewards_of_tokens(embedder) | {"low": lambda episodes, questions: [0.25] * len(episodes)}


def with_more(embedder):
    return rewards_of_tokens(embedder) | {"more": lambda episodes, questions: [0.25] * len(episodes)}


def only_even(embedder):
    return {"even": rewards_of_tokens(embedder)["even"]}


# The trainer


def test_a_run_that_is_resumed_as_it_was_begun(run):
    before = (run / "run" / "run.json").read_bytes()
    resume(run)
    assert (run / "run" / "run.json").read_bytes() == before
    card = json.loads(before)
    assert (card["adapter"], card["num_rollouts"], card["weights"]) == ("v000000", 2, {"even": 1.0, "low": 1.0})


def test_a_policy_remade_in_place_does_not_resume_the_old_run(run):
    scale(adapter_path(run / "policy", 0))
    told = r"run was begun with other weights in .*policy/adapters/v000000; put them back, or give another --run-dir"
    with pytest.raises(UserError, match=told):
        resume(run)
    with pytest.raises(UserError, match="give this worker the trainer's --policy"):
        play(run)
    grpo_train.main(options_of(run, run_dir=run / "other"), rewards_of_tokens)  # the way out


def test_a_policy_that_was_trained_further_is_still_the_one_the_run_began_with(run):
    shutil.copytree(adapter_path(run / "policy", 0), adapter_path(run / "policy", 1))
    scale(adapter_path(run / "policy", 1))
    before = read_run_card(run / "run")
    resume(run)
    play(run)
    assert read_run_card(run / "run") == before
    assert before.adapter == "v000000"
    assert [row.step for row in read_stats(run / "run")] == [0, 1]


@pytest.mark.parametrize("name", ["train.jsonl", "eval.jsonl", "store/chunks.jsonl"])
def test_data_remade_in_place_is_noticed(run, name):
    path = run / "data" / name
    before = path.read_text()
    path.write_text(before.replace("emedy 1", "emedy 9").replace("emedy 7", "emedy 9"))
    shown = name.split("/")[0]
    with pytest.raises(UserError, match=rf"run was begun with another .*data/{shown}; put it back, or give another"):
        resume(run)
    with pytest.raises(UserError, match=rf"another .*data/{shown}; give this worker the trainer's --data"):
        play(run)
    path.write_text(before)  # the way out
    resume(run)


@pytest.mark.parametrize(
    ("rewards", "says"),
    [
        (changed_low, "another definition of reward 'low'"),
        (with_more, "no reward 'more'"),
        (only_even, "reward 'low', which is gone"),
    ],
)
def test_changed_rewards_are_named(run, rewards, says):
    with pytest.raises(UserError, match=rf"run was begun with {says}; restore that, .* with --override-rewards"):
        resume(run, rewards)
    with pytest.raises(UserError, match=rf"{says}; start this worker with the trainer's grpo_rollout.py"):
        play(run, rewards)
    assert (run / "run" / "finished").exists()  # nothing was begun


def test_rewards_in_another_order_keep_their_weights(run, begun):
    def turned(embedder):
        return dict(reversed(rewards_of_tokens(embedder).items()))

    resume(run, turned)
    grpo_train.main(options_of(run, run_dir=run / "weighed", weights=(1.0, 3.0)), rewards_of_tokens)
    with pytest.raises(UserError, match="begun with weight 1, not 3, of reward 'even'"):
        grpo_train.main(options_of(run, run_dir=run / "weighed", weights=(1.0, 3.0), max_steps=2), turned)


def test_overridden_rewards_are_not_compared_in_the_end(run, capsys):
    # A step that was played under the old definition and not learnt from yet is played again.
    plan = Plan("000001", 1, ("q0", "q1"), num_rollouts=2)
    write_plan(run / "run", plan)
    old = run / "run" / "episodes" / "000001"
    shutil.copytree(run / "run" / "episodes" / "000000", old)
    resume(run, changed_low, override_rewards=True, weights=(1.0, 2.0))
    said = capsys.readouterr().out
    assert "begun with another definition of reward 'low': its figures before and after can't be compared" in said
    assert "not compared, as the rewards were changed during the run: overall, low" in said
    table = said[said.index("held-out questions    before") :]
    assert "even " in table
    assert {e.rewards["low"] for e in read_episodes(old / "trainer.jsonl")} == {0.25}
    assert not plan_path(run / "run", plan.name).exists()
    assert read_run_card(run / "run").since == {"overall": 2, "low": 2}
    resume(run, changed_low, override_rewards=True, weights=(1.0, 2.0))  # from now on these are the run's


def test_a_run_of_an_earlier_version_gets_its_card_on_resume(run, capsys):
    (run / "run" / "run.json").unlink()
    resume(run)
    assert "has no run.json, as an earlier version began it" in capsys.readouterr().out
    with pytest.raises(UserError, match="another definition of reward 'low'"):
        resume(run, changed_low)


def test_a_broken_card_is_told(run):
    (run / "run" / "run.json").write_text('{"format": 1}')
    with pytest.raises(UserError, match=r"run.json is broken \(KeyError: 'adapter'\); restore it, or start another"):
        resume(run)


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


def test_an_embedder_that_is_gone_is_told_and_not_replaced(tmp_path):
    store = StoreCard(True, "c", StoreOptions(embedder="none"))
    embedder = open_embedder(store, str(tmp_path))
    with pytest.raises(UserError, match=r"can't be loaded .*; the run was begun with it: make it available here, or"):
        embedder.encode_passages(["text"])


# Workers


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"num_rollouts": 3}, "--num-rollouts 3: .*run plays with 2, as .*run.json says; leave --num-rollouts out"),
        ({"batch_size": 8}, "--batch-size 8: .*run plays with 2"),
        ({"temperature": 0.7}, "--temperature 0.7: .*run plays with 1.0"),
        ({"top_p": 0.9, "allow_truncated": True}, "--top-p 0.9: .*run plays with 1.0"),
        ({"top_k": 5, "allow_truncated": True}, "--top-k 5: .*run plays with 0"),
        ({"weights": (2.0, 1.0)}, "--weights 2 1: .*run plays with 1 1"),
        ({"seed": 7}, "--seed 7: .*run plays with 0"),
    ],
)
@pytest.mark.parametrize("follow", [True, False])
def test_a_worker_does_not_contradict_its_run(run, given, says, follow):
    with pytest.raises(UserError, match=says):
        play(run, follow=follow, **given)


def test_a_worker_may_repeat_what_the_run_says(run, capsys):
    play(run, num_rollouts=2, batch_size=2, temperature=1.0, top_p=1.0, top_k=0, weights=(1.0, 1.0), seed=0)
    assert f"{run / 'run'} is finished; to continue it" in capsys.readouterr().out  # it was let in


def test_a_worker_takes_from_the_run_what_it_was_not_given(run):
    card = replace(read_run_card(run / "run"), temperature=0.5, top_k=4, weights={"even": 2.0, "low": 1.0})
    options = PlayOptions(concurrency=3).settle(card, run / "run")
    assert (options.sampling.temperature, options.sampling.top_k, options.weights) == (0.5, 4, (2.0, 1.0))
    assert (options.num_rollouts, options.concurrency) == (2, 3)
    options.check()  # a run that samples from a few tokens was allowed to
    assert PlayOptions().settle(None, run) == RolloutOptions()


def test_one_step_is_played_as_the_run_plays(run):
    play(run, follow=False)
    [path] = (run / "run" / "episodes" / "000001").glob("*.jsonl")
    assert len(list(read_episodes(path))) == 4
    resume(run)  # and counts for it
    assert read_stats(run / "run")[1].episodes["count"] == 4


def test_a_worker_notices_when_the_trainer_goes_on_with_other_rewards(run):
    card = read_run_card(run / "run")
    refuse_change(run / "run", card)
    write_run_card(run / "run", replace(card, rewards={**card.rewards, "low": "other"}))
    with pytest.raises(UserError, match=r"run.json has changed since this worker started; start the worker again"):
        refuse_change(run / "run", card)


def test_a_worker_that_is_there_first_waits_for_the_trainer(begun, tmp_path, capsys):
    given = PlayOptions(begun / "data", begun / "policy", EngineOptions(engine="local"))

    async def start_late():
        await asyncio.sleep(0.05)
        shutil.copytree(begun / "run", tmp_path / "run", dirs_exist_ok=True)

    async def both():
        worker = WorkerOptions(tmp_path / "run", follow=True, poll=0.01)
        await asyncio.gather(start_late(), follow_trainer(given, worker, rewards_of_tokens))

    asyncio.run(asyncio.wait_for(both(), 60))
    assert "waiting for grpo_train.py to start" in capsys.readouterr().out


def test_a_changed_tool_is_named(begun, tmp_path, monkeypatch):
    def count(text: str) -> str:
        """Counts letters."""
        return str(len(text))

    def count_twice(text: str) -> str:
        """Counts letters."""
        return str(2 * len(text))

    for name in ("policy", "data"):
        shutil.copytree(begun / name, tmp_path / name)
    monkeypatch.setattr(grpo_rollout, "get_tools", lambda: {"count": count})
    grpo_train.main(options_of(tmp_path), rewards_of_tokens)
    monkeypatch.setattr(grpo_rollout, "get_tools", lambda: {"count": count_twice})
    says = "run was begun with another definition of tool 'count'; "
    with pytest.raises(UserError, match=f"{says}put it back, or give another --run-dir"):
        resume(tmp_path)
    with pytest.raises(UserError, match=f"{says}start this worker with the trainer's"):
        play(tmp_path)
    monkeypatch.setattr(grpo_rollout, "get_tools", lambda: {"count": count, "twice": count_twice})
    resume(tmp_path)  # the policy knows nothing of the new one
