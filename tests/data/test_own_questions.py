"""Own questions about own documents: where each is placed, and why others are left out."""

import pytest

from forage.data.chunking import Chunk
from forage.data.options import Columns
from forage.data.own_documents import FileRecord
from forage.data.own_questions import documents_by_name, place, read_own_questions
from forage.data.qa_rows import QARow
from forage.data.relevance import by_document

TEXTS = {
    "rye#0": "Rye needs a sour dough, and rests for twelve hours.",
    "rye#1": "Bake it at 220 degrees with steam.",
    "tin#0": "Bake it at 190 degrees.",
}
RECORDS = [
    FileRecord("breads/Rye.md", document_id="rye"),
    FileRecord("breads/old/tin.txt", document_id="tin"),
    FileRecord("breads/tin.txt", "same text as another", document_id="rye"),
    FileRecord("picture.png", "other type"),
]
CHUNKS = [Chunk(name.split("#")[0], "", text, 0, len(text), int(name[-1]), 9) for name, text in TEXTS.items()]


def asked(question, answer="", source=""):
    return QARow("r", question, answer, source, "", "")


def placed(*rows):
    found, left_out = place(rows, RECORDS, by_document(CHUNKS), lambda text, k: CHUNKS)
    return [(doc, relevant) for _, doc, relevant in found], [cause for _, cause in left_out]


@pytest.mark.parametrize(
    ("row", "found"),
    [
        (asked("How hot?", "220 degrees", "rye.md"), [("rye", ["rye#1"])]),
        (asked("How hot?", "220 degrees", "breads/Rye.md"), [("rye", ["rye#1"])]),
        (asked("How long?", source="RYE"), [("rye", ["rye#0", "rye#1"])]),  # all of it may answer
        (asked("Is it hot?", "No, it is not.", "rye.md"), [("rye", ["rye#0", "rye#1"])]),  # which tells nothing
        (asked("How hot?", "at 190 degrees"), [("tin", ["tin#0"])]),  # wherever it is said
        (asked("How hot?", "Bake it at degrees"), [("rye", ["rye#1"]), ("tin", ["tin#0"])]),  # by its words, here three
        (asked("How long?", "It rests twelve whole hours"), [("rye", ["rye#0"])]),  # three of four telling words
    ],
)
def test_a_question_is_placed_at_what_answers_it(row, found):
    assert placed(row) == (found, [])


@pytest.mark.parametrize(
    ("row", "cause"),
    [
        (asked("", "220 degrees"), "no question"),
        (asked("How hot?"), "neither telling answer nor source"),
        (asked("Is it hot?", "No."), "neither telling answer nor source"),
        (asked("How hot?", "220 degrees", "oven.md"), "source is no file with text"),
        (asked("How hot?", "220 degrees", "picture.png"), "source is no file with text"),
        (asked("How hot?", "220 degrees", "tin.txt"), "source names several files"),
        (asked("How hot?", "190 degrees", "Rye"), "answer in no passage of its source"),
        (asked("Who?", "My grandmother"), "answer in no passage"),
    ],
)
def test_a_question_that_has_no_place_is_left_out_with_its_cause(row, cause):
    assert placed(row) == ([], [cause])


def test_names_of_files():
    named = documents_by_name(RECORDS)
    assert named["rye"] == named["breads/rye.md"] == {"rye"}
    assert named["tin"] == {"rye", "tin"}
    assert "picture" not in named


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_table_by_any_separator(tmp_path, separator):
    path = tmp_path / "asked.csv"
    path.write_text(f"Question{separator}Source\nHow hot?{separator}rye.md\n")
    [row] = read_own_questions(str(path), Columns())
    assert (row.question, row.answer, row.url) == ("How hot?", "", "rye.md")
