"""Test collections: each form read by hand, each fault told by its line, and a folder that the other stages can use."""

from dataclasses import replace

import pytest

from data_prep import Options, main
from forage.data.chunking import Chunk
from forage.data.collection import by_id, questions_of, read_beir, read_qrels
from forage.data.options import DatasetOptions
from forage.data.records import read_questions
from forage.files import write_jsonl
from forage.store.options import StoreOptions
from tests.refusals import refused

HEADER = "query-id\tcorpus-id\tscore\n"
CORPUS = [
    {"_id": "d1", "title": "Gout", "text": "Crystals in a joint.", "metadata": {}},
    {"_id": "d2", "title": "Rest", "text": ""},
    {"_id": 3, "title": "", "text": "Ice  helps.\n\nHeat\tdoes not."},
    {"_id": "d4", "title": "", "text": " "},
]
QUERIES = [{"_id": "q1", "text": "what is gout"}, {"_id": "q2", "text": "what helps"}, {"_id": "q3", "text": "x"}]


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.fixture
def beir(tmp_path):
    folder = tmp_path / "beir"
    write_jsonl(folder / "corpus.jsonl", CORPUS)
    write_jsonl(folder / "queries.jsonl", QUERIES)
    write(folder / "qrels" / "test.tsv", f"{HEADER}q1\td1\t2\nq1\t3\t1\nq1\td2\t0\nq3\td2\t0\n")
    write(folder / "qrels" / "train.tsv", f"{HEADER}q2\t3\t1\n")
    return folder


def test_beirs_folder_by_hand(beir):
    collection = read_beir(beir, "test")
    assert [(d.id, d.title, d.text) for d in collection.documents] == [
        ("d1", "Gout", "Crystals in a joint."), ("d2", "Rest", "Rest"), ("3", "", "Ice helps.\nHeat does not."),
    ]  # fmt: skip
    # q3 has nothing that answers it, so it measures nothing.
    assert collection.judgements == {"test": {"q1": {"d1": 2, "3": 1, "d2": 0}}, "train": {"q2": {"3": 1}}}
    assert collection.queries["q2"] == "what helps"
    assert collection.left_out == {"document without text": 1}


def test_questions_have_every_chunk_of_what_answers_the_best_first(beir):
    collection = read_beir(beir, "test")
    chunks = [Chunk(doc, "", "x", 0, 1, n, 2) for doc in ("3", "d1", "d2") for n in range(2)]
    [question] = questions_of(collection, "test", chunks)
    assert (question.id, question.question, question.answer) == ("q1", "what is gout", "")
    assert question.relevant_doc_ids == ("d1", "3")
    assert question.relevant_chunk_ids == ("d1#0", "d1#1", "3#0", "3#1")


def test_judgements_of_what_is_not_there_are_counted(beir):
    write(beir / "qrels" / "test.tsv", f"{HEADER}q1\td9\t1\nq9\td1\t1\n\nq2\td1\t1\nq2\td4\t1\n")
    collection = read_beir(beir, "test")
    assert collection.judgements["test"] == {"q2": {"d1": 1}}
    assert collection.left_out["judgement of a query or document that is not there"] == 3


@pytest.mark.parametrize(
    ("read", "text", "told"),
    [
        (read_qrels, f"{HEADER}q1\td1\n", ":2: not query<tab>document<tab>whole number; fix"),
        (read_qrels, "q1\td1\thigh\n", ":1: not query"),
        (by_id, '{"_id": "a", "text": "x"}\n{"_id": \n', ":2: not JSON"),
        (by_id, '{"text": "x"}\n', ":1: no _id"),
        (by_id, '{"_id": "a", "text": "x"}\n{"_id": "a", "text": "y"}\n', ":2: no _id, or one that an earlier line"),
    ],
)
def test_what_is_broken_is_told_by_its_line(tmp_path, read, text, told):
    with refused(f"given{told}"):
        read(write(tmp_path / "given", text))


def prepare(beir, out, **changes):
    options = Options(out, dataset=DatasetOptions(str(beir)), store=StoreOptions(embedder="none"))
    main(replace(options, **changes))


def test_a_training_query_that_is_held_out_is_left_out(beir, tmp_path, capsys):
    """In the same words under another id, as some collections have them."""
    write_jsonl(beir / "queries.jsonl", [*QUERIES, {"_id": "q4", "text": "What is gout?"}])
    write(beir / "qrels" / "train.tsv", f"{HEADER}q2\t3\t1\nq4\td1\t1\n")
    prepare(beir, tmp_path / "data")
    assert "training queries that are held out, left out 1 " in " ".join(capsys.readouterr().out.split())
    assert [question.id for question in read_questions(tmp_path / "data" / "train.jsonl")] == ["q2"]
    rewriter = (tmp_path / "data" / "rewriter" / "train.jsonl").read_text()
    assert "gout" not in rewriter
