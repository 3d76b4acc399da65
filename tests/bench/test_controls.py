"""The comparison of ways to train an agent that follows a name: its measures, rules and table by hand, its split."""

import json
from dataclasses import replace

import pytest

from bench import controls
from bench.controls import AGENT, DOCUMENT, EXPERT, GRPO, NAME, READ, WARM, Options, Row, kept, measured, prepare, table
from forage.agent.episode import Search, write_episodes
from forage.agent.options import SearchOptions
from forage.agent.searcher import searching
from forage.arguments import parse
from forage.data.records import Document, Question, read_questions
from forage.files import write_jsonl
from forage.runs.stats import write_stats
from forage.store.opening import open_store
from tests.factories import EPISODE, STATS, plain_store
from tests.refusals import refused


def row(arm, seed, ranks, **more):
    """Of twelve questions, each of a document of its own, whose ranks are these three times."""
    measures = dict.fromkeys(("best@10", "found", "named"), ranks * 3) | {DOCUMENT: [*range(12)]}
    return Row("dev", "2026-11-28", arm, seed, "", measures, **more)


def test_the_table_pairs_each_arm_with_those_of_its_seed():
    rows = [
        row(READ, 0, [0, 0, 0, 1]),
        row(WARM, 1, [0, 0, 1, 0], tokens=9),
        row(WARM, 2, [0, 0, 0, 0]),
        row(EXPERT, 2, [1, 0, 1, 0], well_formed=0.75, tokens=1234, minutes=5.4),
        row(GRPO, 2, [1, 1, 1, 1], tokens=99, minutes=7.0),
        row(GRPO, 3, [1, 1, 1, 1]),  # nothing else of its seed was played
    ]
    lines = table(rows, 12, "dev").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[4:]]
    head = [cell.strip() for cell in lines[2].strip("|").split("|")]
    warm, expert, read, name = (head.index(f"over {each}") for each in (WARM, EXPERT, READ, NAME))
    assert cells[5][expert] == "**+0.500** (0.250 to 0.750)"
    assert cells[5][warm] == "**+1.000** (1.000 to 1.000)"  # the warm start of its own seed
    assert (cells[5][read], cells[5][name]) == ("+0.750 (0.500 to 1.000)", "")  # the three losses may be by chance
    assert (cells[6][warm], cells[6][expert]) == ("", "")
    assert [line[:2] for line in cells[3::4]] == [[WARM, "all"], [GRPO, "all"]]
    assert cells[7][head.index("tokens")] == "50"  # of 99 and 0, on average
    assert cells[7][warm] == "+0.875 (0.750 to 1.000)"


def test_differences_are_of_documents_where_several_questions_share_one():
    rows = [row(WARM, 1, [0, 0, 0, 0]), row(GRPO, 1, [1, 1, 1, 1])]
    for each in rows:
        each.measures[DOCUMENT] = [0, 0, 1, 1] * 3  # two documents, whose gains agree by chance once in two times
    assert "| +1.000 (1.000 to 1.000) |" in table(rows, 12, "dev")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Diseases, each with a passage that says the next one's name; 1,440 questions, 40 of them to train on."""
    folder = tmp_path_factory.mktemp("medicine")
    documents = [
        Document(f"{n}", f"Disease x{n}", f"Rest mends number {n}, and ice; unlike disease x{n + 1} it passes quickly.")
        for n in range(1440)
    ]
    questions = [
        Question(
            f"q{n}", f"passes quickly x{n - 1}: What mends this?", "Rest.", "", f"Disease x{n}", (f"{n}",), (f"{n}#0",)
        )
        for n in range(1440)
    ]
    plain_store(folder / "store", documents)
    write_jsonl(folder / "second_hop_6" / "train.jsonl", questions[:40])
    write_jsonl(folder / "second_hop_6" / "eval.jsonl", questions[40:])
    return folder


