"""The comparison of ways to train an agent that searches again: its measures and its table by hand, its split."""

import json
import shlex
from dataclasses import replace

import pytest

from bench import controls
from bench.controls import (
    AGENT,
    ARMS,
    GRPO,
    IMITATION,
    SCRIPT,
    TITLE,
    WARM,
    Options,
    Row,
    kept,
    measured,
    prepare,
    table,
)
from bench.expansion import WHOLE
from forage.agent.options import SearchOptions
from forage.agent.searcher import searching
from forage.arguments import parse
from forage.data.records import Document, Question, read_questions
from forage.errors import UserError
from forage.files import write_jsonl
from forage.store.document_store import DocumentStore
from forage.store.opening import open_store
from forage.store.options import StoreOptions
from tests import ROOT


def row(arm, seed, temperature, ranks, **more):
    measures = {"best@10": list(ranks), "found": list(ranks), "searches": [2] * len(ranks), "named": list(ranks)}
    return Row("dev 6", "2026-11-26", arm, seed, temperature, "", measures, **more)


def test_the_table_pairs_each_arm_with_those_of_its_seed_and_temperature():
    rows = [
        row(TITLE, 0, 0.0, [0, 0, 0, 1]),
        row(SCRIPT, 0, 0.0, [1, 1, 0, 0]),
        row(WARM, 1, 0.0, [0, 0, 1, 0], tokens=9),
        row(IMITATION, 2, 0.0, [1, 0, 1, 0], well_formed=0.75, tokens=1234, minutes=5.4),
        row(GRPO, 2, 0.0, [1, 1, 1, 1], tokens=99, minutes=7.0),
        row(GRPO, 2, 1.0, [1, 1, 1, 1]),  # nothing else was sampled
    ]
    lines = table(rows, 4, "dev 6").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[4:]]
    head = [cell.strip() for cell in lines[2].strip("|").split("|")]
    warm, imitation, title, whole, script = (
        head.index(name)
        for name in (f"over {WARM}", f"over {IMITATION}", f"over {TITLE}", f"over {WHOLE}", "of the script's")
    )
    assert cells[1][script] == "100%"
    # Of four draws with repeats all may be 0, so a mean of .5 of 0, 1, 0, 1 is not clear of zero, but .75 is.
    assert cells[4][imitation] == "+0.500 (0.000 to 1.000)"
    assert cells[4][warm].startswith("**+0.750**")
    assert (cells[4][title][:10], cells[4][whole], cells[4][script]) == ("**+0.750**", "", "200%")
    assert (cells[5][warm], cells[5][imitation]) == ("", "")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Diseases, each with a passage of what mends it; all but 40 questions, two a subject, are held out."""
    folder, questions = tmp_path_factory.mktemp("medicine"), []
    documents = [Document(f"{n}", f"Disease x{n}", f"Rest mends it, and ice does, number {n}.") for n in range(900)]
    for document in documents:
        names = (document.id,), (f"{document.id}#0",)
        asked = f"word{document.id}: What mends this?"
        questions.append(Question(f"q{document.id}", asked, document.text, "", document.title, *names))
    train = [replace(question, focus=f"Disease x{number % 20}") for number, question in enumerate(questions[:40])]
    DocumentStore.build(folder / "store", documents, StoreOptions(embedder="none"))
    for words in (5, 6):
        write_jsonl(folder / f"second_hop_{words}" / "train.jsonl", train)
        write_jsonl(folder / f"second_hop_{words}" / "eval.jsonl", questions[40:])
    return folder


@pytest.fixture
def options(data, tmp_path, monkeypatch):
    monkeypatch.setattr(controls, "run", lambda *_: None)
    return Options(data, tmp_path / "work", rows=tmp_path / "rows.jsonl")


def test_the_best_search_is_measured_by_hand(options):
    seven = Question("q", "?", "", relevant_chunk_ids=("7#0",))
    queries = [["disease x9", "disease x7 mends"], ["disease x7"], ["number nothing", "disease x9 mends"], []]
    made = measured(options, [seven] * 4, queries)
    assert made["best@10"] == [1.0, 1.0, made["best@10"][2], 0.0]
    assert made["found"][:2] == [1, 1]
    assert made["searches"] == [2, 1, 2, 0]
    assert made["named"] == [0, 0, 0, 0]  # nobody said a title that was found before
    said = measured(options, [seven], [["number 7", "disease x7 mends"]])
    assert (said["best@10"], said["named"]) == ([1.0], [1.0])


def test_controls_search_as_the_agent_does(options):
    settings = replace(parse(SearchOptions, AGENT).settle(), k=10)
    texts = ["rest disease x7", "ice disease x12"]
    found = searching(open_store(options.data / "store"), settings)(texts)
    assert [controls.found_by(options, texts)[text] for text in texts] == found


def test_dev_questions_are_trained_on_by_no_arm_and_held_out_ones_are_drawn_once(data, options):
    prepare(options)
    kept, dev = (read_questions(options.work / "data" / f"{name}.jsonl") for name in ("train", "eval"))
    both = {f"q{n}" for n in range(40) if f"Disease x{n % 20}" in {q.focus for q in dev}}
    assert {q.id for q in kept} == {f"q{n}" for n in range(40)} - both
    assert {q.id for q in dev} < both
    assert not {q.relevant_doc_ids for q in kept} & {q.relevant_doc_ids for q in dev}
    prepare(replace(options, held_out=True, words=5))
    asked = read_questions(options.work / "held-out-5" / "eval.jsonl")
    assert len({q.id for q in asked}) == controls.PLAYED
    every = read_questions(options.data / "second_hop_5" / "eval.jsonl")
    assert len(every) == 860
    seen = controls.choose(every, controls.SEEN, controls.DEV_SEED)
    assert {q.id for q in asked} <= {q.id for q in every} - {q.id for q in seen}


def test_a_row_is_measured_once_and_only_of_the_same_questions(options):
    asked = [Question("q", "What?", "That.")]
    made = kept(options, asked, "GRPO", 1, 0.0, lambda _: {"measures": {"mrr@10": [1.0]}, "tokens": 7})
    assert kept(options, asked, "GRPO", 1, 0.0, lambda _: pytest.fail("it is there")) == made
    kept(replace(options, held_out=True), asked, "GRPO", 1, 0.0, lambda _: {"measures": {}})
    kept(options, asked, "GRPO", 1, 1.0, lambda _: {"measures": {}})
    rows = [json.loads(line) for line in options.rows.read_text().splitlines()]
    assert [(row["split"], row["temperature"]) for row in rows] == [("dev 6", 0.0), ("held-out 6", 0.0), ("dev 6", 1.0)]
    with pytest.raises(UserError, match="was measured on other questions; give another file as --rows"):
        kept(options, [Question("r", "What?", "That.")], "GRPO", 1, 0.0, dict)


def test_what_was_measured_without_training_gives_the_published_table():
    rows = [Row(**json.loads(line)) for line in (ROOT / "bench" / "controls.jsonl").read_text().splitlines()]
    lines = table([row for row in rows if row.split == "held-out 6"], 200, "held-out 6").splitlines()
    assert f"| {SCRIPT} |  |  | 0.415 | 0.540 | 2.000 | 0.995 |  |  |  |  |  | 100% |  |  |  |" in lines


@pytest.mark.parametrize(("arm", "script"), [(WARM, "sft_train.py"), (GRPO, "bench.second_search")])
def test_the_page_on_training_prints_the_flags_that_were_measured(arm, script):
    page = (ROOT / "docs" / "training.md").read_text().partition("## Learning to search again")[2]
    commands = page.partition("```bash\n")[2].partition("```")[0].replace("\\\n", " ").splitlines()
    [command] = [shlex.split(line) for line in commands if script in line]
    flags = command[-len(ARMS[arm].flags) :]
    assert flags == list(ARMS[arm].flags)
    assert [flag for flag in command[: -len(flags)] if flag.startswith("--")] in (
        ["--data", "--output-dir"], ["--data", "--policy", "--run-dir"],
    )  # fmt: skip
