"""The whole stage: the sample data from its own server, other data sets, and kills."""

import hashlib
import json
import re
import sys

import pytest

from forage.data.records import read_questions
from forage.store.document_store import DocumentStore
from tests import ROOT
from tests.extras.questions.chat_server import chat_server
from tests.here import run_here


def prepare(folder, *arguments, check=True):
    command = [sys.executable, "data_prep.py", "--output-dir", folder, "--content-dir", folder / "pages"]
    command += ["--cache-dir", folder / "cache", *arguments]
    done = run_here(command)
    assert not check or done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sample")
    prepare(folder, "--dataset-name", "sample")
    return folder


def test_relevant_chunks_are_in_the_store_and_hold_the_answer(prepared):
    store = DocumentStore.open(prepared / "store")
    for question in read_questions(prepared / "train.jsonl"):
        assert question.relevant_chunk_ids
        chunks = [store.chunk_by_id[chunk_id] for chunk_id in question.relevant_chunk_ids]
        assert {chunk.doc_id for chunk in chunks} == set(question.relevant_doc_ids)
        words = question.answer.split()
        held = set(" ".join(chunk.text for chunk in chunks).split())
        assert sum(word in held for word in words) >= 0.9 * len(words), question.id


def test_questions_that_need_two_documents_are_beside_the_others(tmp_path):
    given = ["--dataset-name", ROOT / "sample_data" / "questions.jsonl", "--no-scrape", "--embedder", "none"]
    done = prepare(tmp_path, *given, "--second-hop", "3", "4")
    [told] = [line for line in done.stdout.splitlines() if line.startswith("questions for two searches, second_hop_3")]
    assert re.search(r"shown by the first title \d%, the name .* \d\d% \(sparse\)", told)
    assert re.search(
        r"^answers shown by searches, sparse +by one 0%, .* by whole documents \d%", done.stdout, re.MULTILINE
    )
    assert f"--data {tmp_path / 'second_hop_4'} " in done.stdout  # what is advised is of these questions
    hidden = tmp_path / "second_hop_4"
    assert DocumentStore.open(hidden / "store").chunks
    train, held_out = (read_questions(hidden / f"{name}.jsonl") for name in ("train", "eval"))
    assert len(train) > len(held_out) > 5
    sides = [
        {doc for q in side for doc in (*q.relevant_doc_ids, q.id.rpartition("-after-")[2])}
        for side in (train, held_out)
    ]
    assert not sides[0] & sides[1]  # neither the documents that answer nor those that mention them
    assert not {q.focus.lower() for q in train} & {q.focus.lower() for q in held_out}
    assert len((hidden / "questions_left_out.jsonl").read_text().splitlines()) > 5
    with chat_server(lambda prompt, number: f'{{"description": "one: ill {number}."}}') as chat:
        model = ["--make-questions", "m", "--make-questions-url", chat.url]
        prepare(tmp_path, *given, "--second-hop", "4", *model)
        described = read_questions(hidden / "train.jsonl")
        assert all(question.question.startswith("one, ill ") for question in described)
        assert len(described) > 20
        asked = len(chat.asked)
        assert asked == len(set(chat.asked))
        prepare(tmp_path, *given, "--second-hop", "4", *model)
        assert len(chat.asked) == asked
    prepare(tmp_path, *given)  # they would name chunks of another store
    assert not (hidden / "train.jsonl").exists()
    refused = prepare(tmp_path, *given, "--second-hop", "0", check=False)
    assert refused.stderr.startswith("error: --second-hop 0")


def test_a_second_run_fetches_and_embeds_nothing_and_writes_the_same(prepared):
    names = ["documents.jsonl", "manifest.jsonl", "train.jsonl", "eval.jsonl", "rewriter/pubmed_corpus.json"]
    before = {name: (prepared / name).read_bytes() for name in names}
    page = next((prepared / "pages").rglob("*.html"))
    written = page.stat().st_mtime_ns
    done = prepare(prepared, "--dataset-name", "sample")
    assert "(embedded now: 0)" in done.stdout
    shown = r"^answers shown by searches, hybrid +by one \d\d%, by one of 9 passages \d\d%, by whole documents"
    assert re.search(shown, done.stdout, re.MULTILINE)
    assert re.search(r"^answers mostly cut off in the passages shown +28%$", done.stdout, re.MULTILINE)
    assert "7 (on 16 pages: 'Reviewed by the library’s editors. " in done.stdout
    assert {name: (prepared / name).read_bytes() for name in names} == before
    assert page.stat().st_mtime_ns == written


def digests(folder):
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest()[:16] for name in OF_ANSWERS}


# What is written of the sample: no change of the code may change it unawares.
OF_ANSWERS = {
    "documents.jsonl": "b5527018c8e80e36",
    "manifest.jsonl": "d1da47b235c62615",
    "train.jsonl": "3fc3d4877a4759a1",
    "eval.jsonl": "d4b18f4368465689",
    "rewriter/pubmed_corpus.json": "985b545c694c0bcf",
    "rewriter/train.jsonl": "0c7eb356e39301d5",
    "rewriter/eval.jsonl": "6487cb0f9b7a225d",
    "store/chunks.jsonl": "652327f0bcb21847",
}


def test_the_sample_gives_what_it_always_gave(prepared, tmp_path):
    prepare(tmp_path, "--dataset-name", ROOT / "sample_data" / "questions.jsonl", "--no-scrape", "--embedder", "none")
    assert digests(tmp_path) == OF_ANSWERS
    assert digests(prepared)["documents.jsonl"] == "8fd7239d38a2d5a0"  # from its pages


def test_a_second_run_that_ends_early_leaves_no_questions_of_the_first(tmp_path):
    """They name chunks of a store that is no more."""
    rows = [{"question": f"What helps against disease {n}?", "answer": f"Remedy {n} helps."} for n in range(8)]
    path, out = tmp_path / "rows.jsonl", tmp_path / "data"
    given = ["data_prep.py", "--no-scrape", "--embedder", "none", "--dataset-name", path, "--output-dir", out]

    def prepare(count):
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows[:count]))
        return run_here([sys.executable, *given]).returncode

    assert prepare(8) == 0
    assert (out / "train.jsonl").is_file()
    assert prepare(1) == 1  # one question can't be split
    assert not (out / "train.jsonl").exists()
    assert not (out / "eval.jsonl").exists()
    assert prepare(8) == 0
    assert len((out / "train.jsonl").read_text().splitlines()) + len((out / "eval.jsonl").read_text().splitlines()) == 8
