"""Fixtures that all tests share: the tiny model and its data, the packaged models loaded once, hypothesis without its
clock."""

import fcntl
import os
import signal

import hypothesis
import pytest

# Before torch is imported, which only fixtures do: tests of plain functions start in a second. The suite runs as one
# process per core, so each computes with one thread; and threads that wait for work sleep, as spinning for the cores of
# a server beside the tests makes both six times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # before any import that reads it: tests reach no hub

# A shell starts background jobs so that they ignore Ctrl-C, and the scripts that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# No test survives the machine's power, so none needs to wait for its disk; many write hundreds of small files.
os.fsync = lambda file: None

hypothesis.settings.register_profile("default", deadline=None, derandomize=True)
hypothesis.settings.load_profile("default")


# Modules whose results depend on how the processor computes: `make numbers` runs them as on one without bf16 units,
# which ATEN_CPU_CAPABILITY=avx2 tells torch, and the fixture our own code.
NUMBERS = {
    "test_adapted", "test_branches", "test_embedder", "test_four_bit", "test_grpo_train", "test_head", "test_local",
    "test_local_beside", "test_logprobs", "test_losses", "test_packing", "test_ppo", "test_sft_train",
    "test_slot_cache", "test_trl_parity", "test_update",
}  # fmt: skip


# Modules in which a test or what its tests share takes minutes. They come first: at the end, where test processes take
# tests from each other, one would wait for the other's, or both would make what a module's tests share.
LONG = {"test_environments", "test_families", "test_mission", "test_notebook", "test_size"}


def pytest_configure(config):
    if config.option.markexpr != "gpu":  # what tests expect, they expect of a processor
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_collection_modifyitems(items):
    for item in items:
        if item.path.stem in NUMBERS:
            item.add_marker("numbers")
    items.sort(key=lambda item: item.path.stem not in LONG)


@pytest.fixture(scope="session", autouse=os.environ.get("ATEN_CPU_CAPABILITY") == "avx2")
def no_bf16_units():
    from forage import machine

    told = machine.processor()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "processor", lambda: told.replace("bf16", "none"))
        yield


# Tests leave nothing in the checkout but what tools cache, and the packaged model, which is unpacked there.

CACHES = ("models", "__pycache__", ".pytest_cache", ".hypothesis", ".mypy_cache", ".ruff_cache")


def in_checkout(root):
    return {path.relative_to(root).as_posix() for part in ("*", "data/*", "runs/*") for path in root.glob(part)}


def pytest_sessionstart(session):
    session.config.checkout = in_checkout(session.config.rootpath)


def pytest_sessionfinish(session):
    if hasattr(session.config, "workerinput"):
        return  # the process that started this one looks, once all have ended
    left = sorted(in_checkout(session.config.rootpath) - session.config.checkout - {*CACHES})
    if left:
        print(f"\nerror: the tests left {', '.join(left)} in the checkout")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


# The tiny model: what tests take unless a real one matters to them. Read-only; a test that changes a file copies it.


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A folder with base, policy and data."""
    from tests.tiny import make_tiny

    return make_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tiny_base(tiny):
    """The model's folder."""
    return tiny / "base"


@pytest.fixture(scope="session")
def tiny_policy(tiny):
    """A policy folder with a fresh adapter v000000."""
    return tiny / "policy"


@pytest.fixture(scope="session")
def tiny_data(tiny):
    """train.jsonl, eval.jsonl and a store without an embedder."""
    return tiny / "data"


@pytest.fixture(scope="session")
def tiny_rewriter(tmp_path_factory):
    """A folder as train_ppo.py reads it."""
    from tests.tiny_rewriter import make_tiny

    return make_tiny(tmp_path_factory.mktemp("rewriter"))


@pytest.fixture
def tiny_tokenizer():
    """ChatML over 512 tokens; a new one each time, so that tests may change its template."""
    from tests.tiny import make_tokenizer

    return make_tokenizer()


@pytest.fixture(scope="session")
def tiny_protocol():
    """The agent's protocol in the tiny model's tokens."""
    from forage.agent.protocol import Protocol
    from tests.tiny import make_tokenizer

    return Protocol(make_tokenizer())


@pytest.fixture(scope="module")
def no_plots():
    """Training draws nothing, which takes ten times as long as one of the tiny model's steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("forage.grpo.reporting.COMMAND", ("true",))
        yield


@pytest.fixture(scope="session", autouse=True)
def no_tracker_by_itself(tmp_path_factory):
    """Where a test asks for no tracker, there is none: trackio's takes a second, and would fill the user's folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("forage.runs.trackers.AGENT_ORDER", ())
        patch.setenv("TRACKIO_DIR", str(tmp_path_factory.mktemp("trackio")))  # of scripts in processes of their own
        yield


@pytest.fixture
def fake():
    """A server that answers as vLLM does, until a test tells it otherwise."""
    from tests.misbehaving_vllm import MisbehavingVLLM

    with MisbehavingVLLM() as fake:
        yield fake


# The packaged models, for tests to which real tokens, real weights or real similarities matter.


@pytest.fixture(scope="session")
def embedder():
    from forage.store.embedder import PACKAGED_EMBEDDER, Embedder

    return Embedder(PACKAGED_EMBEDDER)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory):
    """The packaged chat model; of several test processes the first converts it, where it was not yet."""
    from forage.policy.base_models import PACKAGED_MODEL, resolve_model

    with (tmp_path_factory.getbasetemp().parent / "packaged_model.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return resolve_model(PACKAGED_MODEL)


@pytest.fixture(scope="session")
def protocol(model_folder):
    """The agent's protocol in SmolLM2's tokens: tests of it count tokens and read real delimiters."""
    from transformers import AutoTokenizer

    from forage.agent.protocol import Protocol

    return Protocol(AutoTokenizer.from_pretrained(model_folder))
