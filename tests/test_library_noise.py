"""Loading a policy prints nothing on stderr; other warnings still show."""

import logging
import subprocess
import sys
import warnings

import pytest
import torch
from transformers import AutoTokenizer

from create_lora_model import Options, main
from forage.library_noise import silence_library_noise
from forage.policy.card import AdapterOptions, read_policy_card
from forage.policy.policy import load_policy
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


def test_loading_a_policy_gives_no_warning(policy, caplog):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load_policy(read_policy_card(policy))
    assert [str(warning.message) for warning in caught] == []
    assert caplog.records == []


@pytest.mark.slow  # the test above is in this process, where bitsandbytes is imported already
def test_loading_merging_and_embedding_print_nothing(policy):
    command = [sys.executable, "-c", LOAD + MERGE + EMBED, str(policy)]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert (loaded.stdout, loaded.stderr) == ("", "")


def test_only_the_two_known_warnings_are_silenced(caplog):
    logger = logging.getLogger("bitsandbytes.backends.cpu.ops")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        silence_library_noise()
        silence_library_noise()
        told = {"category": FutureWarning, "filename": "modeling_utils.py", "lineno": 1}
        old = "`is_gradient_checkpointing` is deprecated and will be removed"
        warnings.warn_explicit(old, **told, module="transformers.modeling_utils")
        for message, module in ((old, "forage"), ("something else is deprecated", "transformers.modeling_utils")):
            with pytest.raises(FutureWarning):
                warnings.warn_explicit(message, **told, module=module)
    logger.warning("Failed to load CPU gemm_4bit_forward from kernels-community: %s", "No module named 'kernels'")
    logger.warning("another warning")
    assert [record.message for record in caplog.records] == ["another warning"]
