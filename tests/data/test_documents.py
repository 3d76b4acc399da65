"""Documents out of rows and pages."""

from forage.data.documents import assemble, document_id, page_text
from forage.data.qa_rows import QARow
from forage.data.records import Document
from forage.data.scraping.page_text import Block, Page

URL = "http://x.example/conditions/Gout.html"


def row(number, answer, url=URL, focus="Gout"):
    return QARow(f"r{number}", f"Question {number}?", answer, url, focus, "")


def test_sections_start_at_headings_that_follow_text():
    page = Page("Asthma", (Block("Asthma", True), Block("Care", True), Block("Rest."), Block("Drugs", True)))
    assert page_text(page) == Document("", "Asthma", "Asthma\nCare\nRest.\n\nDrugs", sections=(0, 19))
    blocks = (Block("Asthma", True), Block("A disease."), Block("Signs", True), Block("Cough"), Block("Wheeze"))
    assert page_text(Page("Asthma", blocks)).text == "Asthma\nA disease.\n\nSigns\nCough\nWheeze"
    assert page_text(Page("", ())).text == ""


def test_without_a_page_the_answers_are_the_document_each_a_section():
    library = assemble([row(1, "A sore\n\n\ntoe."), row(2, "Crystals."), row(3, "A sore toe."), row(4, "")], {})
    [document] = library.documents
    assert (document.text, document.sections) == ("A sore\ntoe.\n\nCrystals.\n\nA sore toe.", (0, 13, 24))
    assert (document.title, document.source, document.url) == ("Gout", "answer", URL)
    assert library.doc_of_row == [document.id] * 4
    assert library.places == {URL: (document.id, "answer")}


def test_an_answer_that_its_page_lacks_is_added_to_it():
    page = Document("", "Page", "Gout\nThe big toe swells at night and is sore.\n\nCare\nRest it.", sections=(0, 47))
    rows = [
        row(1, "the big toe swells at night and is sore", focus=""),
        row(2, "Uric acid crystals gather there.", focus=""),
    ]
    library = assemble(rows, {URL: page})
    [document] = library.documents
    assert document.text == page.text + "\n\nUric acid crystals gather there."
    assert document.sections == (0, 47, len(page.text) + 2)
    assert (document.title, document.source, library.answers_added) == ("Page", "page", 1)


def test_equal_texts_are_kept_once_and_rows_point_to_the_kept_one():
    rows = [row(1, "Same."), row(2, "Same.", url="http://y.example/"), row(3, "Other.", url="")]
    library = assemble(rows, {})
    assert [document.text for document in library.documents] == ["Same.", "Other."]
    kept, other = (document.id for document in library.documents)
    assert library.doc_of_row == [kept, kept, other]
    assert library.places == {URL: (kept, "answer"), "http://y.example/": (kept, "answer")}
    assert library.duplicates == 1


def test_ids_are_readable_and_stay():
    assert document_id("https://ghr.nlm.nih.gov/condition/asthma", "https://ghr.nlm.nih.gov/condition/asthma") == (
        "asthma-afdcef90"
    )
    assert document_id("row:r 1/ü", "").startswith("r-1-")
    assert document_id("http://x.example/", "http://x.example/").startswith("page-")
    assert document_id("Причины_подагры.md", "Причины_подагры.md").startswith("причины-подагры-")
    short = document_id("a", "a")
    longer = document_id("a", "a", {short})
    assert (len(longer), longer.startswith(short)) == (len("a-") + 16, True)


# What is read of pages
