"""Stage 1: turn a QA data set and the pages it links to into documents, a searchable store, train and eval questions.

    python data_prep.py --dataset-name sample                          the corpus that comes with the repository
    python data_prep.py                                                lavita/MedQuAD from the hub, its pages scraped
    python data_prep.py --dataset-name medquad.jsonl.gz --no-scrape    a file; its answers are the documents
    python data_prep.py --documents notes                              your own files; questions are made from them

Reads the data set and fetches the pages, or reads a folder of files. Writes to --output-dir: documents.jsonl, store/,
train.jsonl, eval.jsonl, manifest.jsonl (what became of each page or file) and rewriter/ (the same data for
train_ppo.py). If it is interrupted, re-run the same command to resume. The texts of a large data set lie in files
in --output-dir, not in memory (docs/data.md says what does).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from forage.cli import run_script
from forage.data.chunking import chunk_ids_by_document
from forage.data.options import DatasetOptions
from forage.data.records import Question
from forage.data.relevance import make_questions, split_by_document
from forage.data.rewriter_data import RewriterData, export_rewriter_data, import_rewriter_data
from forage.data.scraping.options import ScrapeOptions
from forage.data.splits import drop_questions
from forage.errors import UserError
from forage.files import write_jsonl
from forage.outputs import check_apart, check_files_apart, check_folder
from forage.questions.options import MakingOptions
from forage.sole_writer import filling_folder
from forage.store.options import StoreOptions
from forage.text import one_line

if TYPE_CHECKING:
    from forage.data.corpus import Corpus, Dataset
    from forage.data.own_documents import OwnDocuments
    from forage.store.document_store import DocumentStore

TOP = (
    "dataset_name", "documents", "make_questions", "make_questions_url", "output_dir", "content_dir", "cache_dir",
    "batch_size", "skip_existing", "scrape", "eval_share", "embedder", "chunk_tokens", "seed",
)  # fmt: skip
WRITTEN = ("documents.jsonl", "manifest.jsonl", "train.jsonl", "eval.jsonl", "store", "rewriter")
RENAMED = {"--split": "--dataset-split", "--in-flight": "--batch-size"}


@dataclass(frozen=True)
class Options:
    """What is written."""

    output_dir: Path = Path("data")
    """Folder for everything this script makes."""
    eval_share: float = 0.2
    """Share of the documents whose questions are held out."""
    seed: int = 0
    """Seed of the split into train and eval questions."""
    dataset: DatasetOptions = field(default_factory=DatasetOptions)
    making: MakingOptions = field(default_factory=MakingOptions)
    store: StoreOptions = field(default_factory=StoreOptions)

    def check(self) -> None:
        """Fail before anything is fetched or loaded."""
        if not 0 < self.eval_share < 1:
            raise UserError(f"--eval-share {self.eval_share} must lie between 0 and 1")
        check_folder("--output-dir", self.output_dir)
        self.dataset.scraping.check()
        self.store.check()
        self.making.check()
        if self.making.documents is not None:
            if self.dataset.dataset_name != DatasetOptions.dataset_name:
                raise UserError(f"--dataset-name {self.dataset.dataset_name} and --documents are both given; give one")
            check_apart("--output-dir", self.output_dir, {"--documents": self.making.documents})
            return
        source = {"--dataset-name": Path(self.dataset.dataset_name)}
        if source["--dataset-name"].is_dir():
            check_apart("--output-dir", self.output_dir, source)
        check_files_apart("--output-dir", self.output_dir, WRITTEN, source)


def main(options: Options) -> None:
    options.check()
    if options.making.documents is not None:
        prepare_own_documents(options.making.documents, options)
        return
    if Path(options.dataset.dataset_name).is_dir():
        prepare_rewriter_folder(Path(options.dataset.dataset_name), options)
        return
    from forage.data.corpus import load_corpus

    corpus = load_corpus(options.dataset, near=options.output_dir)
    with filling_folder(options.output_dir, "rewriter"):
        write_corpus(corpus, options)


def write_corpus(corpus: Corpus, options: Options) -> None:
    """Write the output folder, eval.jsonl last."""
    from forage.data.corpus import manifest_rows
    from forage.store.opening import build_store

    library = corpus.library
    write_jsonl(options.output_dir / "documents.jsonl", library.documents)
    write_jsonl(options.output_dir / "manifest.jsonl", manifest_rows(corpus))
    drop_questions(options.output_dir)
    store = build_store(options.output_dir / "store", library.documents, options.store)
    questions, left_out = make_questions(corpus.rows, library.doc_of_row, store.chunks, near=options.output_dir)
    train, held_out = write_questions(questions, store, options)
    print_summary(corpus, left_out, store, train, held_out)


def prepare_own_documents(folder: Path, options: Options) -> None:
    """Read a folder of files and make questions from them."""
    from forage.data.own_documents import read_folder
    from forage.questions.report import print_read

    own = read_folder(folder)
    print_read(own.records)
    with filling_folder(options.output_dir, "rewriter"):
        write_own_documents(own, options)


def write_own_documents(own: OwnDocuments, options: Options) -> None:
    """Write the output folder, eval.jsonl last."""
    from forage.questions.making import make_from
    from forage.store.opening import build_store

    write_jsonl(options.output_dir / "documents.jsonl", own.documents)
    write_jsonl(options.output_dir / "manifest.jsonl", own.records)
    drop_questions(options.output_dir)
    store = build_store(options.output_dir / "store", own.documents, options.store)
    questions = make_from(store, options.making, options.output_dir, options.seed)
    train, held_out = write_questions(questions, store, options)
    print(
        f"{options.output_dir}: {len(own.documents):,} documents, {len(store.chunks):,} chunks (embedded now: "
        f"{store.embedded.chunks:,}), {len(train):,} training and {len(held_out):,} eval questions"
    )


def load_or_scrape_documents(
    dataset_name: str, cache_dir: Path | str, content_dir: Path | str, batch_size: int = 100, skip_existing: bool = True
) -> Dataset:
    """A data set's documents, its pages where they can be fetched and its own answers for the rest, and its questions.

    `dataset.documents` and `dataset.questions` are lists of the records of forage/data/records.py.
    """
    options = DatasetOptions(
        dataset_name, cache_dir=Path(cache_dir), content_dir=Path(content_dir), skip_existing=skip_existing,
        scraping=ScrapeOptions(batch_size=batch_size),
    )  # fmt: skip
    options.scraping.check()
    from forage.data.corpus import dataset_of, load_corpus

    return dataset_of(load_corpus(options))


def write_questions(
    questions: Sequence[Question], store: DocumentStore, options: Options
) -> tuple[Sequence[Question], Sequence[Question]]:
    """Split by document; write train.jsonl, eval.jsonl and the query rewriter's files."""
    train, held_out = split_by_document(questions, options.eval_share, options.seed)
    if not train or not held_out:
        raise UserError(
            f"{len(questions)} questions were split into {len(train)} training and {len(held_out)} eval questions: "
            "use more documents, another --eval-share or another --seed"
        )
    export_rewriter_data(options.output_dir / "rewriter", store.chunks, train, held_out)
    write_jsonl(options.output_dir / "train.jsonl", train)
    write_jsonl(options.output_dir / "eval.jsonl", held_out)
    return train, held_out


