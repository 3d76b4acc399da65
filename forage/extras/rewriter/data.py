"""Data of a run: the questions to train on and those held out, the corpus, and the search over it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from forage.agent.prompts import REWRITE, prompt_tokens, with_titles
from forage.arguments import imported
from forage.data.records import Document, Question
from forage.data.relevance import split_by_document
from forage.data.rewriter_data import CORPUS
from forage.data.splits import unshared
from forage.errors import UserError
from forage.extras.rewriter.options import Options, RewriteOptions
from forage.files import json_lines
from forage.manifest import code_of, file_digest
from forage.policy.base_models import base_digest, folder_of
from forage.store.document_store import DocumentStore
from forage.store.manifest import NO_EMBEDDER, read_store_manifest
from forage.store.opening import manifest_at, open_address, open_store
from forage.store.options import StoreAddress, StoreOptions
from forage.text import from_json, say

HELD_OUT_SHARE = 0.2  # of the documents, where there is no eval.jsonl
MAX_PROMPT = 256  # tokens; questions with a longer prompt are left out and reported
TITLE_WORDS = 12  # a document's first line may be all of it

Search = Callable[[Sequence[str]], list[list[str]]]
"""The ids of the best documents for each query, best first, without duplicates."""


@dataclass(frozen=True)
class Row:
    """A question to rewrite."""

    query: str
    relevant_doc_ids: tuple[str, ...]
    prompt: tuple[int, ...]
    """The prompt's tokens."""


@dataclass(frozen=True)
class Data:
    """The documents' texts by their ids, the search among them, and the questions on both sides of the split."""

    texts: dict[str, str]
    search: Search
    train: list[Row]
    held_out: list[Row]


def read_data(options: Options, tokenizer: Any) -> Data:
    """Read --data; without eval.jsonl, a fifth of train.jsonl is held out. Rows that can't be used are counted."""
    folder, left_out = options.data, Counter[str]()
    for name in ("train.jsonl", CORPUS):
        if not (folder / name).is_file():
            raise UserError(
                f"{folder / name} is missing; --data needs train.jsonl and {CORPUS}, as data_prep.py writes them"
            )
    texts = read_corpus(folder / CORPUS)
    train = read_questions(folder / "train.jsonl", texts, left_out)
    if (folder / "eval.jsonl").exists():
        held_out = read_questions(folder / "eval.jsonl", texts, left_out)
    else:
        train, held_out = split_by_document(train, HELD_OUT_SHARE, options.seed)
    unseen = unshared(held_out, train)
    left_out["held out, but trained on too"] = len(held_out) - len(unseen)
    search = open_search(options, texts)
    rows, held = (
        make_rows(tokenizer, questions, options.query, left_out, partial(titles, texts, search))
        for questions in (train, unseen)
    )
    for cause, count in (+left_out).items():
        say(f"{folder}: {count} rows left out: {cause}")
    if not rows or not held:
        raise UserError(f"{folder} has {len(rows)} training queries and {len(held)} held-out ones; add some of both")
    count = min(options.eval_questions or len(held), len(held))
    print(f"{folder}: {len(texts)} documents, {len(rows)} training queries, {count} held out")
    return Data(texts, search, rows, random.Random(0).sample(held, count))  # the same for all seeds of a training


def read_corpus(path: Path) -> dict[str, str]:
    """The text of each document that has one."""
    try:
        rows: Any = from_json(path.read_bytes())
        texts = {str(row["doc_id"]): str(row["text"]) for row in rows if str(row["text"]).strip()}
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{path} can't be read ({type(error).__name__}: {error}); it must be a JSON list of objects with doc_id "
            "and text"
        ) from error
    if not texts:
        raise UserError(f"{path} has no document with a text")
    return texts


def read_questions(path: Path, texts: Mapping[str, str], left_out: Counter[str]) -> list[Question]:
    """The questions that a document of the corpus answers; the number of others goes into `left_out`."""
    questions = []
    for number, row in json_lines(path):
        given = row if isinstance(row, dict) else {}
        query, ids = str(given.get("query") or "").strip(), given.get("relevant_doc_ids")
        found = tuple(dict.fromkeys(str(one) for one in ids if str(one) in texts)) if isinstance(ids, list) else ()
        if query and found:
            questions.append(Question(f"{path.name}:{number}", query, "", relevant_doc_ids=found))
        else:
            left_out[f"no query, or no relevant document that is in {CORPUS}"] += 1
    return questions


def make_rows(
    tokenizer: Any, questions: Sequence[Question], options: RewriteOptions, left_out: Counter[str],
    titles_for: Callable[[str], list[str]],
) -> list[Row]:  # fmt: skip
    """The questions with their prompts, but for those whose prompt is too long."""
    rows = []
    for one in questions:
        asked = with_titles(one.question, titles_for(one.question)[: options.titles] if options.titles else [])
        prompt = prompt_tokens(tokenizer, REWRITE, asked)
        rows.append(Row(one.question, one.relevant_doc_ids, tuple(prompt)))
    kept = [row for row in rows if len(row.prompt) <= MAX_PROMPT]
    left_out[f"a prompt of over {MAX_PROMPT} tokens"] += len(rows) - len(kept)
    return kept


def titles(texts: Mapping[str, str], search: Search, question: str) -> list[str]:
    """The first lines of the documents that the question finds, each once, cut to a few words."""
    lines = [texts[doc_id].partition("\n")[0] for doc_id in search([question])[0] if doc_id in texts]
    return list(dict.fromkeys(" ".join(line.split()[:TITLE_WORDS]) for line in lines))


def origins(options: Options, model: str) -> dict[str, Any]:
    """Digests of what a run's figures rest on: questions, documents and store, the base, and a reward of the user's."""
    files = {Path(name).stem: file_digest(options.data / name) for name in ("train.jsonl", "eval.jsonl", CORPUS)}
    store = manifest_at(StoreAddress(options.store), options.data)[1] if options.store else ""
    base, own = folder_of(model), ":" in options.reward
    rest = {
        "base": base_digest(base) if base else "",  # a hub model that is not here yet has none
        "code": code_of(imported("--reward", options.reward)) if own else {},
    }
    return {"data": files | {"store": store}} | {name: value for name, value in rest.items() if value}


# Search


def open_search(options: Options, texts: Mapping[str, str]) -> Search:
    """Find the best documents for each query: the best k, or more where the reward looks at more."""
    if options.store:
        store = open_address(StoreAddress(options.store, options.retriever), options.data)
        if isinstance(store, DocumentStore) and (missing := texts.keys() - store.chunk_by_id.keys()):
            raise UserError(
                f"--store {options.store} lacks {len(missing)} of the {len(texts)} documents of {options.data}; give "
                "the store that --data was prepared with"
            )
    else:
        # Of whole documents for BM25, built once beside the corpus, whose digest names its folder.
        path = options.data / f"store-words-{file_digest(options.data / CORPUS)}"
        if (path / "store.json").exists() and read_store_manifest(path).complete:
            store = open_store(path)
        else:
            documents = [Document(doc_id, "", text) for doc_id, text in texts.items()]
            store = DocumentStore.build(path, documents, StoreOptions(NO_EMBEDDER, chunk_tokens=10**9))

    def search(queries: Sequence[str]) -> list[list[str]]:
        hits = store.search(queries, options.depth, options.mode)
        return [[hit.chunk_id if options.store else hit.doc_id for hit in found] for found in hits]

    return search
