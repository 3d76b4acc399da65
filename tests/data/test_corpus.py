"""The corpus: what is printed while pages are fetched and read, and how little of it is in memory."""

import json
import tracemalloc

from forage.data.chunking import Chunk
from forage.data.corpus import fetch_pages, load_corpus, read_pages
from forage.data.documents import PageText
from forage.data.options import DatasetOptions
from forage.data.qa_rows import QARow
from forage.data.relevance import make_questions, split_by_document
from forage.data.scraping.content_folder import PageRecord


def test_there_is_no_progress_bar_for_nothing(tmp_path, capsys):
    options = DatasetOptions(content_dir=tmp_path)
    assert fetch_pages([QARow("1", "What is gout?", "Crystals.", "", "", "")], {}, options) == {}
    assert read_pages({}, tmp_path).get("http://x.example/") is None
    assert capsys.readouterr().err == ""


def test_pages_are_read_without_what_recurs_on_their_host(tmp_path):
    records = {}
    for number in range(5):
        url, path = f"http://x.example/{number}", f"{number}.html"
        (tmp_path / path).write_text(
            f"<h1>Gout</h1><p>Call 911.</p><p>{f'Page {number}' if number else 'Call 911.'}</p>"
        )
        records[url] = PageRecord(url, 200, "ok", "", 1, "", path, "utf-8", "")
    records["http://x.example/9"] = PageRecord("http://x.example/9", 404, "not_found", "", 0, None, None, None, "")
    for near in (None, tmp_path):
        pages = read_pages(records, tmp_path, near)
        assert pages.get("http://x.example/1") == PageText("Gout", "Gout\nPage 1", (0,))
        assert pages.get("http://x.example/0") == PageText("Gout", "Gout", (0,))
        assert pages.get("http://x.example/9") is pages.get("http://y.example/") is None


def test_texts_are_not_held_in_memory(tmp_path):
    """There are 32 MiB of answers, and as much of documents and of questions: all are in files."""
    count, text = 8_000, "crystals in a joint " * 200
    with (tmp_path / "qa.jsonl").open("w") as file:
        for n in range(count):
            file.write(json.dumps({"question": f"What is {n}?", "answer": f"{n} {text}"}) + "\n")
    tracemalloc.start()
    corpus = load_corpus(DatasetOptions(str(tmp_path / "qa.jsonl"), scrape=False), near=tmp_path)
    after_documents = tracemalloc.get_traced_memory()
    chunks = [Chunk(doc_id, "", f"{n} {text[:40]}", 0, 40, 0, 1) for n, doc_id in enumerate(corpus.library.doc_of_row)]
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    questions, _ = make_questions(corpus.rows, corpus.library.doc_of_row, chunks, near=tmp_path)
    sides = split_by_document(questions, 0.2, seed=0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (len(corpus.library.documents), sum(map(len, sides))) == (count, count)
    assert after_documents[0] < 6 * 2**20  # ids and digests
    assert after_documents[1] < 14 * 2**20  # with the first 1,000 records, in which columns are looked for
    assert peak - before < 8 * 2**20