@pytest.fixture
def options(data, tmp_path, monkeypatch):
    monkeypatch.setattr(controls, "run", lambda *_: None)
    return Options(data, tmp_path / "work", rows=tmp_path / "rows.jsonl")


def test_the_best_search_is_measured_by_hand(options):
    seven = Question("q", "?", "", focus="Disease x7", relevant_chunk_ids=("7#0",))
    queries = [["disease x9", "number 7 mends"], ["disease x7"], ["x nothing", "number 9 mends"], []]
    made = measured(options, [seven] * 4, queries)
    assert made["best@10"] == [1.0, made["best@10"][1], made["best@10"][2], 0.0]
    assert made["found"][::3] == [1, 0]
    assert made["named"] == [0, 1, 0, 0]


def test_controls_search_as_the_agent_does(options):
    settings = replace(parse(SearchOptions, AGENT).settle(), k=10, window="start")
    texts = ["rest disease x7", "ice disease x12"]
    found = searching(open_store(options.data / "store"), settings)(texts)
    assert [controls.found_by(options, texts)[text] for text in texts] == found


def test_what_is_measured_at_the_end_is_drawn_apart_from_what_choices_are_made_on(options):
    prepare(options)
    names = ("dev", "held-out", "fresh")
    dev, held_out, fresh = ({q.id for q in read_questions(options.work / name / "eval.jsonl")} for name in names)
    assert (len(dev), len(held_out), len(fresh)) == (100, 300, 1000)
    assert not dev & held_out
    assert not fresh & (dev | held_out)
    assert {q.id for q in read_questions(options.work / "dev" / "train.jsonl")} == {f"q{n}" for n in range(40)}


def test_curves_are_drawn_of_a_run(options, tmp_path):
    prepare(options)
    folder = controls.folder_of(options, GRPO, 1)
    for step in range(controls.SMOOTH):
        write_stats(folder, replace(STATS, step=step, training={"entropy": 1.0, "likelihood_gain": 0.0}))
        episode = replace(EPISODE, id="q0/0", question_id="q0", searches=(Search(0, "disease x0", ("0#0",)),))
        write_episodes(folder / "episodes" / f"{step:06d}" / "a.jsonl", [episode])
    controls.draw_curves(options, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 10_000


def test_rules_that_read_say_what_they_should(options):
    question = Question("q8", "passes quickly x7: What mends this?", "Rest.", focus="Disease x8")
    hits = controls.found_by(options, ["disease x7 rest number 7"])["disease x7 rest number 7"]
    assert hits[0].chunk_id == "7#0"
    said = {name: rule(options, question, hits, hits[0].text) for name, rule in controls.SECOND.items()}
    assert said[controls.NAME] == "Disease x8"
    assert said[controls.TITLE] == "Disease x7"
    assert said[controls.LISTED] == "disease x8"
    assert said[controls.READ] == said[controls.READ_ALL] == "disease mends"  # all say these; of equals, by letter
    assert said[controls.PHRASE] in hits[0].text


def test_a_row_is_measured_once_and_only_of_the_same_questions(options):
    asked = [Question("q", "What?", "That.")]
    made = kept(options, asked, "GRPO", 1, lambda _: {"measures": {"mrr@10": [1.0]}, "tokens": 7})
    assert kept(options, asked, "GRPO", 1, lambda _: pytest.fail("it is there")) == made
    kept(replace(options, split="held-out"), asked, "GRPO", 1, lambda _: {"measures": {}})
    kept(options, asked, "GRPO", 2, lambda _: {"measures": {}})
    rows = [json.loads(line) for line in options.rows.read_text().splitlines()]
    assert [(row["split"], row["seed"]) for row in rows] == [("dev", 1), ("held-out", 1), ("dev", 2)]
    with refused("was measured on other questions; give another file as --rows"):
        kept(options, [Question("r", "What?", "That.")], "GRPO", 1, dict)
