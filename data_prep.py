"""Stage 1: a QA data set and the pages it names become documents, a searchable store, and train and eval questions.

    python data_prep.py --dataset-name sample                          the corpus that comes with the repository
    python data_prep.py                                                lavita/MedQuAD from the hub, its pages scraped
    python data_prep.py --dataset-name medquad.jsonl.gz --no-scrape    a file; its answers are the documents

Reads: the data set, the pages. Writes into --output-dir: documents.jsonl, store/, train.jsonl, eval.jsonl,
manifest.jsonl (what became of each page) and rewriter/ (the same for train_ppo.py). Killed at any moment, the same
command goes on where it stopped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from forage.cli import run_script
from forage.data.documents import Library, PageText, assemble, page_text
from forage.data.qa_rows import Columns, QARow, read_records, to_rows
from forage.data.records import Document, Question
from forage.data.relevance import make_questions, split_by_document
from forage.data.rewriter_data import export_rewriter_data, import_rewriter_data
from forage.data.sample import QUESTIONS, sample_sites
from forage.data.scraping.content_folder import PageRecord
from forage.data.scraping.fetcher import ScrapeOptions, scrape
from forage.data.scraping.page_text import drop_boilerplate, read_page
from forage.errors import UserError
from forage.files import write_jsonl
from forage.store.card import StoreOptions
from forage.store.document_store import DocumentStore


@dataclass(frozen=True)
class Options:
    """What to prepare, from what, into which folder."""

    dataset_name: str = "lavita/MedQuAD"
    """Hub name, path of a .jsonl, .jsonl.gz, .csv or .parquet file, a rewriter folder, or sample."""
    output_dir: Path = Path("data")
    """Folder for everything that is made."""
    cache_dir: Path = Path("data/cache")
    """Folder for what comes from the hub."""
    content_dir: Path = Path("data/pages")
    """Folder for the pages as fetched."""
    batch_size: int = 100
    """Pages in flight at a time, over all hosts."""
    skip_existing: bool = True
    """Fetch nothing that is there already."""
    scrape: bool = True
    """Fetch the pages; without, the data set's answers are the documents."""
    split: str = "train"
    """Split of a hub data set to read."""
    question_column: str = ""
    """Column with the question; like all columns, found by itself where the name is a usual one."""
    answer_column: str = ""
    """Column with the reference answer."""
    url_column: str = ""
    """Column with the address of the page that answers the question."""
    id_column: str = ""
    """Column with the row's id."""
    focus_column: str = ""
    """Column with what the question is about; becomes the document's title."""
    type_column: str = ""
    """Column with the question's type."""
    eval_share: float = 0.2
    """Share of the documents whose questions are held out."""
    seed: int = 0
    """Seed of the split."""
    store: StoreOptions = field(default_factory=StoreOptions)
    scraping: ScrapeOptions = field(default_factory=ScrapeOptions)

    def check(self) -> None:
        """Fail before anything is fetched or loaded."""
        if not 0 < self.eval_share < 1:
            raise UserError(f"--eval-share {self.eval_share} must lie between 0 and 1")
        if self.batch_size < 1:
            raise UserError(f"--batch-size {self.batch_size} must be at least 1")
        self.scraping.check()

    @property
    def columns(self) -> Columns:
        return Columns(
            self.question_column, self.answer_column, self.url_column, self.id_column, self.focus_column,
            self.type_column,
        )  # fmt: skip


@dataclass(frozen=True)
class Collected:
    """Rows, what became of their pages, and the documents made of both."""

    rows: list[QARow]
    lacking: Counter[str]
    pages: dict[str, PageRecord]
    library: Library


def main(options: Options) -> None:
    options.check()
    if Path(options.dataset_name).is_dir():
        prepare_rewriter_folder(Path(options.dataset_name), options)
        return
    collected = collect(options)
    library = collected.library
    write_jsonl(options.output_dir / "documents.jsonl", library.documents)
    write_jsonl(options.output_dir / "manifest.jsonl", manifest_rows(collected))
    store = DocumentStore.build(options.output_dir / "store", library.documents, options.store)
    questions, left_out = make_questions(collected.rows, library.doc_of_row, store.chunks)
    train, held_out = write_questions(questions, store, options)
    print_summary(collected, left_out, store, train, held_out)


def load_or_scrape_documents(
    dataset_name: str, cache_dir: Path | str, content_dir: Path | str, batch_size: int = 100, skip_existing: bool = True
) -> list[Document]:
    """The documents of a data set: its pages, as far as they can be had, and its own answers for the rest."""
    options = Options(
        dataset_name=dataset_name, cache_dir=Path(cache_dir), content_dir=Path(content_dir),
        batch_size=batch_size, skip_existing=skip_existing,
    )  # fmt: skip
    options.check()
    return collect(options).library.documents


def collect(options: Options) -> Collected:
    """Read the rows, fetch their pages, make the documents."""
    sample = options.dataset_name == "sample"
    records = read_records(str(QUESTIONS) if sample else options.dataset_name, options.cache_dir, options.split)
    rows, lacking = to_rows(records, options.columns)
    pages: dict[str, PageRecord] = {}
    if options.scrape:
        with ExitStack() as stack:
            sites = stack.enter_context(sample_sites()) if sample else {}
            pages = fetch(rows, sites, options)
    return Collected(rows, lacking, pages, assemble(rows, read_pages(pages, options.content_dir)))


