"""What the project was asked for, a test a line of it: by the scripts themselves, in empty folders, on a small base."""

import inspect
import json
import re
import sys

import pytest
import yaml

import data_prep
import grpo_rollout
from document_store import DocumentStore
from evaluate import SYSTEMS
from forage.agent.rewards import Method
from forage.arguments import parse
from forage.extras.rewriter.options import Options as PPO
from forage.extras.rewriter.rewards import CustomRewardModel
from forage.grpo.options import TrainOptions
from forage.processes import Sharding
from forage.store.fusion import Fusion
from forage.store.options import StoreOptions
from tests import ROOT
from tests.here import run_here
from tests.pages import options_of

SHORT = "--batch-size 2 --num-rollouts 2 --eval-questions 2 --engine local --max-turns 2 --max-turn-tokens 24"


def ran(folder, script, options=""):
    done = run_here([sys.executable, ROOT / script, *options.split()], folder)
    assert done.returncode == 0, f"{script} {options}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tiny_base):
    """The first system, from data to a merged model."""
    folder = tmp_path_factory.mktemp("asked")
    ran(folder, "data_prep.py", "--dataset-name sample")
    ran(folder, "create_lora_model.py", f"--base-model {tiny_base} --quantize --r 4 --target-modules q_proj v_proj")
    ran(folder, "sft_train.py", "--max-steps 2 --num-demonstrations 8 --max-turn-tokens 64")
    asked = "--max-steps 2 --learning-rate 5e-5 --batch-size 2 --num-rollouts 2 --beta 0.01 --gradient-checkpointing"
    ran(folder, "grpo_train.py", f"--run-dir run {asked} --combine std --engine local --eval-questions 2")
    ran(folder, "merge_lora.py", f"--base-model {tiny_base} --lora-model run --output-path merged --allow-other-base")
    return folder


@pytest.fixture(scope="module")
def rewriter(tmp_path_factory):
    """The second system, by its name alone."""
    folder = tmp_path_factory.mktemp("rewriter")
    return folder, ran(folder, "train_ppo.py", "--report-to none")


slow = pytest.mark.slow


@slow
def test_a_medical_data_set_is_scraped_cut_and_embedded(trained, monkeypatch, tmp_path):
    assert {"documents.jsonl", "train.jsonl", "eval.jsonl", "store", "rewriter"} <= {
        path.name for path in (trained / "data").iterdir()
    }
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    without_hub = run_here([sys.executable, ROOT / "data_prep.py"], tmp_path)
    assert without_hub.returncode
    [line] = without_hub.stderr.strip().splitlines()
    assert "lavita/MedQuAD" in line


@slow
def test_documents_are_loaded_or_scraped_by_one_call(tmp_path):
    names = ["dataset_name", "cache_dir", "content_dir", "batch_size", "skip_existing"]
    assert list(inspect.signature(data_prep.load_or_scrape_documents).parameters) == names
    assert data_prep.load_or_scrape_documents("sample", tmp_path / "cache", tmp_path / "pages", 10, True).documents


@slow
def test_the_store_searches_by_words_by_vectors_and_by_both_with_weights(trained):
    store = DocumentStore.open(trained / "data/store")
    for mode in ("sparse", "dense", "hybrid"):
        fusion = Fusion(dense_weight=0.7, title_weight=0.1)
        assert store.search("What are the symptoms of gout?", 3, mode, fusion=fusion)[0].rank == 1


@slow
def test_an_adapter_of_chosen_layers_in_4_bits_is_saved(trained):
    card = json.loads((trained / "models/policy/model.json").read_text())
    assert card["quantized"]
    [adapter] = (trained / "models/policy/adapters").glob("v*/adapter_config.json")
    assert set(json.loads(adapter.read_text())["target_modules"]) == {"q_proj", "v_proj"}


def test_rewards_are_a_dictionary_and_combined_in_four_ways():
    assert {"mrr", "answer_similarity", "format"} <= grpo_rollout.get_reward_functions(None, None).keys()
    for method in ("uniform", "std", "pca", "l2"):
        assert parse(TrainOptions, ["--combine", method]).update.combine == method
        assert method in Method.__args__


