"""A folder of files of every kind, good and bad: each becomes a document or is told."""

import os

import pytest

from forage.data.chunking import Chunk
from forage.data.options import Columns
from forage.data.own_documents import OTHER_KIND, FileRecord, read_folder, read_markdown, read_text
from forage.data.own_questions import place, read_own_questions
from forage.data.qa_rows import QARow
from forage.data.relevance import by_document
from tests.own_files import docx, pdf
from tests.refusals import refused


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "own").mkdir()
    return tmp_path / "own"


def causes(own):
    return {record.path: record.cause for record in own.records}


def test_the_four_kinds(folder):
    (folder / "sub").mkdir()
    (folder / "care-of_bees.txt").write_text("Feed them\nin autumn.\n\nThen wait.\n")
    (folder / "sub" / "nets.md").write_text("Before.\n\n# Mending\n\nUse twine.\n")
    (folder / "rye.HTML").write_text("<title>Rye - My site</title><nav>Home</nav><h2>Dough</h2><p>Knead it.</p>")
    (folder / "clock.pdf").write_bytes(pdf(["Oil the", "pallets (gently).", "", "Wind it."], "Old clocks"))
    own = read_folder(folder)
    found = {d.id.rsplit("-", 1)[0]: (d.title, " / ".join(d.text.split("\n")), d.sections) for d in own.documents}
    assert found["care-of-bees"] == ("care of bees", "Feed them in autumn. / Then wait.", (0,))
    assert found["nets"] == ("Mending", "Before. /  / Mending / Use twine.", (0, 9))
    assert found["rye"] == ("Rye", "Dough / Knead it.", (0,))
    assert found["clock"][0] == "Old clocks"
    assert " ".join(found["clock"][1].replace("/", "").split()) == "Oil the pallets (gently). Wind it."
    assert {document.source for document in own.documents} == {"file"}
    assert causes(own) == dict.fromkeys(["care-of_bees.txt", "clock.pdf", "rye.HTML", "sub/nets.md"], "ok")
    assert {record.document_id for record in own.records} == {document.id for document in own.documents}


def test_a_word_document(folder):
    """Headings by a translated style's id, runs and tabs, a table's rows, and a text box that stands there twice."""
    styles = '<w:style w:styleId="berschrift1"><w:name w:val="heading 1"/></w:style>'
    (folder / "bees.docx").write_bytes(
        docx(
            """
      <w:p><w:pPr><w:pStyle w:val="berschrift1"/></w:pPr><w:r><w:t>Bees</w:t></w:r></w:p>
      <w:p><w:r><w:t>Sugar</w:t><w:tab/><w:t xml:space="preserve">wat</w:t></w:r><w:r><w:t>er.</w:t></w:r>
        <w:del><w:r><w:delText>Salt.</w:delText></w:r></w:del></w:p>
      <w:tbl><w:tr><w:tc><w:p><w:r><w:t>May</w:t></w:r></w:p></w:tc><w:tc><w:p/></w:tc>
        <w:tc><w:p><w:r><w:t>2 kg</w:t></w:r></w:p>
        <w:tbl><w:tr><w:tc><w:p><w:r><w:t>warm</w:t></w:r></w:p></w:tc></w:tr></w:tbl></w:tc></w:tr></w:tbl>
      <w:p><w:moveFrom><w:r><w:t>Moved.</w:t></w:r></w:moveFrom>
        <w:r><w:t>X<!-- no -->-</w:t><w:t>and Z</w:t><w:noBreakHyphen/><w:t>ray</w:t><w:cr/><w:t>on</w:t></w:r></w:p>
      <w:p><mc:AlternateContent><mc:Choice><w:p><w:r><w:t>Sting.</w:t></w:r></w:p></mc:Choice>
        <mc:Fallback><w:p><w:r><w:t>Sting.</w:t></w:r></w:p></mc:Fallback></mc:AlternateContent></w:p>""",
            styles,
        )
    )
    [document] = read_folder(folder).documents
    assert (document.title, document.text) == ("Bees", "Bees\nSugar water.\nMay | 2 kg warm\nX-and Z-ray on\nSting.")


