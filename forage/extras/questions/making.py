"""Makes questions from the passages of a store: candidates by turns of the documents, each kept or dropped."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from forage.data.chunking import Chunk
from forage.data.qa_rows import QARow
from forage.data.records import Question
from forage.data.relevance import make_questions
from forage.errors import UserError
from forage.extras.questions.options import MakingOptions
from forage.extras.questions.phrasing import Phraser
from forage.extras.questions.vetting import Candidate, Vetter
from forage.files import write_jsonl
from forage.progress import Counting
from forage.store.document_store import DocumentStore

BATCH = 64  # passages between two looks at whether there are enough questions
DROPPED, ASKED = "questions_dropped.jsonl", "questions_asked.jsonl"


def make_from(
    store: DocumentStore, options: MakingOptions, folder: Path, seed: int
) -> tuple[list[Question], list[Candidate], Counter[str]]:
    """Questions with the ids of what answers them, their candidates, and the number of those dropped, by reason.

    Writes what was dropped into `folder`.
    """
    judged = asyncio.run(_judged(store, options, folder, seed))
    dropped = [one for one in judged if one.fault]
    kept = [one for one in judged if not one.fault][: options.max_questions]
    write_jsonl(folder / DROPPED, map(dropped_row, dropped))
    reasons = Counter(one.fault for one in dropped)
    questions = questions_of(kept, store)
    if len(questions) < options.min_questions:
        why = ", ".join(f"{reason}: {count:,}" for reason, count in reasons.most_common())
        raise UserError(
            f"--documents {options.documents}: {len(questions)} questions were kept, and --min-questions wants "
            f"{options.min_questions} ({why or 'nothing was dropped'}); add documents, let a model write them with "
            f"--make-questions, or see {folder / DROPPED}"
        )
    return questions, kept, reasons


def in_turn(passages: Sequence[Chunk], seed: int) -> list[Chunk]:
    """Every document's first passage, then every document's second, and so on; which is first, the seed decides."""
    shuffled = sorted(passages, key=lambda passage: hashlib.sha256(f"{seed}:{passage.id}".encode()).digest())
    before, turn = Counter[str](), {}
    for passage in shuffled:
        turn[passage.id] = before[passage.doc_id]
        before[passage.doc_id] += 1
    return sorted(shuffled, key=lambda passage: turn[passage.id])


async def _judged(store: DocumentStore, options: MakingOptions, folder: Path, seed: int) -> list[Candidate]:
    from forage.engines.chat_endpoint import Endpoint
    from forage.extras.questions.chat_writer import INSTRUCTION, REPLY_TOKENS, ChatWriter

    vetter, judged, wanted = Vetter(store, options.found_within), list[Candidate](), options.max_questions
    passages = in_turn(store.chunks, seed)
    url, name = options.make_questions_url, options.make_questions
    model = Endpoint(url, name, INSTRUCTION, REPLY_TOKENS, "--make-questions-url") if name else None
    with Counting("making questions", len(passages)) as bar:
        async with model or nullcontext():
            write = ChatWriter(model, folder / ASKED) if model else Phraser(store.chunks)
            while passages and sum(not one.fault for one in judged) < wanted:
                batch, passages = passages[:BATCH], passages[BATCH:]
                judged += vetter.judged(await write(batch))
                bar.update(len(batch))
    return judged


def questions_of(kept: Sequence[Candidate], store: DocumentStore) -> list[Question]:
    """The kept candidates as a data set's rows: every chunk of the document that has the answer is relevant."""
    rows = []
    for one in kept:
        digest = hashlib.sha256(f"{one.passage.id}\n{one.question}".encode()).hexdigest()
        rows.append(QARow(f"{one.kind}-{digest[:12]}", one.question, one.answer, "", one.passage.title, one.kind))
    return make_questions(rows, [one.passage.doc_id for one in kept], store.chunks)[0]


def dropped_row(one: Candidate) -> dict[str, str]:
    return {
        "reason": one.fault, "question": one.question, "answer": one.answer,
        "title": one.passage.title, "chunk_id": one.passage.id,
    }  # fmt: skip
