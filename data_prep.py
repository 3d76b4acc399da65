"""Stage 1: turn a QA data set and the pages it links to into documents, a searchable store, train and eval questions.

    python data_prep.py --dataset-name sample                          the sample corpus of this repository
    python data_prep.py                                                lavita/MedQuAD from the hub; scrapes its pages
    python data_prep.py --dataset-name medquad.jsonl.gz --no-scrape    a file; its answers become the documents
    python data_prep.py --dataset-name scifact                         a test collection in BEIR's layout
    python data_prep.py --documents notes                              your own files; makes questions from them
    python data_prep.py --documents notes --questions asked.csv        your own files and your own questions
    python data_prep.py --dataset-name sample --second-hop 4           adds questions that one search can't answer

Reads a data set and fetches its pages, or reads a folder of files. Writes to --output-dir: documents.jsonl, store/,
train.jsonl, eval.jsonl, manifest.jsonl (what happened to each page or file), rewriter/ (the same data for train_ppo.py)
and, for a test collection, qrels/. If it is interrupted, re-run the same command to resume.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forage.arguments import run_script
from forage.data.options import DatasetOptions
from forage.data.records import Document, Question
from forage.data.relevance import by_document, make_questions, merged, split_by_document
from forage.data.rewriter_data import export_rewriter_data
from forage.data.scraping.options import ScrapeOptions
from forage.data.splits import drop_questions, unshared
from forage.errors import UserError
from forage.extras.questions.options import MakingOptions
from forage.files import check_apart, check_files_apart, check_folder, filling_folder, write_jsonl
from forage.store.options import StoreOptions

if TYPE_CHECKING:
    from forage.data.chunking import Chunk
    from forage.data.corpus import Dataset
    from forage.extras.questions.two_documents import Describe, Passages
    from forage.store.document_store import DocumentStore

TOP = (
    "dataset_name", "documents", "questions", "make_questions", "make_questions_url", "output_dir", "content_dir",
    "cache_dir", "batch_size", "skip_existing", "scrape", "eval_share", "embedder", "chunk_tokens", "seed",
)  # fmt: skip
LEFT_OUT = "questions_left_out.jsonl"
SECOND_HOP = "second_hop"
WRITTEN = ("documents.jsonl", "manifest.jsonl", "train.jsonl", "eval.jsonl", "qrels", "store", "rewriter", LEFT_OUT)

Split = tuple[list[Question], list[Question]]  # training, held out


@dataclass(frozen=True)
class Options:
    """The output and the split."""

    output_dir: Path = Path("data")
    """Folder for everything this script writes."""
    eval_share: float = 0.2
    """Share of the documents whose questions are held out, between 0 and 1."""
    eval_split: str = "test"
    """For a folder in BEIR's layout: hold out this split's queries and train on those of train."""
    seed: int = 0
    """Seed for the train/eval split and for making questions."""
    dataset: DatasetOptions = DatasetOptions()
    making: MakingOptions = MakingOptions()
    store: StoreOptions = StoreOptions()

    def check(self) -> None:
        """Fail before anything is fetched or loaded."""
        if not 0 < self.eval_share < 1:
            raise UserError(f"--eval-share {self.eval_share} must lie between 0 and 1")
        if self.eval_split == "train":
            raise UserError("--eval-split train: nothing would be held out; name another split")
        check_folder("--output-dir", self.output_dir)
        self.dataset.scraping.check()
        self.store.check()
        self.making.check()
        if self.making.documents is not None:
            if self.dataset.dataset_name != DatasetOptions.dataset_name:
                raise UserError(f"--dataset-name {self.dataset.dataset_name} and --documents are both given; give one")
            check_apart("--output-dir", self.output_dir, {"--documents": self.making.documents})
            asked = {"--questions": Path(self.making.questions)} if self.making.questions else {}
            check_files_apart("--output-dir", self.output_dir, WRITTEN, asked)
            return
        source = {"--dataset-name": Path(self.dataset.dataset_name)}
        if source["--dataset-name"].is_dir():
            check_apart("--output-dir", self.output_dir, source)
        check_files_apart("--output-dir", self.output_dir, WRITTEN, source)


@dataclass(frozen=True)
class Source:
    """What was read: documents, and how their questions come about once a store has cut them into chunks."""

    documents: list[Document]
    split: Callable[[DocumentStore, Passages], Split]
    told: dict[str, str]
    """What is printed at the end, with its number; `split` may add some."""
    manifest: Iterable[Any] = ()


def main(options: Options) -> None:
    options.check()
    source = read_source(options)
    with filling_folder(options.output_dir, "rewriter", "qrels"):
        write(source, options)


def read_source(options: Options) -> Source:
    """The one kind of source that the options name."""
    folder = Path(options.dataset.dataset_name)
    if options.making.documents is not None:
        return own_documents(options.making.documents, options)
    if not folder.is_dir():
        return rows_and_pages(options)
    if (folder / "corpus.jsonl").is_file():
        return collection(folder, options)
    raise UserError(
        f"--dataset-name {folder} is a folder without corpus.jsonl (BEIR's layout); name one, or a .jsonl, .jsonl.gz, "
        ".csv or .parquet file"
    )


def write(source: Source, options: Options) -> None:
    """Write the output folder, eval.jsonl last, and print what was made."""
    from forage.extras.questions.headroom import told
    from forage.extras.questions.two_documents import Passages
    from forage.store.opening import build_store

    out = options.output_dir
    write_jsonl(out / "documents.jsonl", (document.row() for document in source.documents))
    write_jsonl(out / "manifest.jsonl", source.manifest)
    drop_questions(out)
    store = build_store(out / "store", source.documents, options.store)
    passages = Passages(store.chunks)
    asked = train, held_out = source.split(store, passages)
    export_rewriter_data(out / "rewriter", store.chunks, train, held_out)
    write_jsonl(out / "train.jsonl", train)
    linked, where = {}, out
    for words in options.making.second_hop:
        folder = out / f"{SECOND_HOP}_{words}"
        told_of, made = write_linked(folder, passages, store, (train, held_out), words, options)
        linked[f"questions for two searches, {folder.name}"] = told_of
        asked, where = (made, folder) if all(made) else (asked, where)
    write_jsonl(out / "eval.jsonl", held_out)
    rows = source.told | {
        "documents": f"{len(source.documents):,}" + _causes(Counter(d.source for d in source.documents)),
        "chunks": f"{len(store.chunks):,} (embedded now: {store.embedded:,})",
        "training questions": f"{len(train):,}",
        "eval questions": f"{len(held_out):,}",
        **linked,
        **({} if store.options.retriever else told(store, passages, *asked, str(where))),
    }
    print("\n".join(f"{what:46} {count}" for what, count in rows.items()))


def write_linked(
    folder: Path, passages: Passages, store: DocumentStore, split: Split, words: int, options: Options
) -> tuple[str, Split]:
    """Write questions that need two documents into a folder of their own, with the same store; what is told of it."""
    from forage.extras.questions.headroom import attacks, modes_of
    from forage.extras.questions.making import described
    from forage.extras.questions.two_documents import FOUND, description, link

    def ranks(queries: Sequence[str]) -> list[list[str]]:
        found = [store.search(queries, FOUND, mode) for mode in modes_of(store)]
        return [[hit.chunk_id for hits in several for hit in hits] for several in zip(*found, strict=True)]

    apart = passages.apart(*split)
    describe: Describe = partial(description, passages.telling, words, options.seed)
    if options.making.make_questions:
        describe = described([*apart[0], *apart[1]], options.making, options.output_dir)
    made = [
        link(passages, side, mentions, describe, ranks, options.seed)
        for side, mentions in zip(split, apart, strict=True)
    ]
    train, held_out = (side.kept for side in made)
    train = unshared(train, held_out)  # of few words, two may be the same
    folder.mkdir(exist_ok=True)
    dropped = [(cause, question) for side in made for question, cause in side.dropped]
    write_jsonl(folder / "train.jsonl", train)
    write_jsonl(folder / "eval.jsonl", held_out)
    write_jsonl(folder / LEFT_OUT, ({"cause": cause, **asdict(question)} for cause, question in dropped))
    if not (folder / "store").is_symlink():
        (folder / "store").symlink_to(Path("..") / "store")
    causes = _causes(Counter(cause for cause, _ in dropped))
    return f"{len(train):,} to train on, {len(held_out):,} held out{attacks(store, made[1])}{causes}", (train, held_out)


def rows_and_pages(options: Options) -> Source:
    """A data set's rows, and the pages they name."""
    from forage.data.corpus import load_corpus, manifest_rows

    corpus = load_corpus(options.dataset)
    library = corpus.library
    told = {
        "rows": f"{len(corpus.rows):,}" + _causes(corpus.lacking),
        "pages": f"{len(corpus.pages):,}" + _causes(Counter(r.cause for r in corpus.pages.values())),
        "documents with a text seen before": f"{library.duplicates:,}",
        "answers missing from their page, added to it": f"{library.answers_added:,}",
        **_left_out(corpus.recurring),
    }

    def split(store: DocumentStore, passages: Passages) -> Split:
        questions, left_out = make_questions(corpus.rows, library.doc_of_row, store.chunks)
        told["rows that make no question"] = f"{sum(left_out.values()):,}" + _causes(left_out)
        return halves(questions, options, passages, left_out["same question, merged"])

    return Source(library.documents, split, told, manifest_rows(corpus))


