"""The comparison of ways to train a query writer: its split, its table by hand, and all of it on a tiny model."""

import json
from dataclasses import replace

import pytest

from bench import controls
from bench.controls import AGENT, Options, Row, draw, kept, prepare, table
from forage.agent.options import SearchOptions
from forage.agent.searcher import searching
from forage.arguments import parse
from forage.data.records import Document, Question, read_questions
from forage.errors import UserError
from forage.evaluation.setting import choose
from forage.files import write_jsonl
from forage.store.document_store import DocumentStore
from forage.store.opening import open_store
from forage.store.options import StoreOptions
from tests import ROOT


def row(arm, seed, temperature, ranks, **more):
    measures = {name: list(ranks) for name in ("mrr@10", "recall@5", "ndcg@10")}
    return Row("dev", "2026-11-23", arm, seed, temperature, "", measures, **more)


def test_the_table_pairs_each_arm_with_the_question_and_with_imitation_of_its_seed(tmp_path):
    rows = [
        row("the question", 0, 0.0, [0, 0, 1, 1]),
        row("imitation", 1, 0.0, [1, 0, 1, 0], well_formed=0.75, tokens=1234, minutes=5.4),
        row("GRPO", 1, 0.0, [1, 1, 1, 1], well_formed=1.0, tokens=99, minutes=7.0),
        row("GRPO", 2, 1.0, [1, 1, 1, 1]),  # there is no imitation of seed 2
    ]
    lines = table(rows, 4, "dev").splitlines()
    assert lines[0] == "4 dev questions:"
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[4:]]
    assert cells[0] == ["the question", "", "", "0.500", "0.500", "0.500", *[""] * 6]
    assert cells[1][6].startswith("+0.000 (")  # 1 - 0, 0 - 0, 1 - 1, 0 - 1
    assert cells[1][7:] == ["", "", "0.750", "1,234", "5"]
    # Differences 0, 1, 0, 1: a mean of .5, and of four draws with repeats all may be 0, so it is not clear of zero.
    assert cells[2][7] == "+0.500 (0.000 to 1.000)"
    assert cells[3][7] == ""
    draw(rows, 4, "dev", tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_what_was_measured_gives_the_published_table():
    """Of recall@5 over the policy that an arm starts from too: GRPO's seed 1 less short imitation's."""
    rows = [Row(**json.loads(line)) for line in (ROOT / "bench" / "controls.jsonl").read_text().splitlines()]
    assert {row.questions for row in rows} == {"c93de713853d205a"}
    lines = table(rows, 1000, "held-out").splitlines()
    assert (
        "| GRPO, credit by words | 1 | 0 | 0.708 | 0.749 | 0.696 | **+0.184** (0.160 to 0.208) | "
        "+0.022 (-0.000 to 0.043) | **-0.023** (-0.042 to -0.003) | 1.000 | 78,539 | 50 |"
    ) in lines


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Twelve diseases, of each of which is asked what mends it and whence it comes; two of them are held out."""
    folder, questions = tmp_path_factory.mktemp("medicine"), []
    texts = {"treatment": "Rest mends disease {}, and so does ice.", "causes": "Crystals bring about disease {}."}
    documents = [Document(f"{n}", f"Disease {n}", " ".join(texts.values()).format(n, n)) for n in range(240)]
    for document in documents:
        for kind, text in texts.items():
            asked = f"What mends disease {document.id}?" if kind == "treatment" else f"Whence disease {document.id}?"
            names = (document.id,), (f"{document.id}#0",)
            questions.append(Question(f"{kind}{document.id}", asked, text.format(document.id), kind, "", *names))
    DocumentStore.build(folder / "store", documents, StoreOptions(embedder="none"))
    held_out = {document.id for document in documents[:110]}
    write_jsonl(folder / "train.jsonl", [q for q in questions if q.relevant_doc_ids[0] not in held_out])
    write_jsonl(folder / "eval.jsonl", [q for q in questions if q.relevant_doc_ids[0] in held_out])
    return folder


@pytest.fixture
def options(data, tmp_path, monkeypatch):
    monkeypatch.setattr(controls, "run", lambda *_: None)
    return Options(data, tmp_path / "work", rows=tmp_path / "rows.jsonl")


def test_controls_search_as_the_agent_does(options):
    settings = replace(parse(SearchOptions, AGENT).settle(), k=10)
    texts = ["rest disease 7", "crystals disease 12"]
    found = searching(open_store(options.data / "store"), settings)(texts)
    assert controls.search(options, texts) == [[hit.chunk_id for hit in hits] for hits in found]


def test_dev_questions_are_trained_on_by_no_arm_and_held_out_ones_are_those_never_looked_at(data, options):
    prepare(options)
    kept, dev = (read_questions(options.work / "data" / f"{name}.jsonl") for name in ("train", "eval"))
    assert {q.id for q in kept} | {q.id for q in dev} == {q.id for q in read_questions(data / "train.jsonl")}
    assert not {q.relevant_doc_ids for q in kept} & {q.relevant_doc_ids for q in dev}
    prepare(replace(options, held_out=True))
    held_out = read_questions(data / "eval.jsonl")
    asked = read_questions(options.work / "held-out" / "eval.jsonl")
    assert len(asked) == 220 - 200
    assert {q.id for q in asked} == {q.id for q in held_out} - {q.id for q in choose(held_out, 200, 0)}


def test_a_row_is_measured_once_and_only_of_the_same_questions(options):
    asked = [Question("q", "What?", "That.")]
    made = kept(options, asked, "GRPO", 1, 0.0, lambda _: {"measures": {"mrr@10": [1.0]}, "tokens": 7})
    assert kept(options, asked, "GRPO", 1, 0.0, lambda _: pytest.fail("it is there")) == made
    kept(replace(options, held_out=True), asked, "GRPO", 1, 0.0, lambda _: {"measures": {}})
    kept(options, asked, "GRPO", 1, 1.0, lambda _: {"measures": {}})
    rows = [json.loads(line) for line in options.rows.read_text().splitlines()]
    assert [(row["split"], row["temperature"]) for row in rows] == [("dev", 0.0), ("held-out", 0.0), ("dev", 1.0)]
    with pytest.raises(UserError, match="was measured on other questions; give another file as --rows"):
        kept(options, [Question("r", "What?", "That.")], "GRPO", 1, 0.0, dict)
