"""Corpus: the rows of a data set, the pages they name, and the documents made from both."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from forage.data.chunking import Chunk
from forage.data.documents import Library, assemble, page_text
from forage.data.options import DatasetOptions
from forage.data.qa_rows import QARow, read_records, to_rows
from forage.data.records import Document, Question
from forage.data.relevance import make_questions
from forage.data.scraping.content_folder import PageRecord
from forage.data.scraping.fetcher import scrape
from forage.data.scraping.page_text import Page, drop_boilerplate, read_page
from forage.errors import UserError
from forage.progress import Counting, counted

SAMPLE = Path(__file__).resolve().parents[2] / "sample_data"
QUESTIONS = SAMPLE / "questions.jsonl"
PAGES = SAMPLE / "pages"  # a folder for each host


@dataclass(frozen=True)
class Corpus:
    """Rows, how many lack each value, what became of each page, and the documents."""

    rows: list[QARow]
    lacking: Counter[str]
    pages: dict[str, PageRecord]
    library: Library
    recurring: Counter[str]
    """The paragraphs left out because they recur on their site, and on how many of its pages."""


@dataclass(frozen=True)
class Dataset:
    """Documents, and the questions that they answer."""

    documents: list[Document]
    questions: list[Question]
    """Each names its documents; which chunks answer it is known once a store has cut them (make_questions)."""


def dataset_of(corpus: Corpus) -> Dataset:
    """The questions are held against whole documents: there is no store yet whose chunks could be."""
    library = corpus.library
    whole = [Chunk(d.id, d.title, d.text, 0, len(d.text), 0, 1) for d in library.documents]
    questions, _ = make_questions(corpus.rows, library.doc_of_row, whole)
    return Dataset(library.documents, [replace(question, relevant_chunk_ids=()) for question in questions])


def load_corpus(options: DatasetOptions) -> Corpus:
    """Read the rows, fetch their pages, make the documents."""
    sample = options.dataset_name == "sample"
    source = str(QUESTIONS) if sample else options.dataset_name
    rows, lacking = to_rows(read_records(source, options.cache_dir), options.columns, source=source)
    pages: dict[str, PageRecord] = {}
    if options.scrape:
        served: AbstractContextManager[dict[str, tuple[str, int]]] = sample_sites() if sample else nullcontext({})
        urls = list(dict.fromkeys(row.url for row in rows if row.url))
        with served as sites, Counting("pages", len(urls)) as bar:
            # The sample's own server needs no politeness.
            ways = replace(options.scraping, resolve=sites, delay=0, per_host=8) if sites else options.scraping
            pages = scrape(urls, options.content_dir, ways, options.skip_existing, lambda record: bar.update())
    texts, recurring = read_pages(pages, options)
    return Corpus(rows, lacking, pages, assemble(rows, texts), recurring)


def read_pages(records: Mapping[str, PageRecord], options: DatasetOptions) -> tuple[dict[str, Document], Counter[str]]:
    """The text of every page that was fetched, without what recurs across its host's pages, if that leaves any; and
    on how many pages each of those paragraphs was."""
    fetched = {url: record for url, record in records.items() if record.cause == "ok"}
    pages: dict[str, Page] = {}
    for url, record in counted("reading pages", fetched.items()):
        pages[url] = read_page((options.content_dir / str(record.path)).read_bytes(), record.charset)
    own, recurring = drop_boilerplate({} if options.keep_recurring else pages, lambda url: urlsplit(url).hostname or "")
    return {url: page_text(page) for url, page in (pages | own).items() if page.blocks}, recurring


def manifest_rows(corpus: Corpus) -> Iterator[dict[str, object]]:
    """What became of each URL, and where its document's text came from: 'page', 'answer' or 'nothing'."""
    for url, (doc_id, source) in corpus.library.places.items():
        record = corpus.pages.get(url)
        fetched = asdict(record) if record else {"url": url, "status": None, "cause": "not_scraped"}
        yield {**fetched, "document": source, "document_id": doc_id}


# The sample: a small medical corpus in sample_data/, whose pages a local server serves over HTTP


@contextmanager
def sample_sites() -> Iterator[dict[str, tuple[str, int]]]:
    """Serve the sample's hosts on the loopback address; yield host -> (address, port), for ScrapeOptions.resolve."""
    if not QUESTIONS.is_file():
        raise UserError(f"{QUESTIONS} is missing; the sample data set comes with the repository: check it out again")
    hosts = sorted(folder.name for folder in PAGES.iterdir() if folder.is_dir())
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Site)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield dict.fromkeys(hosts, ("127.0.0.1", server.server_port))
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Site(SimpleHTTPRequestHandler):
    """Serves the folder named by the request's Host header."""

    def translate_path(self, path: str) -> str:
        host = self.headers.get("Host", "").split(":")[0]
        if not (PAGES / host).is_dir() or "/" in host or host.startswith("."):
            return str(PAGES / "no such host")
        self.directory = str(PAGES / host)
        return super().translate_path(path)

    def log_message(self, format: str, *args: Any) -> None:
        pass