def own_documents(folder: Path, options: Options) -> Source:
    """A folder of files, and questions of one's own or made from them."""
    from forage.data.own_documents import read_folder
    from forage.data.own_questions import place, read_own_questions
    from forage.extras.questions.making import make_from

    asked = read_own_questions(options.making.questions, options.dataset.columns) if options.making.questions else []
    own = read_folder(folder, keep_recurring=options.dataset.keep_recurring)
    told = {"files": f"{len(own.records):,}" + _causes(Counter(record.cause for record in own.records))}
    told |= _left_out(own.recurring)

    def split(store: DocumentStore, passages: Passages) -> Split:
        def near(text: str, k: int) -> list[Chunk]:
            return [store.chunk_by_id[hit.chunk_id] for hit in store.search(text, k, "sparse")]

        if asked:
            placed, left_out = place(asked, own.records, by_document(store.chunks), near)
            write_jsonl(options.output_dir / LEFT_OUT, ({"cause": why, **asdict(row)} for row, why in left_out))
            told["questions"] = f"{len(asked):,}"
            told[f"left out, see {LEFT_OUT}"] = f"{len(left_out):,}" + _causes(Counter(why for _, why in left_out))
            if not placed:
                raise UserError(f"--questions {options.making.questions}: no question has an answer in {folder}; see "
                                f"{options.output_dir / LEFT_OUT} for each one's cause")  # fmt: skip
            questions = merged(placed)
            told["questions that several documents answer"] = f"{sum(len(q.relevant_doc_ids) > 1 for q in questions):,}"
            same = len({row.id for row, _, _ in placed}) - len(questions)
            return halves(questions, options, passages, same, len(left_out))
        questions, kept, reasons = make_from(store, options.making, options.output_dir, options.seed)
        told["questions dropped"] = f"{sum(reasons.values()):,}" + _causes(reasons)
        found = sum(1 / one.rank for one in kept) / len(kept)
        told["MRR, searched with the question"] = f"{found:.2f}"
        return halves(questions, options, passages)

    return Source(own.documents, split, told, own.records)


