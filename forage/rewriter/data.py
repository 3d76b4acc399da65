"""Data of a run: the questions to train on and those held out, the corpus, and the search over it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from forage.agent.prompts import prompt_tokens
from forage.data.documents import assemble
from forage.data.options import Columns
from forage.data.qa_rows import read_records, to_rows
from forage.data.records import Document, Question
from forage.data.relevance import make_questions, question_key, split_by_document
from forage.data.rewriter_data import CORPUS, export_rewriter_data, import_rewriter_data
from forage.data.sample import QUESTIONS
from forage.errors import UserError
from forage.manifest import file_digest
from forage.rewriter.options import Options, RewriteOptions
from forage.store.card import NO_EMBEDDER, read_card
from forage.store.document_store import DocumentStore
from forage.store.opening import Store, open_place, open_store
from forage.store.options import StoreOptions, StorePlace
from forage.text import one_line

HELD_OUT_SHARE = 0.2  # of the documents, where there is no eval.jsonl
SHOWN_PROBLEMS = 20

Search = Callable[[Sequence[str]], list[list[str]]]
"""The ids of the best documents for each query, best first, without duplicates."""


@dataclass(frozen=True)
class Row:
    """A question to rewrite."""

    query: str
    relevant_doc_ids: tuple[str, ...]
    prompt: tuple[int, ...]
    """The prompt's tokens; no other row has the same."""


def make_rows(
    tokenizer: Any, questions: Sequence[Question], options: RewriteOptions, source: Path
) -> tuple[list[Row], list[str]]:
    """Rows, and a line 'file:line: why' for each question that is left out or merged.

    Questions with equal prompts become one row with the relevant documents of all of them, because rewards are looked
    up by prompt. The ids of the questions hold their line numbers (forage/data/rewriter_data.py).
    """
    rows: dict[tuple[int, ...], Row] = {}
    problems = []
    for question in questions:
        where = f"{source}:{question.id.removeprefix('q')}"
        prompt = tuple(prompt_tokens(tokenizer, options.instruction, question.question))
        if len(prompt) > options.max_prompt_tokens:
            most = options.max_prompt_tokens
            problems.append(f"{where}: left out, its prompt of {len(prompt)} tokens is longer than {most}")
        elif prompt in rows:
            problems.append(f"{where}: duplicate query; its relevant_doc_ids are added to the first one's")
            merged = dict.fromkeys(rows[prompt].relevant_doc_ids + question.relevant_doc_ids)
            rows[prompt] = replace(rows[prompt], relevant_doc_ids=tuple(merged))
        else:
            rows[prompt] = Row(question.question, question.relevant_doc_ids, prompt)
    return list(rows.values()), problems


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


# Search


def open_search(options: Options, data: Data) -> Search:
    """Find the best k documents for each query."""
    if options.store:
        store, missing = store_with(options.store, data)
        if missing:
            raise UserError(
                f"--store {options.store} lacks {missing} of the {len(data.documents)} documents of {data.folder}; "
                "give the store that --data was prepared with"
            )
    else:
        store = word_store(data)

    def search(queries: Sequence[str]) -> list[list[str]]:
        hits = store.search(queries, options.k, options.mode)
        return [[hit.chunk_id if options.store else hit.doc_id for hit in found] for found in hits]

    return search


def store_with(place: str, data: Data) -> tuple[Store, int]:
    """--store, and how many documents it lacks. A server tells no more than how many it has, if that."""
    given = StorePlace(str(place))
    given.check()
    store = open_place(given, data.folder)
    if isinstance(store, DocumentStore):
        return store, len({document.id for document in data.documents} - store.chunk_by_id.keys())
    return store, max(0, len(data.documents) - store.card.chunks) if store.card.chunks else 0


def word_store(data: Data) -> Store:
    """A store of whole documents for BM25, built once beside the corpus, whose digest names its folder."""
    path = data.folder / f"store-words-{file_digest(data.folder / CORPUS)}"
    if (path / "store.json").exists() and read_card(path).complete:
        return open_store(path)
    return DocumentStore.build(path, data.documents, StoreOptions(NO_EMBEDDER, chunk_tokens=10**9))
