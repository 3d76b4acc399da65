"""Makes questions from the passages of a store: candidates by turns of the documents, each kept or dropped."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Protocol

from forage.data.chunking import Chunk
from forage.data.qa_rows import QARow
from forage.data.records import Question
from forage.data.relevance import make_questions
from forage.errors import UserError
from forage.files import write_jsonl
from forage.progress import Counting
from forage.questions.candidates import Candidate, Dropped, Kept, Made, in_turn
from forage.questions.options import MakingOptions
from forage.questions.phrasing import Phraser, Vocabulary
from forage.questions.report import print_made
from forage.questions.vetting import Vetter
from forage.store.card import NO_EMBEDDER
from forage.store.document_store import DocumentStore

BATCH = 64  # passages between two looks at whether there are enough questions
DROPPED, ASKED = "questions_dropped.jsonl", "questions_asked.jsonl"


class Writer(Protocol):
    async def made(self, passages: Sequence[Chunk]) -> list[Candidate | Dropped]: ...


def make_from(store: DocumentStore, options: MakingOptions, folder: Path, seed: int) -> Sequence[Question]:
    """Questions with the ids of what answers them. Writes what was dropped into `folder`, and prints a table."""
    made = asyncio.run(_make(store, options, folder, seed))
    write_jsonl(folder / DROPPED, map(dropped_row, made.dropped))
    print_made(made)
    questions = questions_of(made.kept, store)
    if len(questions) < options.min_questions:
        why = ", ".join(f"{reason}: {count:,}" for reason, count in made.reasons.most_common())
        raise UserError(
            f"--documents {options.documents}: {len(questions)} questions were kept, and --min-questions wants "
            f"{options.min_questions} ({made.passages} passages; {why or 'nothing was dropped'}); add documents"
            + ("" if options.make_questions else ", let a model write them with --make-questions,")
            + f" or see {folder / DROPPED}"
        )
    return questions


async def _make(store: DocumentStore, options: MakingOptions, folder: Path, seed: int) -> Made:
    made = Made(options.found_within, len(store.chunks))
    vetter = Vetter(store, "sparse" if store.options.embedder == NO_EMBEDDER else "hybrid", options.found_within)
    passages = in_turn(store.chunks, seed)
    async with AsyncExitStack() as stack:
        writer = await _writer(options, folder, store, seed, stack)
        bar = stack.enter_context(Counting("making questions", len(passages)))
        for first in range(0, len(passages), BATCH):
            batch = passages[first : first + BATCH]
            found = await writer.made(batch)
            made.read += len(batch)
            made.fruitless += len({passage.id for passage in batch} - {one.passage.id for one in found})
            made.dropped += [one for one in found if isinstance(one, Dropped)]
            judged = list(vetter.judged([one for one in found if isinstance(one, Candidate)]))
            made.kept += [one for one in judged if isinstance(one, Kept)]
            made.dropped += [one for one in judged if isinstance(one, Dropped)]
            bar.update(len(batch))
            if len(made.kept) >= options.max_questions:
                del made.kept[options.max_questions :]
                break
    return made


async def _writer(
    options: MakingOptions, folder: Path, store: DocumentStore, seed: int, stack: AsyncExitStack
) -> Writer:  # fmt: skip
    if not options.make_questions:
        return Phraser(Vocabulary.of(store.chunks), seed)
    from forage.engines.chat_endpoint import Endpoint
    from forage.questions.chat_writer import ChatWriter
    from forage.questions.replies import INSTRUCTION, REPLY_TOKENS, ReplyFile

    replies = ReplyFile(folder / ASKED, options.make_questions)
    stack.callback(replies.close)
    url, name = options.make_questions_url, options.make_questions
    model = Endpoint(url, name, INSTRUCTION, REPLY_TOKENS, "--make-questions-url")
    return ChatWriter(await stack.enter_async_context(model), replies)


def questions_of(kept: Sequence[Kept], store: DocumentStore) -> Sequence[Question]:
    """The kept candidates as a data set's rows: every chunk of the document that has the answer is relevant."""
    rows, doc_of_row = [], []
    for one in kept:
        made, passage = one.candidate, one.candidate.passage
        digest = hashlib.sha256(f"{passage.id}\n{made.question}".encode()).hexdigest()
        row_id = f"{made.kind}-{digest[:12]}"
        rows.append(QARow(row_id, made.question, made.answer, "", passage.title, made.kind))
        doc_of_row.append(passage.doc_id)
    questions, _ = make_questions(rows, doc_of_row, store.chunks)
    return questions


def dropped_row(one: Dropped) -> dict[str, str]:
    return {
        "reason": one.reason, "kind": one.kind, "question": one.question, "answer": one.answer,
        "title": one.passage.title, "doc_id": one.passage.doc_id, "chunk_id": one.passage.id,
    }  # fmt: skip
