"""The scripts that are attacked, and what each comes to when nothing disturbs it."""

import time
from functools import cache

import pytest

from tests.attacks.targets import make_given, targets
from tests.misbehaving_server import MisbehavingServer


@pytest.fixture(scope="session")
def site():
    with MisbehavingServer() as server:
        yield server


@pytest.fixture(scope="session")
def ground(site, tmp_path_factory):
    """(inputs, arena, every script's Target)"""
    folder = tmp_path_factory.mktemp("kills")
    given = make_given(folder / "given", site.address)
    return given, folder / "arena", targets(given, folder / "arena")


@pytest.fixture(scope="session")
def undisturbed(ground):
    """A function that gives an undisturbed run of a script, made once: (contents, changes, seconds, bytes)."""
    _, arena, scripts = ground

    @cache
    def run(name):
        script = scripts[name]
        started = script.start(script.fresh(arena))
        assert started.wait() == 0, started.said[-3000:]
        seconds = time.perf_counter() - started.began
        size = sum(path.stat().st_size for path in arena.rglob("*"))
        return script.look(arena), started.changes, seconds, size

    return run
