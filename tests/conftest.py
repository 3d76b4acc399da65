"""Shared by all tests: the packaged embedder, loaded once, and hypothesis without its clock."""

import os

import hypothesis
import pytest

# Threads that wait for work sleep: spinning for the same cores as a server beside the tests is six times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before any import that reads it: tests reach no hub

from transformers import AutoTokenizer

from forage.agent.protocol import Protocol
from forage.policy.base_models import PACKAGED_MODEL, resolve_model
from forage.store.embedder import PACKAGED_EMBEDDER, Embedder

hypothesis.settings.register_profile("default", deadline=None, derandomize=True)
hypothesis.settings.load_profile("default")


@pytest.fixture(scope="session")
def embedder():
    return Embedder(PACKAGED_EMBEDDER)


@pytest.fixture(scope="session")
def model_folder():
    """The packaged chat model."""
    return resolve_model(PACKAGED_MODEL)


@pytest.fixture(scope="session")
def protocol(model_folder):
    return Protocol(AutoTokenizer.from_pretrained(model_folder))