def fetch(rows: Sequence[QARow], sites: Mapping[str, str], options: Options) -> dict[str, PageRecord]:
    """Fetch the page of every row that names one. The sample's own server needs no politeness."""
    scraping = replace(options.scraping, in_flight=options.batch_size)
    if sites:
        scraping = replace(scraping, resolve={**scraping.resolve, **sites}, delay=0, per_host=8)
    urls = list(dict.fromkeys(row.url for row in rows if row.url))
    with tqdm(total=len(urls), desc="pages", unit="page", mininterval=1) as bar:

        def on_page(record: PageRecord) -> None:
            bar.update()

        return scrape(urls, options.content_dir, scraping, options.skip_existing, on_page)


def read_pages(records: Mapping[str, PageRecord], content_dir: Path) -> dict[str, PageText]:
    """The text of every page that was fetched, without what recurs on many pages of its host."""
    fetched = {url: record for url, record in records.items() if record.cause == "ok" and record.path}
    pages = {
        url: read_page((content_dir / str(record.path)).read_bytes(), record.charset)
        for url, record in tqdm(fetched.items(), desc="reading pages", unit="page", mininterval=1)
    }
    return {url: page_text(page) for url, page in drop_boilerplate(pages).items() if page.blocks}


def manifest_rows(collected: Collected) -> Iterable[dict[str, object]]:
    """What became of each URL, and what its document is made of: 'page', 'answer' or 'nothing'."""
    source_of = {document.url: document.source for document in collected.library.documents}
    kept_source = {document.id: document.source for document in collected.library.documents}
    for row in {row.url: row for row in collected.rows if row.url}.values():
        doc_id = collected.library.doc_of_row.get(row.id, "")
        record = collected.pages.get(row.url)
        fetched = asdict(record) if record else {"url": row.url, "status": None, "cause": "not_scraped"}
        document = source_of.get(row.url) or kept_source.get(doc_id, "nothing")
        yield {**fetched, "document": document, "document_id": doc_id}


def write_questions(
    questions: Sequence[Question], store: DocumentStore, options: Options
) -> tuple[list[Question], list[Question]]:
    """Split by document and write train.jsonl, eval.jsonl and the rewriter's files."""
    train, held_out = split_by_document(questions, options.eval_share, options.seed)
    if not train or not held_out:
        raise UserError(
            f"{len(train)} training and {len(held_out)} eval questions came out of {len(questions)}: "
            "use more documents, another --eval-share or another --seed"
        )
    write_jsonl(options.output_dir / "train.jsonl", train)
    write_jsonl(options.output_dir / "eval.jsonl", held_out)
    export_rewriter_data(options.output_dir / "rewriter", store.chunks, train, held_out)
    return train, held_out


def prepare_rewriter_folder(folder: Path, options: Options) -> None:
    """A folder of train.jsonl and pubmed_corpus.json: its documents are the corpus, its queries the questions."""
    data = import_rewriter_data(folder / "train.jsonl", folder / "pubmed_corpus.json")
    for problem in data.problems[:20]:
        print(problem)
    store = DocumentStore.build(options.output_dir / "store", data.documents, options.store)
    chunk_ids: dict[str, list[str]] = {}
    for chunk in store.chunks:
        chunk_ids.setdefault(chunk.doc_id, []).append(chunk.id)
    questions = [
        replace(
            question, relevant_chunk_ids=tuple(i for doc_id in question.relevant_doc_ids for i in chunk_ids[doc_id])
        )
        for question in data.questions
    ]
    write_jsonl(options.output_dir / "documents.jsonl", data.documents)
    train, held_out = write_questions(questions, store, options)
    print(
        f"{folder}: {len(data.documents)} documents, {len(store.chunks)} chunks, {len(train)} training and "
        f"{len(held_out)} eval questions; {len(data.problems)} rows with problems"
    )


def print_summary(
    collected: Collected,
    left_out: Counter[str],
    store: DocumentStore,
    train: Sequence[Question],
    held_out: Sequence[Question],
) -> None:
    """What came out, and what became of everything that did not."""
    library = collected.library
    sources = Counter(document.source for document in library.documents)
    table = Table("", "", show_header=False, title="prepared")
    table.add_row("rows", f"{len(collected.rows):,}" + _causes(collected.lacking))
    table.add_row("pages", f"{len(collected.pages):,}" + _causes(Counter(r.cause for r in collected.pages.values())))
    table.add_row("documents", f"{len(library.documents):,}" + _causes(sources))
    table.add_row("same text, kept once", f"{library.duplicates:,}")
    table.add_row("answers added to their page", f"{library.answers_added:,}")
    table.add_row("chunks", f"{len(store.chunks):,} (embedded now: {store.embedded.chunks:,})")
    table.add_row("rows without a question of their own", f"{sum(left_out.values()):,}" + _causes(left_out))
    table.add_row("training questions", f"{len(train):,}")
    table.add_row("eval questions", f"{len(held_out):,}")
    Console().print(table)


def _causes(counts: Mapping[str, int]) -> str:
    """(a 3, b 1), the most frequent first."""
    named = ", ".join(
        f"{name} {count:,}" for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    )
    return f" ({named})" if named else ""


if __name__ == "__main__":
    run_script(main, description=__doc__)
