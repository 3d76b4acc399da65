"""`data_prep.py --documents`: a folder of files becomes a data folder that the later stages read."""

import json
import sys

import pytest

from forage.data.records import read_documents, read_questions
from forage.files import json_lines
from forage.store.document_store import DocumentStore
from tests.extras.questions.chat_server import chat_server, good_reply
from tests.here import run_here
from tests.own_files import write_files


def command(files, out, *arguments):
    more = [] if "--embedder" in arguments else ["--embedder", "none"]
    return [sys.executable, "data_prep.py", "--documents", files, "--output-dir", out, *more, *arguments]


def prepare(files, out, *arguments, check=True):
    done = run_here(command(files, out, *arguments))
    assert not check or done.returncode == 0, done.stderr
    return done


def questions(out):
    return [q for name in ("train", "eval") for q in read_questions(out / f"{name}.jsonl")]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own") / "notes"
    write_files(folder)
    (folder / "letter.docx").write_bytes(b"PK")
    (folder / ".hidden").mkdir()
    return folder


@pytest.fixture(scope="module")
def prepared(files, tmp_path_factory):
    out = tmp_path_factory.mktemp("prepared") / "data"
    out.joinpath("..", "said").resolve().write_text(prepare(files, out).stdout)
    return out


def test_the_data_folder_is_whole(prepared):
    documents = read_documents(prepared / "documents.jsonl")
    assert len(documents) == 20
    store = DocumentStore.open(prepared / "store")
    train, held_out = read_questions(prepared / "train.jsonl"), read_questions(prepared / "eval.jsonl")
    assert len(train) >= 16
    assert len(held_out) >= 4
    for question in [*train, *held_out]:
        assert question.question_type == "title"
        [doc_id] = question.relevant_doc_ids
        texts = [store.chunk_by_id[chunk_id].text for chunk_id in question.relevant_chunk_ids]
        assert all(store.chunk_by_id[chunk_id].doc_id == doc_id for chunk_id in question.relevant_chunk_ids)
        said = " ".join(" ".join(texts).split())
        assert question.answer in said
    assert json.loads((prepared / "rewriter" / "pubmed_corpus.json").read_text())


# A chat model


def by_model(chat, *arguments):
    return ["--make-questions", "m", "--make-questions-url", chat.url, *arguments]


def test_a_model_writes_the_questions(files, tmp_path):
    """What it says and how it refuses is tested by itself, in tests/extras/questions."""
    with chat_server(lambda prompt, number: good_reply(prompt)) as chat:
        prepare(files, tmp_path, *by_model(chat, "--min-questions", "5"))
        passages = len(DocumentStore.open(tmp_path / "store").chunks)
        assert len(chat.asked) == len(set(chat.asked)) == passages
        kept = questions(tmp_path)
        assert {question.question_type for question in kept} == {"model"}
        assert len(kept) >= 12


def test_own_questions_about_own_documents(files, prepared, tmp_path):
    """Those that were made, as if they were one's own: with a file, with an answer, and one that nothing answers."""
    made = questions(prepared)
    path_of = {row["document_id"]: row["path"] for _, row in json_lines(prepared / "manifest.jsonl")}
    rows = [{"question": q.question, "answer": q.answer} for q in made[::2]]
    rows += [{"question": q.question, "source": path_of[q.relevant_doc_ids[0]]} for q in made[1::2]]
    asked = tmp_path / "asked.jsonl"
    asked.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"question": "Who?", "answer": "My aunt Zora"}]))
    done = prepare(files, tmp_path / "data", "--questions", str(asked))
    placed = {q.question: q.relevant_doc_ids for q in questions(tmp_path / "data")}
    assert placed.keys() == {q.question for q in made}
    assert all(set(q.relevant_doc_ids) <= set(placed[q.question]) for q in made)
    assert "left out, see questions_left_out.jsonl         1 (answer in no passage 1)" in done.stdout
    [(_, left_out)] = json_lines(tmp_path / "data" / "questions_left_out.jsonl")
    assert (left_out["cause"], left_out["question"]) == ("answer in no passage", "Who?")