def prepare_rewriter_folder(folder: Path, options: Options) -> None:
    """Prepare a folder of train.jsonl (its queries are the questions) and pubmed_corpus.json (the documents)."""
    for name in ("train.jsonl", "pubmed_corpus.json"):
        if not (folder / name).is_file():
            raise UserError(
                f"--dataset-name {folder} is a folder without {name}, so not one of train_ppo.py's; name a .jsonl, "
                ".jsonl.gz, .csv or .parquet file"
            )
    data = import_rewriter_data(folder / "train.jsonl", folder / "pubmed_corpus.json")
    with filling_folder(options.output_dir, "rewriter"):
        write_rewriter_data(data, folder, options)


def write_rewriter_data(data: RewriterData, folder: Path, options: Options) -> None:
    from forage.store.opening import build_store

    for problem in data.problems[:20]:
        print(one_line(problem))
    drop_questions(options.output_dir)
    store = build_store(options.output_dir / "store", data.documents, options.store)
    chunk_ids = chunk_ids_by_document(store.chunks)
    questions = [
        replace(question, relevant_chunk_ids=tuple(chain(*(chunk_ids[doc_id] for doc_id in question.relevant_doc_ids))))
        for question in data.questions
    ]
    write_jsonl(options.output_dir / "documents.jsonl", data.documents)
    train, held_out = write_questions(questions, store, options)
    print(
        f"{folder}: {len(data.documents)} documents, {len(store.chunks)} chunks, {len(train)} training and "
        f"{len(held_out)} eval questions; {len(data.problems)} rows with problems"
    )


def print_summary(
    corpus: Corpus,
    left_out: Counter[str],
    store: DocumentStore,
    train: Sequence[Question],
    held_out: Sequence[Question],
) -> None:
    """What was made, and why the rest was left out."""
    from rich.console import Console
    from rich.table import Table

    library = corpus.library
    table = Table("", "", show_header=False, title="prepared")
    table.add_row("rows", f"{len(corpus.rows):,}" + _causes(corpus.lacking))
    table.add_row("pages", f"{len(corpus.pages):,}" + _causes(Counter(r.cause for r in corpus.pages.values())))
    table.add_row("documents", f"{len(library.documents):,}" + _causes(library.sources))
    table.add_row("documents with a text seen before", f"{library.duplicates:,}")
    table.add_row("answers missing from their page, added to it", f"{library.answers_added:,}")
    table.add_row("chunks", f"{len(store.chunks):,} (embedded now: {store.embedded.chunks:,})")
    table.add_row("rows that make no question", f"{sum(left_out.values()):,}" + _causes(left_out))
    table.add_row("training questions", f"{len(train):,}")
    table.add_row("eval questions", f"{len(held_out):,}")
    Console().print(table)


def _causes(counts: Mapping[str, int]) -> str:
    """Example: a 3 and b 1 give ' (a 3, b 1)', the most frequent first."""
    by_count = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return f" ({', '.join(f'{name} {count:,}' for name, count in by_count)})" if counts else ""


if __name__ == "__main__":
    run_script(main, __doc__, top=TOP, renamed=RENAMED)