def test_what_gives_no_document_is_told(folder):
    encrypted = b" /Encrypt << /Filter /Standard /V 1 /R 2 /O (" + b"o" * 32 + b") /U (" + b"u" * 32 + b") /P -4 >>"
    files = {
        "good.txt": b"\xef\xbb\xbfCaf\xc3\xa9 and tea.", "twin.txt": "Café  and\ntea.".encode(),
        "latin.txt": b"Caf\xe9 and tea.", "wide.txt": "Tea.".encode("utf-16"), "empty.txt": b"",
        "blank.md": b" \n\t\n", "marks.md": b"***\n- !!\n", "nav.html": b"<script>x</script>", "letter.docx": b"PK",
        "Makefile": b"all:\n", ".secret.txt": b"Hidden.", ".git/x.txt": b"Hidden too.", "scan.pdf": pdf([]),
        "locked.pdf": pdf(["Secret."], extra=encrypted + b" /ID [(a) (a)]"), "torn.pdf": pdf(["Secret."])[:100],
        "fake.pdf": b"no PDF",
    }  # fmt: skip
    (folder / ".git").mkdir()
    for name, body in files.items():
        (folder / name).write_bytes(body)
    own = read_folder(folder)
    assert [document.text for document in own.documents] == ["Café and tea."]
    assert causes(own) == {
        "good.txt": "ok", "twin.txt": "same text as another", "latin.txt": "not UTF-8", "wide.txt": "not UTF-8",
        "empty.txt": "no text", "blank.md": "no text", "marks.md": "no text", "nav.html": "no text",
        "letter.docx": "damaged or encrypted Word document", "Makefile": "other type",
        "scan.pdf": "PDF without text (scanned?)",
        "locked.pdf": "encrypted PDF",
        "torn.pdf": "damaged PDF", "fake.pdf": "damaged PDF",
    }  # fmt: skip
    by_path = {record.path: record for record in own.records}
    assert by_path["twin.txt"].document_id == own.documents[0].id


def test_links_pipes_and_odd_names(folder):
    (folder / "a").mkdir()
    (folder / "a" / "one.txt").write_text("One thing.")
    (folder / "self.txt").symlink_to("self.txt")
    (folder / "gone.txt").symlink_to("nowhere.txt")
    (folder / "z.txt").symlink_to("a/one.txt")
    (folder.parent / "secret.txt").write_text("A secret.")
    (folder / "out.txt").symlink_to("../secret.txt")
    os.mkfifo(folder / "pipe.txt")
    for name in (b"caf\xe9.txt", b"caf\xe8.txt", "caf\u00e9.txt".encode(), "cafe\u0301.txt".encode()):
        with open(os.fsencode(folder) + b"/" + name, "w") as file:
            file.write(f"Named {name!r}.")
    own = read_folder(folder)
    assert causes(own) == {
        "a/one.txt": "ok", "self.txt": "not a file",
        "gone.txt": "not a file", "out.txt": "a link out of the folder",
        "z.txt": "same text as another", "pipe.txt": "not a file", "caf\\xe9.txt": "ok",
        "caf\\xe8.txt": "ok", "caf\u00e9.txt": "ok", "cafe\u0301.txt": "ok",
    }  # fmt: skip
    assert len({document.id for document in own.documents}) == 5  # the last two names look the same


@pytest.mark.parametrize("names", [[], ["a.odt"]])
def test_a_folder_without_text_is_an_error(folder, names):
    for name in names:
        (folder / name).write_text("x")
    with refused(r"has no file with text \((it is empty|other type)\); put \.docx, "):
        read_folder(folder)
    with refused("gone: no such folder"):
        read_folder(folder / "gone")
    (folder / "asked.csv").touch()
    with refused(r"asked\.csv: a file;"):
        read_folder(folder / "asked.csv")
    with refused(r"asked\.csv has no rows"):
        read_own_questions(str(folder / "asked.csv"), Columns())


def test_what_recurs_on_a_sites_pages_goes(folder):
    for name in ("bees", "nets", "rye", "soap", "wax"):
        (folder / f"{name}.html").write_text(f"<h1>{name}</h1><p>About {name}.</p><p>Call us.</p>")
        (folder / f"{name}.txt").write_text(f"Of {name}.\n\nCall us.")
    own = read_folder(folder)
    texts = {d.text for d in own.documents}
    assert "bees\nAbout bees." in texts
    assert "Of bees.\nCall us." in texts
    assert own.recurring == {"Call us.": 5}
    kept = read_folder(folder, keep_recurring=True)
    assert "bees\nAbout bees.\nCall us." in {d.text for d in kept.documents}
    assert not kept.recurring


