"""Edits of a store, by this process and by others, killed ones too; with a real Chroma."""

import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import chromadb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from forage.data.records import Document
from forage.store import document_store, vectors
from forage.store.document_store import DocumentStore
from forage.store.vectors import VectorCollection
from tests import ROOT
from tests.kills import start
from tests.refusals import refused
from tests.store.edit_worker import OPTIONS, perform, state_after
from tests.word_embedder import WordEmbedder

WORDS = "gout toe night cough fever airway iron pale rest crystal".split()
QUERIES = ["gout at night", "pale with fever", "crystal"]
DOCUMENTS = [
    {"id": "gout", "title": "Gout", "text": "Crystals gather in a toe. It hurts at night.", "metadata": {"year": 2020}},
    {"id": "flu", "title": "Flu", "text": "Fever and a dry cough.", "metadata": {"year": 2024, "kind": "news"}},
    {"id": "iron", "title": "Anemia", "text": "Too little iron. The skin is pale."},
]


@pytest.fixture(autouse=True)
def words_embedder(monkeypatch):
    monkeypatch.setattr(document_store, "Embedder", WordEmbedder)


@pytest.fixture
def store(tmp_path):
    return DocumentStore.build(tmp_path / "store", DOCUMENTS, OPTIONS)


def found(store):
    """All that searches say of a store."""
    ways = [(mode, where) for mode in ("sparse", "dense", "hybrid") for where in (None, {"year": {"$gt": 2021}})]
    return [store.search(QUERIES, 5, mode, where=where) for mode, where in ways]


