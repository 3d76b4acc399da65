"""Options of a data set: its rows, its columns, its pages. Imports nothing heavy, for --help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from forage.data.scraping.options import ScrapeOptions


@dataclass(frozen=True)
class Columns:
    """Column names (left out: found by the usual names)."""

    question_column: str = ""
    """Column with the question."""
    answer_column: str = ""
    """Column with the reference answer."""
    url_column: str = ""
    """Column with the URL of the page that answers the question, or with --questions the file (source)."""
    id_column: str = ""
    """Column with the row's id."""
    focus_column: str = ""
    """Column with the question's subject, which becomes the document's title."""
    type_column: str = ""
    """Column with the question's type."""


@dataclass(frozen=True)
class DatasetOptions:
    """The data set, and where its pages are kept."""

    dataset_name: str = "lavita/MedQuAD"
    """Hub name; a .jsonl, .jsonl.gz, .csv or .parquet file; a folder in BEIR's layout; or sample (the corpus in
    sample_data/)."""
    cache_dir: Path = Path("data/cache")
    """Folder for hub downloads."""
    content_dir: Path = Path("data/pages")
    """Folder for the fetched pages, unchanged."""
    scrape: bool = True
    """Fetch the pages. Off: the data set's answers become the documents."""
    skip_existing: bool = True
    """Skip pages that an earlier run fetched, or failed to fetch for a permanent reason."""
    keep_recurring: bool = False
    """Keep paragraphs that recur on at least half of a site's pages (with --documents: of a folder's .html files). Off:
    drop them as boilerplate."""
    columns: Columns = Columns()
    scraping: ScrapeOptions = ScrapeOptions()
