"""Agents of a user's own play in the tiny model's tokens."""

import pytest


@pytest.fixture
def protocol(tiny_protocol):
    return tiny_protocol
