"""Loading a policy prints nothing on stderr; other warnings still show."""

import subprocess
import sys

import pytest
import torch
from transformers import AutoTokenizer

from create_lora_model import Options, main
from forage.policy.card import AdapterOptions
from tests import ROOT
from tests.factories import tiny_llama

LOAD = """
import sys
from pathlib import Path
from forage.policy.card import read_policy_card
from forage.policy.policy import load_policy
load_policy(read_policy_card(Path(sys.argv[1])))
"""
MERGE = """
from forage.policy.lora import lora_scale
lora_scale({"r": 4, "lora_alpha": 8}, "q_proj")
"""
EMBED = """
from forage.store.embedder import PACKAGED_EMBEDDER, Embedder
Embedder(PACKAGED_EMBEDDER).encode_queries(["gout"])
"""


@pytest.fixture(scope="module")
def policy(tmp_path_factory, model_folder):
    folder = tmp_path_factory.mktemp("policy")
    torch.manual_seed(0)
    tiny_llama().save_pretrained(folder / "tiny")
    AutoTokenizer.from_pretrained(model_folder).save_pretrained(folder / "tiny")
    main(Options(base_model=str(folder / "tiny"), output_dir=folder / "policy", adapter=AdapterOptions(r=4)))
    return folder / "policy"


@pytest.mark.slow
def test_loading_merging_and_embedding_print_nothing(policy):
    command = [sys.executable, "-c", LOAD + MERGE + EMBED, str(policy)]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert (loaded.stdout, loaded.stderr) == ("", "")


def test_only_the_two_known_warnings_are_silenced():
    code = """
import logging, warnings, forage
told = {"category": FutureWarning, "filename": "modeling_utils.py", "lineno": 1}
old = "`is_gradient_checkpointing` is deprecated and will be removed"
warnings.warn_explicit(old, **told, module="transformers.modeling_utils")
warnings.warn_explicit(old, **told, module="forage")
logger = logging.getLogger("bitsandbytes.backends.cpu.ops")
logger.warning("Failed to load CPU gemm_4bit_forward from kernels-community: %s", "No module named 'kernels'")
logger.warning("another warning")
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stderr
    assert told.count("is deprecated") == 1
    assert told.splitlines()[-1] == "another warning"
