"""Corpus: the rows of a data set, the pages they name, and the documents made from both."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from forage.data.chunking import Chunk
from forage.data.documents import Library, PageText, assemble, page_text
from forage.data.options import DatasetOptions
from forage.data.qa_rows import QARow, read_records, to_rows
from forage.data.records import Document, Question
from forage.data.relevance import make_questions
from forage.data.sample import QUESTIONS, sample_sites
from forage.data.scraping.boilerplate import host_part, recurring_blocks, without
from forage.data.scraping.content_folder import PageRecord
from forage.data.scraping.page_text import Block, Page, read_page
from forage.data.scraping.scraper import scrape
from forage.progress import counting
from forage.spool import new_rows, part


@dataclass(frozen=True)
class Corpus:
    """Rows, how many lack each value, what became of each page, and the documents."""

    rows: Sequence[QARow]
    lacking: Counter[str]
    pages: dict[str, PageRecord]
    library: Library


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
    return Dataset(list(library.documents), [replace(question, relevant_chunk_ids=()) for question in questions])


def load_corpus(options: DatasetOptions, near: Path | None = None) -> Corpus:
    """Read the rows, fetch their pages, make the documents.

    With a folder `near`, the texts of all of them lie in files there, and memory holds ids and digests.
    """
    sample = options.dataset_name == "sample"
    source = str(QUESTIONS) if sample else options.dataset_name
    records = read_records(source, options.cache_dir, options.dataset_split)
    rows, lacking = to_rows(records, options.columns, near)
    pages: dict[str, PageRecord] = {}
    if options.scrape:
        with ExitStack() as stack:
            sites = stack.enter_context(sample_sites()) if sample else {}
            pages = fetch_pages(rows, sites, options)
    return Corpus(rows, lacking, pages, assemble(rows, read_pages(pages, options.content_dir, near), near))


def fetch_pages(rows: Sequence[QARow], sites: Mapping[str, str], options: DatasetOptions) -> dict[str, PageRecord]:
    """Fetch the page of every row that names one. The sample's own server (`sites`) needs no politeness."""
    scraping = options.scraping
    if sites:
        scraping = replace(scraping, resolve={**scraping.resolve, **sites}, delay=0, per_host=8)
    urls = list(dict.fromkeys(row.url for row in rows if row.url))
    with counting("pages", len(urls), "page") as bar:

        def on_page(record: PageRecord) -> None:
            bar.update()

        return scrape(urls, options.content_dir, scraping, options.skip_existing, on_page)


class FetchedPages:
    """The text of every fetched page, without what recurs across its host's pages; made when it is asked for."""

    def __init__(self, numbers: Mapping[str, int], pages: Sequence[Page]) -> None:
        """`numbers` are the places of the URLs among the pages."""
        self.numbers, self.pages = numbers, pages
        of_host: dict[str, array[int]] = {}
        for url, number in numbers.items():
            of_host.setdefault(host_part(url), array("q")).append(number)
        self.recurring: dict[str, set[Block]] = {
            host: recurring_blocks(part(pages, its_numbers)) for host, its_numbers in of_host.items()
        }

    def get(self, url: str, /) -> PageText | None:
        """None for a page that was not fetched, or has nothing of its own."""
        if url not in self.numbers:
            return None
        page = without(self.pages[self.numbers[url]], self.recurring[host_part(url)])
        return page_text(page) if page.blocks else None


def read_pages(records: Mapping[str, PageRecord], content_dir: Path, near: Path | None = None) -> FetchedPages:
    """Read every page that was fetched. With a folder `near`, what was read lies in a file there."""
    fetched = [url for url, record in records.items() if record.cause == "ok" and record.path]
    pages = new_rows(near)
    with counting("reading pages", len(fetched), "page") as bar:
        for url in fetched:
            record = records[url]
            pages.append(read_page((content_dir / str(record.path)).read_bytes(), record.charset))
            bar.update()
    return FetchedPages({url: number for number, url in enumerate(fetched)}, pages)


def manifest_rows(corpus: Corpus) -> Iterator[dict[str, object]]:
    """What became of each URL, and where its document's text came from: 'page', 'answer' or 'nothing'."""
    for place in corpus.library.places:
        record = corpus.pages.get(place.url)
        fetched = asdict(record) if record else {"url": place.url, "status": None, "cause": "not_scraped"}
        yield {**fetched, "document": place.source, "document_id": place.document_id}
