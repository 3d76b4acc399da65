"""A disk that fills up at any write: one line, and once there is room, the same command ends as if nothing had been.

On a real small disk (tmpfs), where mounting is allowed.
"""

import json
import os
import random
import shutil
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest
from chromadb.api.shared_system_client import SharedSystemClient

from forage.errors import UserError
from forage.store.vectors import VectorCollection
from tests.here import run_here
from tests.tiny_rewriter import make_tiny as make_tiny_rewriter
from tests.tiny_rewriter import tiny_args as rewriter_args
from tests.tiny_training import tiny_args

DISK, TRIES = 64 * 2**20, 4


@pytest.fixture(scope="module")
def inputs(tiny, tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "ppo").mkdir()
    make_tiny_rewriter(folder / "ppo")
    shutil.copytree(tiny / "policy", folder / "policy")
    for name in ("base", "data"):
        (folder / name).symlink_to(tiny / name)
    documents = [{"id": f"d{n}", "title": f"Disease {n}", "text": f"Remedy {n} mends it. " * 200} for n in range(40)]
    (folder / "documents.jsonl").write_text("".join(json.dumps(row) + "\n" for row in documents))
    rows = [{"question": f"What mends disease {n}?", "answer": f"Remedy {n} and much rest."} for n in range(40)]
    (folder / "qa.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def grpo_train(inputs, out):
    return ["-m", "tests.tiny_training", "train", *tiny_args(inputs, out, "--max-steps", "2", "--batch-size", "2")]


def sft_train(inputs, out):
    return ["sft_train.py", "--data", inputs / "data", "--policy", inputs / "policy", "--output-dir", out, "--mode",
            "sparse", "--max-steps", "4", "--eval-every", "2", "--batch-size", "2", "--eval-questions", "1",
            "--learning-rate", "0.01", "--max-turn-tokens", "32", "--max-turns", "2"]  # fmt: skip


def data_prep(inputs, out):
    return ["data_prep.py", "--dataset-name", inputs / "qa.jsonl", "--no-scrape", "--embedder", "none", "--output-dir",
            out]  # fmt: skip


def build_store(inputs, out):
    return ["document_store.py", "build", "--documents", inputs / "documents.jsonl", "--store", out, "--embedder",
            "none"]  # fmt: skip


def create_lora_model(inputs, out):
    return ["create_lora_model.py", "--base-model", inputs / "base", "--no-quantize", "--output-dir", out]


def merge_lora(inputs, out):
    return ["merge_lora.py", "--lora-model", inputs / "policy", "--output-path", out, "--no-prove"]


def evaluate(inputs, out):
    return ["evaluate.py", "--data", inputs / "data", "--policy", inputs / "policy", "--engine", "local", "--mode",
            "sparse", "--systems", "single", "plain_rag", "--max-turn-tokens", "8", "--max-turns", "2", "--output-dir",
            out]  # fmt: skip


def train_ppo(inputs, out):
    return ["train_ppo.py", *rewriter_args(inputs / "ppo", out, "--max-steps", "2", "--backend", "own")]


# Each script, and the files of its result, which must be the same to the byte.
SCRIPTS = [
    (grpo_train, ["adapters/*/adapter_model.safetensors", "evaluations.json"]),
    (sft_train, ["adapters/*/adapter_model.safetensors", "demonstrations.jsonl"]),
    (data_prep, ["*.jsonl", "store/chunks.jsonl", "store/bm25.npz", "rewriter/*"]),
    (build_store, ["chunks.jsonl", "bm25.npz", "store.json"]),
    (create_lora_model, ["model.json", "adapters/*/adapter_model.safetensors"]),
    (merge_lora, ["*"]),
    (evaluate, ["policies.json", "agent.json", "episodes/*/*.jsonl"]),
    (train_ppo, ["model/*", "evaluation.jsonl"]),
]


def result_of(out, patterns):
    """The result's files. What differs from run to run is left out: the random name of a store's collection, seconds,
    and the order in which an evaluation's episodes ended."""
    found = {}
    for path in (path for pattern in patterns for path in out.glob(pattern) if path.is_file()):
        text = path.read_bytes()
        if path.name in ("store.json", "demonstrations.jsonl", "evaluation.jsonl"):
            rows = [json.loads(line) for line in ([text] if path.suffix == ".json" else text.splitlines())]
            text = [{k: v for k, v in row.items() if k not in ("collection", "seconds")} for row in rows]
        if path.parent.parent.name == "episodes":
            text = sorted((row["id"], row["answer"]) for row in map(json.loads, text.splitlines()))
        found[str(path.relative_to(out))] = text
    assert found
    return found


def run(command):
    return run_here([sys.executable, *command])


def check_refused(done, full):
    assert done.returncode == 1, f"{full}: {done.stderr[-300:]}"
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, f"{full}: {done.stderr[-300:]}"
    assert done.stderr.strip().endswith(errors[0])
    assert "Traceback" not in done.stderr
    assert any(said in errors[0] for said in ("no space left on it", "MiB free")), errors[0]


def check_whole(done, out, patterns, expected):
    assert done.returncode == 0, done.stderr[-300:]
    assert result_of(out, patterns) == expected
    left = [path.name for path in out.parent.rglob(".*") if path.name not in (".lock", ".query_rewriter", ".gitignore")]
    assert left == [], "temporary files are cleared away"


# A real small disk


@pytest.fixture
def disk(tmp_path):
    """A tmpfs; needs root, or a namespace in which one is (unshare -rm)."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"left out: a small disk can't be mounted here ({mounted.stderr.decode().strip()})")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)  # Chroma may keep a file open


@contextmanager
def only(folder, room):
    """The rest of the disk is taken while this is open."""
    ballast = folder / "ballast"
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(folder).free - room)
    yield
    ballast.unlink()


@pytest.mark.slow
@pytest.mark.parametrize(("command", "patterns"), SCRIPTS, ids=[command.__name__ for command, _ in SCRIPTS])
def test_a_disk_that_fills_up(inputs, disk, command, patterns):
    out = disk / "out"
    before = shutil.disk_usage(disk).free
    assert run(command(inputs, out)).returncode == 0
    used, expected = before - shutil.disk_usage(disk).free, result_of(out, patterns)
    draw = random.Random(0)
    for _ in range(TRIES):
        shutil.rmtree(out)
        room = draw.randrange(used // 50, used * 49 // 50)
        with only(disk, room):
            check_refused(run(command(inputs, out)), f"{room} of {used} bytes")
        check_whole(run(command(inputs, out)), out, patterns, expected)


@pytest.mark.slow
def test_a_disk_that_fills_up_with_vectors(disk):
    vectors = np.random.default_rng(0).standard_normal((4000, 384), dtype=np.float32)
    keys = [f"k{n}" for n in range(len(vectors))]
    collection = VectorCollection("chunks", disk / "chroma")
    with only(disk, 4 * 2**20), pytest.raises(UserError, match=r"could not keep the vectors .*; see that its disk has"):
        collection.add(keys, vectors)
    SharedSystemClient.clear_system_cache()  # as in another process
    collection = VectorCollection("chunks", disk / "chroma")
    missing = sorted(set(keys) - collection.keys())
    assert missing
    collection.add(missing, vectors[[int(key[1:]) for key in missing]])
    assert collection.keys() == set(keys)
    np.testing.assert_allclose(collection.matrix(keys, 384), vectors, rtol=1e-5, atol=1e-6)