def collection(folder: Path, options: Options) -> Source:
    """A folder in BEIR's layout. Its judgements of documents are kept, for evaluate.py to judge by."""
    from forage.data.collection import TRAIN, questions_of, read_beir, write_qrels

    found = read_beir(folder, options.eval_split)
    told = {"left out": f"{sum(found.left_out.values()):,}" + _causes(found.left_out)}

    def split(store: DocumentStore, passages: Passages) -> Split:
        for of, judgements in found.judgements.items():
            write_qrels(options.output_dir / "qrels" / f"{TRAIN if of == TRAIN else 'eval'}.tsv", judgements)
        held_out = questions_of(found, options.eval_split, store.chunks)
        train = questions_of(found, TRAIN, store.chunks) if TRAIN in found.judgements else []
        left = unshared(train, held_out)
        told["training queries that are held out, left out"] = f"{len(train) - len(left):,}"
        return left, held_out

    return Source(found.documents, split, told)


def halves(
    questions: Sequence[Question], options: Options, passages: Passages, merged: int = 0, left_out: int = 0
) -> Split:
    """Split by document; `merged` rows asked the same as others, and `left_out` have no answer in any.

    With --second-hop, documents that mention one another stay on one side as far as can be.
    """
    links = passages.links() if options.making.second_hop else []
    train, held_out = split_by_document(questions, options.eval_share, options.seed, links)
    if not train or not held_out:
        same = f" ({merged:,} more rows ask the same as another)" if merged else ""
        same += f" ({left_out:,} were left out; {options.output_dir / LEFT_OUT} says why)" if left_out else ""
        of = sum(len(question.relevant_doc_ids) for question in questions) / max(1, len(questions))
        same += f", answered by {of:.1f} documents each (a source column says which one is meant)" if of > 1.5 else ""
        raise UserError(
            f"different questions: {len(questions)}{same}, split into {len(train)} for training and {len(held_out)} to "
            "evaluate on; use more documents, another --eval-share or another --seed"
        )
    return train, held_out


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
    from forage.data.corpus import dataset_of, load_corpus

    return dataset_of(load_corpus(options))


def _left_out(recurring: Mapping[str, int]) -> dict[str, str]:
    """What is told of paragraphs that recur: the longest may be no boilerplate."""
    if not recurring:
        return {}
    example = max(recurring, key=len)
    shown = f"{len(recurring):,} (on {recurring[example]:,} pages: {example[:60]!r}; --keep-recurring keeps all)"
    return {"paragraphs left out of pages, as they recur": shown}


def _causes(counts: Mapping[str, int]) -> str:
    """Example: a 3 and b 1 give ' (a 3, b 1)', the most frequent first."""
    by_count = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return f" ({', '.join(f'{name} {count:,}' for name, count in by_count)})" if counts else ""


if __name__ == "__main__":
    run_script(main, __doc__, top=TOP)
