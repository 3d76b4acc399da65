"""A real server process of the store: the warm start and the episodes are the folder's; its death and return."""

import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial

import pytest

import grpo_rollout
import sft_train
from forage.agent.episode import read_episodes
from forage.agent.options import SearchOptions
from forage.agent.rewards import get_format_reward, get_mrr, get_search_gain
from forage.data.records import Document
from forage.engines.options import EngineOptions
from forage.errors import UserError
from forage.optimizer import OptimizerOptions
from forage.rollout.agreement import manifest_now
from forage.rollout.options import RolloutOptions, WorkerOptions
from forage.sft.options import SFTOptions
from forage.store.document_store import DocumentStore
from forage.store.options import StoreOptions, StorePlace
from forage.store.remote import RemoteStore
from tests import ROOT
from tests.ports import free_port
from tests.tiny import make_tiny

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@contextmanager
def serving(folder, port=0):
    """document_store.py serve, whose own mode and k are others than the agent's."""
    command = [sys.executable, "document_store.py", "serve", "--store", str(folder), "--port", str(port),
               "--mode", "sparse", "--k", "7"]  # fmt: skip
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        yield process, re.search(r"(http://\S+)/retrieve", process.stdout.readline())[1]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def rewards(embedder, searcher):
    """Each searches or compares ids: the gain searches for the question itself, a hundred chunks deep."""
    return {"mrr": get_mrr, "gain": partial(get_search_gain, searcher=searcher), "format": get_format_reward}


def warm(tiny, place, output, steps):
    """Enough steps for a tiny model to write calls now and then."""
    sft_train.main(
        SFTOptions(
            data=tiny / "data", policy=tiny / "policy", output_dir=output, max_steps=steps, eval_every=steps,
            eval_questions=0, eval_share=0.2, optimizer=OptimizerOptions(learning_rate=2e-2), place=place,
            search=SearchOptions(max_turns=2, max_turn_tokens=64, mode="sparse"),
        )
    )  # fmt: skip
    return [played(episode) for episode in read_episodes(output / "demonstrations.jsonl")]


def played(episode):
    """All that is kept of an episode, but for how long it took."""
    values = {name: getattr(episode, name) for name in episode.__dataclass_fields__}
    return {name: value for name, value in values.items() if name != "seconds"}


def play(tiny, policy, place, run_dir):
    given = RolloutOptions(
        tiny / "data", policy, EngineOptions(engine="local"), batch_size=6, num_rollouts=4, temperature=0.6, seed=3,
        place=place,
    )  # fmt: skip
    grpo_rollout.main(grpo_rollout.Options(given, WorkerOptions(run_dir)), rewards)
    episodes = [one for path in run_dir.glob("episodes/*/*.jsonl") for one in read_episodes(path)]
    manifest = manifest_now(given, given.search.settle(policy), rewards, None)
    return sorted(map(played, episodes), key=lambda one: one["id"]), manifest


@pytest.mark.usefixtures("no_plots")
def test_demonstrations_episodes_and_rewards_are_those_of_the_folder(tmp_path):
    """The trainer's machine has the questions alone, the store is in another folder of another process."""
    tiny = make_tiny(tmp_path)
    here, place = StorePlace(), StorePlace(str((tiny / "data" / "store").rename(tmp_path / "library")))
    assert here != place
    with serving(tmp_path / "library") as (_, url):
        remote = StorePlace(url)
        shown = warm(tiny, remote, tmp_path / "warm", 150)
        assert shown == warm(tiny, place, tmp_path / "other", 1)
        assert {name for one in shown for search in one["searches"] for name in search.hits} > {"d0#0"}
        mine, card = play(tiny, tmp_path / "warm", remote, tmp_path / "http" / "run")
        folders, same = play(tiny, tmp_path / "warm", place, tmp_path / "folder" / "run")
    assert len(mine) == 24
    assert sum(bool(one["searches"]) for one in mine) >= 3
    assert {one["rewards"]["mrr"] for one in mine} > {0.0}
    assert mine == folders
    assert card == same
    with pytest.raises(UserError, match=rf"{url} gives no answer \(ConnectError.*\); start the store's server"):
        play(tiny, tmp_path / "warm", StorePlace(url, store_patience=0.5), tmp_path / "dead")


def test_a_server_that_dies_is_waited_for_but_not_one_of_another_store(tmp_path):
    words = StoreOptions(embedder="none")
    documents = [
        Document("gout", "Gout", "The toe hurts."),
        Document("flu", "", "A cough."),
        Document("x", "", "Rest."),
    ]
    DocumentStore.build(tmp_path / "first", documents, words)
    DocumentStore.build(tmp_path / "second", documents[:2], words)
    port = free_port()
    with serving(tmp_path / "first", port) as (process, url):
        remote = RemoteStore(url, patience=250)
        assert remote.search(["toe"], 1, "sparse")[0][0].chunk_id == "gout#0"
        process.send_signal(signal.SIGKILL)
        process.wait()
    with serving(tmp_path / "first", port):
        assert remote.search(["toe"], 1, "sparse")[0][0].chunk_id == "gout#0"
    command = [sys.executable, "document_store.py", "serve", "--store", str(tmp_path / "second"), "--port", str(port),
               "--mode", "sparse"]  # fmt: skip
    started = time.monotonic()
    late = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)  # it takes seconds to start
    try:
        with pytest.raises(UserError, match=f"{url} serves another store than at the start"):
            remote.search(["toe"], 1, "sparse")
        assert time.monotonic() - started > 0.25
    finally:
        late.kill()
        late.wait()