@slow
def test_a_run_leaves_its_statistics_and_its_three_plots(trained):
    left = {path.name for path in (trained / "run").iterdir()}
    assert {"training_stats_1.json", "rewards.png", "reward_distribution.png", "training.png", "run.html"} <= left
    assert (trained / "merged/model.safetensors").exists()


def test_three_services_exchange_adapters_through_a_volume():
    stack = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    for name in ("vllm", "rollout", "train"):
        assert any("/shared" in str(volume) for volume in stack["services"][name]["volumes"])
    assert {"zero2", "zero3", "fsdp2"} <= set(Sharding.__args__)
    assert parse(TrainOptions, ["--sequence-parallel", "2", "--gradient-checkpointing"]).sequence_parallel == 2


def test_the_five_papers_ways_of_answering_are_systems():
    assert {"tree", "s1", "s_star", "tpo"} <= SYSTEMS.keys()  # rStar-Math's tree, and so on
    assert (ROOT / "forage/extras/planning/library.py").exists()  # ReasonFlux's templates
    page = (ROOT / "README.md").read_text()
    assert all(f"| {symptom} |" in page for symptom in ("out of memory", "slow", "does not learn"))


@slow
def test_the_rewriter_trains_by_its_name_alone(rewriter):
    folder, said = rewriter
    assert re.search(r"^Episode 1: Reward = -?\d\.\d{3}$", said, re.MULTILINE)
    assert "the trained model is in models/query_augmentation_ppo" in said
    assert (folder / "models/query_augmentation_ppo/model.safetensors").exists()
    metrics = json.loads((folder / "runs/ppo/metrics.jsonl").read_text().splitlines()[0])
    assert {
        "objective/rlhf_reward",
        "val/ratio",
        "policy/entropy",
        "loss/policy_avg",
        "loss/value_avg",
    } <= metrics.keys()


def test_the_rewriters_numbers_are_those_asked_for():
    ppo = parse(PPO, ["--lora-rank", "0", "--value", "separate", "--base-model", "microsoft/DialoGPT-small"])
    assert (ppo.backend, ppo.actor.value, ppo.actor.rate, ppo.k, ppo.reward) == ("trl", "separate", 1e-5, 5, "recall")
    assert (ppo.sampling.max_new_tokens, ppo.sampling.temperature, ppo.sampling.top_p) == (32, 0.7, 0.9)
    assert (ppo.ppo.batch_size, ppo.ppo.clip_range, ppo.ppo.gae_lambda) == (4, 0.2, 0.95)
    assert (ppo.ppo.value_coef, ppo.ppo.kl_coef) == (0.1, 0.05)


def test_a_reward_of_ones_own_searches(tmp_path):
    DocumentStore.build(tmp_path / "store", ["Rest mends it.", "Ice."], StoreOptions("none"))
    store = DocumentStore.open(tmp_path / "store")

    class Mine(CustomRewardModel):
        def compute_reward(self, query, relevant_doc_ids):
            return float(relevant_doc_ids[0] in self.search([query])[0])

    mine = Mine(lambda queries: [[hit.doc_id for hit in hits] for hits in store.search(queries, 5, "sparse")], 5)
    assert (mine.compute_reward("rest", ["0"]), mine.compute_reward("rest", ["1"])) == (1, 0)


def test_packages_and_scripts_are_the_ones_named():
    required = "".join((ROOT / name).read_text() for name in ("requirements.txt", "requirements/vllm.txt"))
    packages = "torch transformers peft bitsandbytes deepspeed chromadb rank-bm25 sentence-transformers datasets"
    for package in [*packages.split(), "vllm", "beautifulsoup4", "matplotlib"]:
        assert re.search(rf"^{package}\b", required, re.MULTILINE), package
    for script in ("data_prep", "create_lora_model", "grpo_rollout", "grpo_train", "merge_lora", "document_store"):
        assert options_of(script)
    assert all((ROOT / name).exists() for name in ("Dockerfile", "docker-compose.yml", "requirements.txt", "README.md"))
