"""One byte, key or type changed in a file of a data folder, a store, a policy or a run, or in a reply of a vLLM server:
the right result, or one line; never a traceback, and never another figure in silence.
"""

import contextlib
import io
import json
import random
import shutil
import time
import traceback
from dataclasses import asdict, replace

import httpx
import pytest
from chromadb.api.shared_system_client import SharedSystemClient

from forage.agent.options import AgentSettings, read_agent, write_agent
from forage.arguments import UNWRITABLE
from forage.data.records import Document, Question, read_documents, read_questions
from forage.engines import vllm
from forage.engines.base import Request, Sample
from forage.engines.vllm import UnreadyError
from forage.errors import UserError
from forage.files import write_jsonl
from forage.policy.manifest import read_policy_manifest
from forage.policy.policy import load_policy
from forage.store import document_store
from forage.store.document_store import DocumentStore
from forage.store.options import StoreOptions
from tests.tiny import make_tiny
from tests.tiny_training import adapter_bytes, tiny_options, train
from tests.word_embedder import WordEmbedder

COUNTS = {"a store": 200, "a policy": 100, "a run": 20}  # that a test tries; 300 of others
OTHERS = (None, True, -1, 0, 2.5, 1e308, "", "x", [], {}, [[1]], {"x": 1})
QUERIES = ["mended by remedy 3", "disease 5", "rest"]


# Changes


def changed(rng, content):
    """One byte of a file changed or, of JSON and a line of JSON Lines, a key or the type of a value; and in words."""
    lines = content.splitlines(keepends=True)
    if rng.random() < 0.5:
        with contextlib.suppress(ValueError):
            whole = json.loads(content) if content[:1] == b"{" and len(lines) != len(content.split(b"\n{")) else None
            number = 0 if whole else rng.randrange(len(lines))
            value = whole or json.loads(lines[number])
            if value and isinstance(value, dict | list):  # a line of a binary file can be a bare number
                value, words = changed_value(rng, value)
                text = json.dumps(value).encode()
                return (text if whole else b"".join([*lines[:number], text + b"\n", *lines[number + 1 :]])), words
    place = rng.randrange(len(content))
    part = rng.choice([b"", bytes([content[place] ^ 1 << rng.randrange(8)]), b"\n", b"\0", b"\xff", b"7", b'"'])
    if rng.random() < 0.1:
        return content[:place], f"cut at byte {place} of {len(content)}"
    return content[:place] + part + content[
        place + 1 :
    ], f"byte {place} is {part!r} instead of {content[place : place + 1]!r}"


def changed_value(rng, value):
    """A key dropped or renamed, or a value replaced by one of another type, at a place drawn level by level."""
    value = json.loads(json.dumps(value))
    holder, way = value, []
    while True:
        key = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        way.append(str(key))
        if not (isinstance(holder[key], dict | list) and holder[key] and rng.random() < 0.7):
            break
        holder = holder[key]
    change = rng.randrange(3)
    if change == 0:
        del holder[key]
        return value, f"without {'.'.join(way)}"
    if change == 1 and isinstance(holder, dict):
        holder[f"{key}_"] = holder.pop(key)
        return value, f"{'.'.join(way)} renamed"
    holder[key] = rng.choice([other for other in OTHERS if type(other) is not type(holder[key])])
    return value, f"{'.'.join(way)} is {holder[key]!r}"


# What is changed, and what reads it


class Folder:
    """Files, and what is read from them. Another value than before is wrong, unless `says` explains it."""

    def __init__(self, source, place):
        shutil.copytree(source, place)
        self.source, self.place = source, place
        self.files = sorted(path.relative_to(source) for path in source.rglob("*") if self.wanted(path))
        self.right = self.read()
        self.restore()  # reading a run goes on with it

    def wanted(self, path):
        return path.is_file() and path.stat().st_size and not path.name.startswith(".")

    def change(self, rng):
        file = rng.choice(self.files)
        content, words = changed(rng, (self.source / file).read_bytes())
        (self.place / file).write_bytes(content)
        return f"{file}: {words}"

    def restore(self):
        shutil.rmtree(self.place)
        shutil.copytree(self.source, self.place)

    def says(self, found):
        return False


class Data(Folder):
    """Questions and documents, which people write too: what is read is what the file says, in the right types."""

    def wanted(self, path):
        return path.suffix == ".jsonl" and path.parent == self.source

    def read(self):
        found = {}
        for name in self.files:
            kind, read = (Document, read_documents) if name.stem == "documents" else (Question, read_questions)
            found[name] = [(kind, asdict(each)) for each in read(self.place / name)]
        return found

    def says(self, found):
        for name, rows in found.items():
            lines = [json.loads(line) for line in (self.place / name).read_bytes().splitlines() if line.strip()]
            for line, (kind, row) in zip(lines, rows, strict=True):
                for field, value in row.items():
                    said = line.get(field, {} if field == "metadata" else kind.__dataclass_fields__[field].default)
                    if not isinstance(value, str | tuple | dict) or value != (
                        tuple(said) if isinstance(said, list) else said
                    ):
                        return False
        return True


