"""Shared by all tests: the packaged embedder, loaded once, and hypothesis without its clock."""

import os

import hypothesis
import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before any import that reads it: tests reach no hub

from core.embedder import PACKAGED_EMBEDDER, Embedder

hypothesis.settings.register_profile("default", deadline=None, derandomize=True)
hypothesis.settings.load_profile("default")


@pytest.fixture(scope="session")
def embedder():
    return Embedder(PACKAGED_EMBEDDER)
