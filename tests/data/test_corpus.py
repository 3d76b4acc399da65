"""The corpus: what is printed while pages are fetched, and what is read of them."""

from forage.data.corpus import read_pages
from forage.data.options import DatasetOptions
from forage.data.records import Document
from forage.data.scraping.content_folder import PageRecord


def test_pages_are_read_without_what_recurs_on_their_host(tmp_path):
    records = {}
    for number in range(5):
        url, path = f"http://x.example/{number}", f"{number}.html"
        (tmp_path / path).write_text(
            f"<h1>Gout</h1><p>Call 911.</p><p>{f'Page {number}' if number else 'Call 911.'}</p>"
        )
        records[url] = PageRecord(url, 200, "ok", "", 1, "", path, "utf-8", "")
    records["http://x.example/9"] = PageRecord("http://x.example/9", 404, "not_found", "", 0, None, None, None, "")
    pages, recurring = read_pages(records, DatasetOptions(content_dir=tmp_path))
    assert recurring == {"Call 911.": 5}
    assert "Call 911." in read_pages(records, DatasetOptions(content_dir=tmp_path, keep_recurring=True))[0][url].text
    assert pages["http://x.example/1"] == Document("", "Gout", "Gout\nPage 1", sections=(0,))
    assert pages["http://x.example/0"] == Document("", "Gout", "Gout", sections=(0,))
    assert list(pages) == list(records)[:5]