class Store(Folder):
    def read(self):
        store = DocumentStore.open(self.place)
        return [store.search(QUERIES, 5, mode) for mode in ("sparse", "dense", "hybrid")], store.fingerprint

    def restore(self):
        """Chroma keeps the client that it could not open a damaged folder with."""
        SharedSystemClient._identifier_to_system.clear()
        SharedSystemClient._identifier_to_refcount.clear()
        super().restore()

    def says(self, found):
        """The hits are right, and the store is another one to every run that knows it."""
        return found[0] == self.right[0] and found[1] != self.right[1]


class Run(Folder):
    """A run of two steps goes on with a third."""

    def __init__(self, source, place, options):
        self.options = options
        super().__init__(source, place)

    def wanted(self, path):
        return super().wanted(path) and path.suffix not in (".png", ".html", ".txt", ".patch")

    def read(self):
        train(self.options)
        return adapter_bytes(self.place, 3)


class Reply(Folder):
    """A server's reply. What has the right types may say something else."""

    def text(self):
        return (self.place / "reply.json").read_bytes()

    def read(self):
        return sample_of(self.text())

    def says(self, found):
        return found == sample_said(json.loads(self.text()))


def outcome(thing):
    try:
        found = thing.read()
    except (UserError, UnreadyError) as error:
        return "one line" if "\n" not in str(error) else f"lines: {error}"
    except OSError as error:
        return "one line" if error.errno in UNWRITABLE else traceback.format_exc()
    except Exception:  # noqa: BLE001 counted and shown
        return traceback.format_exc()
    return "right" if found == thing.right else "as it says" if thing.says(found) else "silent"


def attack(thing, count, seed):
    """What went wrong."""
    wrong = []
    for number in range(count):
        words, began = thing.change(random.Random(f"{seed}/{number}")), time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            what = outcome(thing)
        if what not in ("right", "one line", "as it says"):
            wrong.append(f"{words}\n{what}")
        if (seconds := time.perf_counter() - began) > 30:
            wrong.append(f"{words}\ntook {seconds:.0f} s")
        thing.restore()
    return wrong


# The formats


class Policy(Folder):
    """A policy is loaded, with its adapter and how it plays."""

    def read(self):
        manifest = read_policy_manifest(self.place)
        weights = load_policy(manifest, device="cpu").state_dict()
        return read_agent(self.place), manifest, {name: weight.tolist() for name, weight in weights.items()}

    def says(self, found):
        """The weights are right. How it plays, and in what type, is what the files say or leave to defaults."""
        if found[2] != self.right[2] and found[1].dtype == self.right[1].dtype:
            return False
        for file, settings in zip(("agent.json", "model.json"), found[:2], strict=True):
            said = json.loads((self.place / file).read_bytes())
            read = json.loads(json.dumps(asdict(settings), default=str))
            if any(read[name] != value for name, value in said.items()):
                return False
        return True


def sample_of(content):
    request = Request(ids=(1, 5), max_tokens=3, stop_ids=(2,))
    return vllm.read_sample(vllm.choice_of(httpx.Response(200, content=content)), request, 512)


def sample_said(reply):
    [choice] = reply["choices"]
    return Sample(tuple(choice["token_ids"]), tuple(choice["logprobs"]["token_logprobs"]), choice["finish_reason"])


COMPLETION = {
    "choices": [
        {
            "token_ids": [7, 5, 2], "logprobs": {"token_logprobs": [-0.5, -1, -0.25]}, "finish_reason": "stop",
            "prompt_token_ids": [1, 5],
        }
    ]
}  # fmt: skip


def folders(folder):
    tiny = make_tiny(folder / "tiny")
    write_agent(AgentSettings(mode="sparse", max_turn_tokens=12, max_turns=2), tiny / "policy")
    documents = [Document(f"d{n}", f"Disease {n}", f"Disease {n} is mended by remedy {n}.") for n in range(8)]
    DocumentStore.build(folder / "store", documents, StoreOptions(embedder="words"))
    write_jsonl(tiny / "data" / "documents.jsonl", documents)
    options = tiny_options(tiny, folder / "run", max_steps=2)
    train(options)
    (folder / "reply").mkdir()
    (folder / "reply" / "reply.json").write_text(json.dumps(COMPLETION))
    return {
        "a completion": lambda place: Reply(folder / "reply", place),
        "data": lambda place: Data(tiny / "data", place),
        "a store": lambda place: Store(folder / "store", place),
        "a policy": lambda place: Policy(tiny / "policy", place),
        "a run": lambda place: Run(folder / "run", place, replace(options, run_dir=place, max_steps=3)),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a completion", "data", "a store", "a policy", "a run"])
def test_a_changed_file_or_reply_is_right_or_one_line(name, made, tmp_path):
    wrong = attack(made[name](tmp_path / name), COUNTS.get(name, 300), seed=1)
    assert not wrong, "\n".join(wrong[:5])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(document_store, "Embedder", WordEmbedder)
        yield folders(tmp_path_factory.mktemp("formats"))
