"""A disk that fills up at any write: one line, and once there is room, the same command ends as if nothing had been.

On a real small disk (tmpfs), where mounting is allowed.
"""

import os
import random
import shutil
import subprocess
from contextlib import contextmanager

import numpy as np
import pytest
from chromadb.api.shared_system_client import SharedSystemClient

from forage.store.vectors import VectorCollection
from tests.attacks.targets import differences
from tests.refusals import refused

pytestmark = pytest.mark.slow
DISK, TRIES = 64 * 2**20, 3


@contextmanager
def mounted(folder):
    """A tmpfs; needs root, or a namespace in which one is (unshare -rm)."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", folder], capture_output=True)
    if done.returncode:
        pytest.skip(f"left out: a small disk can't be mounted here ({done.stderr.decode().strip()})")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)  # Chroma may keep a file open


@contextmanager
def only(folder, room):
    """The rest of the disk is taken while this is open."""
    ballast = folder / "ballast"
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(folder).free - room)
    yield
    ballast.unlink()


@pytest.mark.parametrize("name", ["collection", "merge", "sft", "grpo", "ppo_own", "evaluate"])
def test_a_disk_that_fills_up(ground, undisturbed, name):
    _, arena, scripts = ground
    script, draw, (whole, *_, used) = scripts[name], random.Random(0), undisturbed(name)
    with mounted(arena):
        for _ in range(TRIES):
            script.fresh(arena)
            room = draw.randrange(used // 50, used * 49 // 50)
            with only(arena, room):
                full = script.start(arena)
                assert full.wait() == 1, f"{room} of {used} bytes: {full.said[-300:]}"
            [error] = [line for line in full.said.splitlines() if line.startswith("error: ")]
            assert full.said.strip().endswith(error)
            assert "Traceback" not in full.said
            assert any(said in error for said in ("No space left on device", "MiB free")), error
            again = script.start(arena)
            assert again.wait() == 0, again.said[-3000:]
            assert differences(whole, script.look(arena)) == []


def test_a_disk_that_fills_up_with_vectors(tmp_path):
    vectors = np.random.default_rng(0).standard_normal((4000, 384), dtype=np.float32)
    keys = [f"k{n}" for n in range(len(vectors))]
    with mounted(tmp_path / "disk") as disk:
        collection = VectorCollection("chunks", disk / "chroma")
        with only(disk, 4 * 2**20), refused(r"could not keep the vectors .*; see that its disk"):
            collection.add(keys, vectors)
        SharedSystemClient.clear_system_cache()  # as in another process
        collection = VectorCollection("chunks", disk / "chroma")
        missing = sorted(set(keys) - collection.keys())
        assert missing
        collection.add(missing, vectors[[int(key[1:]) for key in missing]])
        assert collection.keys() == set(keys)
        np.testing.assert_allclose(collection.matrix(keys, 384), vectors, rtol=1e-5, atol=1e-6)