MARKDOWN = """---
title: not this
---
<!-- a note
over lines -->

# Care of *bees* #

They **dance** and
[hum](h.md "loud").

Under a line
===
- Wax
  of bees
1. Honey

| a | b |
|---|:-:|
| 1 | 2 |

> quoted `code *x*`
***
```python
# no heading
x = 1
```
Last\\_word, snake_case and a < b
"""


def test_markdown():
    page = read_markdown(MARKDOWN)
    assert page.title == "Care of bees"
    assert [(block.text, block.is_heading) for block in page.blocks] == [
        ("Care of bees", True), ("They dance and hum.", False), ("Under a line", True), ("Wax of bees", False),
        ("Honey", False), ("a | b", False), ("1 | 2", False), ("quoted code *x*", False),
        ("# no heading x = 1", False), ("Last_word, snake_case and a < b", False),
    ]  # fmt: skip


def test_markdown_that_nothing_closes_takes_no_time():
    for mark in ("**a ", "*a ", "`a ", "[a ", "# " + " " * 1000):
        assert read_markdown(mark * 5_000 + "\n\nend").blocks


@pytest.mark.parametrize(
    ("whole", "known"),
    [
        (
            pdf(["Oil the pallets.", "Wind it."], "Old clocks"),
            {"damaged PDF", "encrypted PDF", "PDF without text (scanned?)"},
        ),
        (
            docx("<w:p><w:r><w:t>Wind it.</w:t></w:r></w:p>"),
            {"damaged or encrypted Word document", OTHER_KIND, "over 64 MiB"},
        ),
    ],
)
def test_no_damage_is_a_crash(folder, whole, known):
    """Every byte of a file changed, one at a time, and the file cut anywhere: text, or a cause."""
    (folder / "good.txt").write_text("Tea.")
    kind = "pdf" if whole.startswith(b"%PDF") else "docx"
    for at in range(0, len(whole), 3):
        (folder / f"flipped.{kind}").write_bytes(whole[:at] + bytes([whole[at] ^ 0x15]) + whole[at + 1 :])
        (folder / f"cut.{kind}").write_bytes(whole[:at])
        assert set(causes(read_folder(folder)).values()) <= known | {"ok", "no text", "same text as another"}


def test_a_plain_text_may_mark_its_headings():
    page = read_text("# Hub gears\n\nThree speeds in the hub.\n\n## Care\n\n# of all hubs need oil once a year.")
    assert page.title == "Hub gears"
    assert [(block.text, block.is_heading) for block in page.blocks] == [
        ("Hub gears", True), ("Three speeds in the hub.", False), ("Care", True),
        ("# of all hubs need oil once a year.", False),
    ]  # fmt: skip


# Own questions about own documents: where each is placed, and why others are left out


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
        (asked("In which?", "190 degrees", "Rye.md; breads/old/tin.txt"), [("tin", ["tin#0"])]),  # rye only leads there
        (asked("Alike?", "No.", "Rye; breads/old/tin.txt"), [("rye", ["rye#0", "rye#1"]), ("tin", ["tin#0"])]),
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
        (asked("How hot?", "220 degrees", "rye.md;oven.md"), "source is no file with text"),
        (asked("How hot?", "220 degrees", "tin.txt"), "source names several files"),
        (asked("How hot?", "190 degrees", "Rye"), "answer in no passage of its source"),
        (asked("Who?", "My grandmother"), "answer in no passage"),
    ],
)
def test_a_question_that_has_no_place_is_left_out_with_its_cause(row, cause):
    assert placed(row) == ([], [cause])


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_table_by_any_separator(tmp_path, separator):
    path = tmp_path / "asked.csv"
    path.write_text(f"Question{separator}Source\nHow hot?{separator}rye.md\n")
    [row] = read_own_questions(str(path), Columns())
    assert (row.question, row.answer, row.url) == ("How hot?", "", "rye.md")
