"""The whole stage on a tiny model: a run, one that goes on with less memory, a resumed run, and a user's reward."""

import json
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM

from forage.extras.rewriter.rewards import CustomRewardModel
from tests.refusals import refused
from tests.tiny_rewriter import make_tiny, metrics, run, tiny_args, tiny_lm


@pytest.mark.parametrize("backend", ["trl", "own"])
def test_a_run_prints_saves_and_measures(tiny_rewriter, tmp_path, capsys, backend):
    run(tiny_args(tiny_rewriter, tmp_path, "--backend", backend, "--max-steps", "2", "--report-to", "none"))
    printed = capsys.readouterr().out
    assert "trained minus raw query is " in printed
    rows = metrics(tmp_path)
    assert all({"objective/rlhf_reward", "loss/policy_avg", "objective/kl"} <= row.keys() for row in rows)
    assert [row["episode"] for row in rows] == [4, 8]
    ways = [json.loads(line) for line in (tmp_path / "evaluation.jsonl").read_text().splitlines()]
    assert [(way["way"], len(way["searched"])) for way in ways] == [("raw query", 4), ("untrained", 4), ("trained", 4)]
    assert len((tmp_path / "episodes" / "000002.jsonl").read_text().splitlines()) == 4
    assert (tmp_path / "training.png").exists()
    trained = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    source = AutoModelForCausalLM.from_pretrained(tiny_rewriter / "model", dtype=torch.float32)
    # Of the layers that the adapter is on, and by more than the rounding of a model that was saved in bf16.
    before, after = (model.model.layers[0].mlp.down_proj.weight for model in (source, trained))
    assert (after - before).abs().max() > 2 * before.abs().max() * torch.finfo(torch.bfloat16).eps


def test_a_run_that_is_out_of_memory_goes_on_with_smaller_micro_batches(tiny_rewriter, tmp_path, monkeypatch):
    def too_large(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    begun = tiny_args(tiny_rewriter, tmp_path, "--backend", "own", "--max-steps", "1")
    with monkeypatch.context() as patch:
        patch.setattr("forage.extras.rewriter.training.train_own", too_large)
        with refused(r"out of memory \(CUDA.*\); go on with a smaller --micro-batch"):
            run(begun)
    run([*begun, "--micro-batch-size", "1"])
    assert len(metrics(tmp_path)) == 1


def test_a_run_resumes_only_on_its_own_data_base_and_reward(tiny_rewriter, tmp_path, monkeypatch):
    """Other questions of the same number would be trained on, and compared with those before."""
    data = shutil.copytree(tiny_rewriter, tmp_path / "tiny") / "data"
    reward = tmp_path / "reward_of_test.py"
    reward.write_text("class Mine:\n    def compute_reward(self, query, ids):\n        return 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    args = tiny_args(tmp_path / "tiny", tmp_path / "run", "--backend", "own", "--reward", "reward_of_test:Mine",
                     "--max-steps")  # fmt: skip
    run([*args, "1"])
    for name in ("train.jsonl", "eval.jsonl", "pubmed_corpus.json"):
        before = (data / name).read_text()
        (data / name).write_text(before + "\n")
        with refused(rf"begun with another data\.{name.partition('.')[0]}"):
            run([*args, "2"])
        (data / name).write_text(before)
    run([*args, "2"])
    assert len(metrics(tmp_path / "run")) == 2
    reward.write_text(reward.read_text().replace("1.0", "0.5"))
    tiny_lm(seed=1)[0].save_pretrained(tmp_path / "tiny" / "model")
    with refused(r"begun with another base; another reward_of_test\.py"):
        run([*args, "3"])


class Longest(CustomRewardModel):
    """A user's reward: the more words, the better."""

    def compute_reward(self, query, relevant_doc_ids):
        assert relevant_doc_ids[0].startswith("d")
        assert len(self.search([query])[0]) <= 3
        return float(len(query.split()))


def test_a_users_reward_on_a_model_without_a_template(tmp_path, capsys):
    make_tiny(tmp_path, template=False)
    args = tiny_args(tmp_path, tmp_path / "run", "--reward", "tests.scripts.test_train_ppo:Longest", "--k", "3",
                     "--max-steps", "1", "--rewrite", "replace", "--lora-rank", "4")  # fmt: skip
    run(args)
    rewards = [json.loads(line)["reward"] for line in (tmp_path / "run/episodes/000001.jsonl").read_text().splitlines()]
    assert any(reward > 1 for reward in rewards)
    assert "trained minus untrained is " in capsys.readouterr().out
    AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model")
