"""What the project was asked for, where the tests of no stage say it already."""

import re

import yaml

import grpo_rollout
from evaluate import SYSTEMS
from forage.agent.combination import Method
from forage.arguments import parse
from forage.grpo.options import TrainOptions
from forage.processes import Sharding
from forage.rewriter.options import Options as PPO
from tests import ROOT
from tests.pages import options_of


def test_rewards_are_a_dictionary_and_combined_in_four_ways():
    assert {"mrr", "answer_similarity", "format"} <= grpo_rollout.get_reward_functions(None, None).keys()
    for method in ("uniform", "std", "pca", "l2"):
        assert parse(TrainOptions, ["--combine", method]).update.combine == method
        assert method in Method.__args__


def test_three_services_exchange_adapters_through_a_volume():
    stack = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    for name in ("vllm", "rollout", "train"):
        assert any("/shared" in str(volume) for volume in stack["services"][name]["volumes"])
    assert {"zero2", "zero3", "fsdp2"} <= set(Sharding.__args__)
    assert parse(TrainOptions, ["--sequence-parallel", "2", "--gradient-checkpointing"]).sequence_parallel == 2


def test_the_five_papers_ways_of_answering_are_systems():
    assert {"tree", "s1", "s_star", "tpo"} <= SYSTEMS.keys()  # rStar-Math's tree, and so on
    assert (ROOT / "forage/planning/library.py").exists()  # ReasonFlux's templates
    page = (ROOT / "README.md").read_text()
    assert all(f"| {symptom} |" in page for symptom in ("out of memory", "slow", "does not learn"))


def test_the_rewriters_numbers_are_those_asked_for():
    ppo = parse(PPO, ["--lora-rank", "0", "--value", "separate", "--base-model", "microsoft/DialoGPT-small"])
    assert (ppo.backend, ppo.actor.value, ppo.actor.rate, ppo.k, ppo.reward) == ("trl", "separate", 1e-5, 5, "recall")
    assert (ppo.sampling.max_new_tokens, ppo.sampling.temperature, ppo.sampling.top_p) == (32, 0.7, 0.9)
    assert (ppo.ppo.batch_size, ppo.ppo.clip_range, ppo.ppo.gae_lambda) == (4, 0.2, 0.95)
    assert (ppo.ppo.value_coef, ppo.ppo.kl_coef) == (0.1, 0.05)


def test_packages_and_scripts_are_the_ones_named():
    required = "".join((ROOT / f"requirements{name}.txt").read_text() for name in ("", "-vllm"))
    packages = "torch transformers peft bitsandbytes deepspeed chromadb rank-bm25 sentence-transformers datasets"
    for package in [*packages.split(), "vllm", "beautifulsoup4", "matplotlib"]:
        assert re.search(rf"^{package}\b", required, re.MULTILINE), package
    for script in ("data_prep", "create_lora_model", "grpo_rollout", "grpo_train", "merge_lora", "document_store"):
        assert options_of(script)
    assert all((ROOT / name).exists() for name in ("Dockerfile", "docker-compose.yml", "requirements.txt", "README.md"))
