"""Folders that are named, whole and damaged, as the stages leave them."""

import json
import shutil

import pytest

from forage.doctor.folders import data_lines, in_use, policy_lines, run_lines
from forage.files import locked
from tests.tiny import make_tiny
from tests.tiny_training import tiny_options, train


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def trained(tiny):
    """A run of three steps."""
    train(tiny_options(tiny, tiny / "run"))
    return tiny / "run"


@pytest.fixture
def copied(tmp_path):
    def copy(folder):
        return shutil.copytree(folder, tmp_path / folder.name)

    return copy


def one_problem(lines):
    [line] = [line for line in lines if line.state != "ok"]
    assert (line.state, line.fails) == ("problem", True)
    return line.why


def test_data_that_opens(tiny):
    store, questions = data_lines(tiny / "data")
    assert (store.state, questions.state) == ("ok", "ok")
    assert store.figures == {"documents": 8, "chunks": 8, "embedder": "none"}
    assert questions.figures == {"train": 6, "eval": 2}


def test_data_that_does_not(tiny, copied, tmp_path):
    assert "holds no document store" in one_problem(data_lines(tmp_path))
    data = copied(tiny / "data")
    (data / "store" / "bm25.npz").unlink()
    assert "bm25.npz is missing; re-run the build" in one_problem(data_lines(data))


def test_data_without_questions_that_have_an_answer(tiny, copied):
    data = copied(tiny / "data")
    (data / "train.jsonl").write_text("")
    assert one_problem(data_lines(data)) == "no chunk answers any question of train.jsonl"


def test_a_policy(tiny, copied):
    [line] = policy_lines(tiny / "policy", hub=False)
    assert (line.state, line.why) == ("ok", "base base, newest adapter v000000")
    policy = copied(tiny / "policy")
    shutil.rmtree(policy / "adapters")
    assert "holds no adapters" in one_problem(policy_lines(policy, hub=False))
    (policy / "model.json").unlink()
    assert "has no model.json" in one_problem(policy_lines(policy, hub=False))


def test_a_policy_whose_base_is_gone_or_cut_off(tiny, copied):
    base, policy = copied(tiny / "base"), copied(tiny / "policy")
    card = json.loads((policy / "model.json").read_text())
    (policy / "model.json").write_text(json.dumps(card | {"base": str(base), "full_base": str(base)}))
    assert [line.state for line in policy_lines(policy, hub=False)] == ["ok"]
    (base / "model.safetensors").unlink()
    assert "has no weights" in one_problem(policy_lines(policy, hub=False))
    shutil.rmtree(base)
    assert "which is gone" in one_problem(policy_lines(policy, hub=False))


def test_a_policy_over_a_hub_model_that_is_out_of_reach(tiny, copied, tmp_path, monkeypatch):
    monkeypatch.setattr("forage.policy.identity.folder_of", lambda name: None)
    monkeypatch.setattr("forage.policy.policy.folder_of", lambda name: None)
    policy = copied(tiny / "policy")
    card = json.loads((policy / "model.json").read_text())
    (policy / "model.json").write_text(json.dumps(card | {"base": "some/model", "full_base": "some/model"}))
    assert "some/model is not in the cache" in one_problem(policy_lines(policy, hub=False))
    assert [line.state for line in policy_lines(policy, hub=True)] == ["ok"]


def test_a_run_that_can_be_resumed(trained):
    policy, run = run_lines(trained, hub=False)
    assert policy.figures["adapter"] == "v000003"
    assert (run.state, run.why) == ("ok", "it resumes from step 3")
    assert run.figures == {"step": 3, "in_use": False}


def test_runs_that_can_not(trained, copied, tmp_path):
    [missing] = run_lines(tmp_path / "none", hub=False)
    assert (missing.state, missing.fails) == ("missing", True)
    assert "no run was begun there" in one_problem(run_lines(tmp_path, hub=False))
    run = copied(trained)
    weights = run / "state" / "000003" / "optimizer.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    assert "000003 is damaged" in one_problem(run_lines(run, hub=False))
    (run / "config.json").unlink()
    assert "holds a run but no config.json" in one_problem(run_lines(run, hub=False))


def test_a_run_with_a_trainer_in_it(trained, copied):
    """Without touching its lock, which would turn away a trainer that starts just then."""
    run = copied(trained)
    assert not in_use(run / ".lock")
    with locked(run / ".lock", "taken"):
        line = run_lines(run, hub=False)[-1]
    assert (line.state, line.fails, line.why) == ("problem", True, "a trainer is at work in it")
    assert not in_use(run / ".lock")


def test_nothing_is_changed(trained):
    def everything():
        return {path: path.stat().st_mtime_ns for path in sorted(trained.rglob("*"))}

    before = everything()
    run_lines(trained, hub=False)
    assert everything() == before
