"""The corpus: what is printed while pages are fetched and read."""

from forage.data.corpus import fetch_pages, read_pages
from forage.data.options import DatasetOptions
from forage.data.qa_rows import QARow


def test_there_is_no_progress_bar_for_nothing(tmp_path, capsys):
    options = DatasetOptions(content_dir=tmp_path)
    assert fetch_pages([QARow("1", "What is gout?", "Crystals.", "", "", "")], {}, options) == {}
    assert read_pages({}, tmp_path) == {}
    assert capsys.readouterr().err == ""
