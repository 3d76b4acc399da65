"""Data of a run: the corpus, the questions to train on, and those held out for evaluation."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forage.data.documents import assemble
from forage.data.options import Columns
from forage.data.qa_rows import read_records, to_rows
from forage.data.records import Document, Question
from forage.data.relevance import make_questions, question_key, split_by_document
from forage.data.rewriter_data import CORPUS, export_rewriter_data, import_rewriter_data
from forage.data.sample import QUESTIONS
from forage.errors import UserError
from forage.rewriter.options import Options
from forage.rewriter.rewrites import Row, make_rows
from forage.store.card import NO_EMBEDDER
from forage.store.document_store import DocumentStore
from forage.store.options import StoreOptions
from forage.text import one_line

HELD_OUT_SHARE = 0.2  # of the documents, where there is no eval.jsonl
SHOWN_PROBLEMS = 20


@dataclass(frozen=True)
class Data:
    """The documents, and the questions on both sides of the split."""

    folder: Path
    documents: list[Document]
    train: list[Row]
    held_out: list[Row]


def read_data(options: Options, tokenizer: Any) -> Data:
    """Read the data folder; rows that can't be used are printed with file and line."""
    folder = find_data(options)
    questions = read_questions(folder, options.seed)
    train, train_problems = make_rows(tokenizer, questions.train, options.query, questions.train_file)
    held_out, held_out_problems = make_rows(tokenizer, questions.held_out, options.query, questions.held_out_file)
    trained_on = {question_key(row.query) for row in train}
    unseen = [row for row in held_out if question_key(row.query) not in trained_on]
    overlap_problems = []
    if overlap := len(held_out) - len(unseen):
        overlap_problems = [f"{questions.held_out_file}: left out {overlap} queries that are also trained on"]
    report_problems([*questions.problems, *overlap_problems, *train_problems, *held_out_problems])
    if not train or not unseen:
        raise UserError(f"{folder} has {len(train)} training queries and {len(unseen)} held-out ones; add some of both")
    count = min(options.eval_questions or len(unseen), len(unseen))
    chosen = random.Random(options.seed).sample(unseen, count)
    print(f"{folder}: {len(questions.documents)} documents, {len(train)} training queries, {count} held out")
    return Data(folder, questions.documents, train, chosen)


@dataclass(frozen=True)
class SplitQuestions:
    """The questions of a data folder before they have prompts, with the files they come from."""

    documents: list[Document]
    train: Sequence[Question]
    train_file: Path
    held_out: Sequence[Question]
    held_out_file: Path
    problems: list[str]


def read_questions(folder: Path, seed: int) -> SplitQuestions:
    """train.jsonl and eval.jsonl; without the latter, a fifth of train.jsonl is held out."""
    train_file, eval_file, corpus = folder / "train.jsonl", folder / "eval.jsonl", folder / CORPUS
    trained = import_rewriter_data(train_file, corpus)
    if not eval_file.exists():
        train, held_out = split_by_document(trained.questions, HELD_OUT_SHARE, seed)
        return SplitQuestions(trained.documents, train, train_file, held_out, train_file, trained.problems)
    evaluated = import_rewriter_data(eval_file, corpus)
    # The corpus was read twice, but its problems are reported once.
    eval_problems = [problem for problem in evaluated.problems if problem.startswith(str(eval_file))]
    problems = [*trained.problems, *eval_problems]
    return SplitQuestions(trained.documents, trained.questions, train_file, evaluated.questions, eval_file, problems)


def find_data(options: Options) -> Path:
    """--data, else data/rewriter or data, else a folder made of the sample data."""
    if options.data:
        for name in ("train.jsonl", CORPUS):
            if not (options.data / name).is_file():
                raise UserError(f"{options.data / name} is missing; --data needs train.jsonl and {CORPUS}")
        return options.data
    for folder in (Path("data/rewriter"), Path("data")):
        present = [name for name in ("train.jsonl", CORPUS) if (folder / name).is_file()]
        if len(present) == 2:
            return folder
        if present:
            raise UserError(f"{folder} has only {present[0]}; add train.jsonl and {CORPUS}, or give another --data")
    folder = options.run_dir / "sample"
    if not (folder / "eval.jsonl").exists():  # the file that is written last
        make_sample(folder, options.seed)
    print(f"using sample data, because neither data/ nor data/rewriter has train.jsonl and {CORPUS}")
    return folder


def make_sample(folder: Path, seed: int) -> None:
    """Write queries and corpus from sample_data/: its answers are the documents, and each chunk is a "doc"."""
    rows, _ = to_rows(read_records(str(QUESTIONS), Path()), Columns())
    library = assemble(rows, {})
    chunking = StoreOptions(NO_EMBEDDER, chunk_tokens=80, chunk_overlap=0)
    store = DocumentStore.build(folder / "chunks", library.documents, chunking)
    questions, _ = make_questions(rows, library.doc_of_row, store.chunks)
    export_rewriter_data(folder, store.chunks, *split_by_document(questions, HELD_OUT_SHARE, seed))


def report_problems(problems: Sequence[str]) -> None:
    for problem in problems[:SHOWN_PROBLEMS]:
        print(one_line(problem))
    if problems:
        hidden = len(problems) - SHOWN_PROBLEMS
        print(f"{len(problems)} rows with problems" + (f" ({hidden} not shown)" if hidden > 0 else ""))