def assert_as_built(store, state):
    """The store is what a fresh build of these documents is, in this handle and opened anew."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = DocumentStore.build(Path(folder) / "fresh", state.values(), OPTIONS)
        assert list(store) == list(fresh)
        assert len(store) == len(fresh) == len(state)
        assert store.fingerprint == fresh.fingerprint
        assert store.manifest.files == fresh.manifest.files
        assert found(store) == found(fresh)
        opened = DocumentStore.open(store.path)
        assert found(opened) == found(fresh)
        assert list(opened) == list(fresh)


def vectors_of(store):
    collection = VectorCollection(store.manifest.collection, store.path / "chroma")
    keys = collection.keys()
    collection.close()
    return keys


def by_another_process(tmp_path, path, *edits):
    (tmp_path / "edits").write_text(json.dumps(edits))
    args = ["-m", "tests.store.edit_worker", path, tmp_path / "edits", tmp_path / "done"]
    subprocess.run([sys.executable, *map(str, args)], cwd=ROOT, check=True)


def test_a_store_is_its_documents(store):
    assert len(store) == 3
    assert [document.id for document in store] == ["gout", "flu", "iron"]
    assert "gout" in store
    assert store.get("gout") == Document(**DOCUMENTS[0])
    assert store.get("none") is None
    with DocumentStore.open(store.path) as opened:
        assert list(opened) == list(store)
    with DocumentStore.open(store.path) as closed:
        pass
    with refused("is closed"):
        closed.get("gout")


def test_an_edit_embeds_only_what_is_new_and_leaves_nothing_behind(store):
    store.add(["A rash.", {"id": "flu", "text": "Aching muscles."}])
    assert store.embedded == 2
    assert [document.id for document in store] == ["gout", "flu", "iron", "0"]
    store.add([Document("7", "", "Hives.")])
    store.add(["Itching."])
    assert list(store)[-1].id == "8"
    store.delete(["gout", "0"])
    store.delete("7")
    assert store.embedded == 0
    assert [document.id for document in store] == ["flu", "iron", "8"]
    assert vectors_of(store) == set(store.vector_keys)
    assert len(set(store.vector_keys)) == len(store.chunks)


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda store: store.delete(["gout", "none"]), "has no document 'none' to delete"),
        (lambda store: store.delete(["gou"]), "no document 'gou' to delete; 'gout' is there"),
        (lambda store: store.delete(["gout", "flu", "iron"]), "no documents to build a store from"),
        (lambda store: store.add("A rash."), "documents come in a list"),
        (lambda store: store.add([{"id": "a", "text": "b"}] * 2), "'a' occurs twice"),
        (lambda store: store.add([Document("a", "", 5)]), "document 'a' can't be kept"),
    ],
)
def test_an_edit_that_can_not_be_made_is_one_line_and_changes_nothing(store, edit, says):
    before = found(store)
    with refused(says):
        edit(store)
    assert len(store) == len(DocumentStore.open(store.path)) == 3
    assert found(store) == before


def test_edits_by_two_handles_are_both_kept(store):
    other = DocumentStore.open(store.path)
    store.add([{"id": "rash", "text": "Hives."}])
    assert len(other) == 3
    other.delete(["gout"])
    assert [document.id for document in other] == ["flu", "iron", "rash"]
    assert store.search("crystals in a toe", 1, "dense")[0].doc_id == "gout"


# The same as a fresh build


texts = some.lists(some.sampled_from(WORDS), max_size=12).map(" ".join)
metadata = some.fixed_dictionaries({}, optional={"year": some.integers(2020, 2024), "kind": some.sampled_from("ab")})
documents = some.lists(
    some.builds(
        lambda doc_id, title, text, metadata: {"id": doc_id, "title": title, "text": text, "metadata": metadata},
        some.sampled_from("abcdef"), some.sampled_from(WORDS), texts, metadata,
    ),
    min_size=1, max_size=4, unique_by=lambda document: document["id"],
)  # fmt: skip
edits = some.one_of(
    some.tuples(some.just("add"), documents),
    some.tuples(some.just("delete"), some.lists(some.sampled_from("abcdef"), max_size=3)),
    some.tuples(some.just("build"), documents),
)


@settings(max_examples=20, deadline=None)
@given(documents, some.lists(edits, max_size=5))
def test_any_edits_end_as_a_fresh_build_of_the_same_documents(first, then):
    with tempfile.TemporaryDirectory() as folder:
        store, state = DocumentStore.build(Path(folder) / "store", first, OPTIONS), state_after({}, "build", first)
        for edit, given_ in then:
            given_ = [doc_id for doc_id in given_ if doc_id in state] if edit == "delete" else given_
            after = state_after(state, edit, given_)
            if not after:
                continue
            if edit == "build":
                store.close()
                store = perform(store.path, edit, given_)
            else:
                getattr(store, edit)(given_)
            state = after
            assert [document.id for document in store] == list(state)
        assert_as_built(store, state)
        assert vectors_of(store) == set(store.vector_keys)


def sequence(draw, length):
    """Edits that can be made one after the other, and what the store holds after each."""
    numbers = iter(range(10_000))

    def some_documents(ids):
        return [
            {"id": doc_id, "title": f"Note {next(numbers)}", "metadata": {"year": draw.randint(2020, 2024)},
             "text": " ".join(draw.choices(WORDS, k=draw.randint(0, 30)))}
            for doc_id in draw.sample(ids, draw.randint(1, 4))
        ]  # fmt: skip

    made, states = [], [state_after({}, "build", first := some_documents("abcdef"))]
    while len(made) < length:
        edit = draw.choice(["add", "delete", "build"])
        given_ = draw.sample(sorted(states[-1]), 1) if edit == "delete" else some_documents("abcdef")
        if after := state_after(states[-1], edit, given_):
            made.append((edit, given_))
            states.append(after)
    return first, made, states


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(9))
def test_a_killed_editor_leaves_the_store_before_or_after(tmp_path, seed):
    draw = random.Random(seed)
    by_the_clock = seed % 3 == 0  # it reaches what Chroma writes
    first, made, states = sequence(draw, 40 if by_the_clock else 6)
    arena = tmp_path / "arena"
    perform(arena / "store", "build", first).close()
    (arena / "edits").write_text(json.dumps(made))
    command = ["-m", "tests.store.edit_worker", arena / "store", arena / "edits", arena / "done"]
    editor = start(command, arena, {} if by_the_clock else {draw.randint(1, 150): signal.SIGKILL})
    if by_the_clock:
        time.sleep(draw.uniform(0.2, 2))
        editor.process.kill()
    assert editor.wait() in (0, -signal.SIGKILL), editor.said
    done = len((arena / "done").read_text().split()) if (arena / "done").exists() else 0
    store = DocumentStore.open(arena / "store")
    ids = [document.title for document in store]
    [now] = [n for n, state in enumerate(states[done : done + 2], done) if ids == [d["title"] for d in state.values()]]
    assert_as_built(store, states[now])
    print(f"killed at {editor.last}: {now} of {len(made)} edits, {done} told")
    store.add([{"id": "last", "text": "Rest."}])
    assert_as_built(store, states[now] | {"last": {"id": "last", "text": "Rest."}})
    assert vectors_of(store) == set(store.vector_keys)


# What is open


@pytest.mark.slow
def test_an_open_handle_stays_as_it_was_whatever_other_processes_do(store, tmp_path):
    before = found(store)
    store.close()
    opened, searching, words = (DocumentStore.open(store.path) for _ in range(3))
    assert found(searching) == before
    by_another_process(
        tmp_path, store.path, ["add", [{"id": "rash", "text": "Hives."}]], ["delete", ["gout"]],
        ["build", [{"id": "new", "text": "Nothing is as it was."}]], ["add", [{"id": "flu", "text": "Else."}]],
    )  # fmt: skip
    for handle in (opened, searching):
        assert found(handle) == before
        assert [document.id for document in handle] == ["gout", "flu", "iron"]
    assert words.search(QUERIES, 5, "sparse") == before[0]
    assert len(vectors_of(store)) > 2  # `words` may still ask for what it was opened with
    words.close()
    by_another_process(tmp_path, store.path, ["delete", ["flu"]])
    last = DocumentStore.open(store.path)
    assert [document.text for document in last] == ["Nothing is as it was."]
    assert vectors_of(last) == set(last.vector_keys)


@pytest.mark.slow
def test_whoever_opens_a_store_that_is_being_edited_finds_it_before_or_after(tmp_path):
    first, made, states = sequence(random.Random(1), 40)
    perform(tmp_path / "store", "build", first).close()
    (tmp_path / "edits").write_text(json.dumps(made))
    args = ["-m", "tests.store.edit_worker", tmp_path / "store", tmp_path / "edits", tmp_path / "done"]
    titles, seen = [[document["title"] for document in state.values()] for state in states], []
    with subprocess.Popen([sys.executable, *map(str, args)], cwd=ROOT) as editor:
        while editor.poll() is None:
            with DocumentStore.open(tmp_path / "store") as store:
                assert len(store.search("gout at night", 50, "dense")) == min(50, len(store.chunks))
                assert {chunk.doc_id for chunk in store.chunks} <= {document.id for document in store}
                seen.append(titles.index([document.title for document in store]))
    assert editor.returncode == 0
    assert seen == sorted(seen)
    assert len(set(seen)) > 5


def test_an_edited_copy_leaves_the_originals_vectors_on_the_server(tmp_path, monkeypatch):
    monkeypatch.setattr(vectors, "_server", lambda url: chromadb.PersistentClient(str(tmp_path / "server")))
    options = replace(OPTIONS, chroma_url="http://chroma")
    original = DocumentStore.build(tmp_path / "store", DOCUMENTS, options)
    before = found(original)
    original.close()
    for copy in (tmp_path / "copy", tmp_path / "other"):
        shutil.copytree(original.path, copy)
    DocumentStore.open(tmp_path / "copy").delete(["gout"])
    DocumentStore.build(tmp_path / "other", DOCUMENTS[:1], replace(options, embedder="none"))
    moved = (tmp_path / "store").rename(tmp_path / "moved")
    assert found(DocumentStore.open(moved)) == before
    again = DocumentStore.build(moved, DOCUMENTS[1:], options)
    assert (again.embedded, again.manifest.collection) == (0, original.manifest.collection)
    assert len(DocumentStore.open(tmp_path / "copy").search("fever", 5, "dense")) == len(again.chunks)
