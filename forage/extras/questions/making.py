"""Makes questions from the passages of a store: candidates by turns of the documents, each kept or dropped."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from forage.data.chunking import Chunk
from forage.data.qa_rows import QARow
from forage.data.records import Question
from forage.data.relevance import make_questions
from forage.engines.chat_endpoint import Endpoint, RefusedError, all_of
from forage.errors import UserError
from forage.extras.questions.options import MakingOptions
from forage.extras.questions.phrasing import Phraser
from forage.extras.questions.two_documents import SHORTEST, Describe, Mention, akin, says
from forage.extras.questions.vetting import Candidate, Vetter
from forage.files import append, json_lines, write_jsonl
from forage.progress import Counting
from forage.store.document_store import DocumentStore
from forage.text import encodable, titled, words_of

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
    vetter, judged, wanted = Vetter(store, options.found_within), list[Candidate](), options.max_questions
    passages = in_turn(store.chunks, seed)
    url, name = options.make_questions_url, options.make_questions
    model = Endpoint(url, name, INSTRUCTION, REPLY_TOKENS, URL) if name else None
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


# Questions written by a chat model: each passage is asked about once, and the reply kept on disk as it comes.

INSTRUCTION = (
    "You write questions for a search engine's users. Read the passage and write one question that it answers, as "
    "somebody would ask who has not seen the passage: name what it is about, and never say 'the passage'. Then give "
    "the answer in the words of the passage, in one sentence. The question must not contain the answer. Reply "
    'with JSON and nothing else: {"question": "...", "answer": "..."}'
)
DESCRIBE = (
    "Somebody has read about a thing and forgotten its name. You are given the name, a passage that says it, and that "
    "passage's title. Write how this person would describe the thing, by what the passage says of it, in one plain "
    "phrase of at most 20 words, without its name, the title, or words akin to them. Reply with JSON and nothing else: "
    '{"description": "..."}'
)
URL = "--make-questions-url"
REPLY_TOKENS = 400
THOUGHTS = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
OBJECT = re.compile(r"\{[^{}]*\}")
TRIED = 16  # replies after which a model that wrote no question is given up
LONGEST = 2000  # characters of a question or an answer
MALFORMED = "no question and answer in the model's reply"
REFUSED = "the model refused the passage"


class Replies:
    """A chat model's replies, kept as they come: after a kill, nothing that was answered is asked twice."""

    def __init__(self, model: Endpoint, path: Path) -> None:
        self.model, self.path = model, path
        append(path, b"")  # whose writer may have been killed in the middle of a line
        rows = (row for _, row in json_lines(path, []) if isinstance(row, dict))
        self.known = {row.get("key"): str(row.get("reply")) for row in rows}
        self.useless = list[bool]()

    async def reply(self, prompt: str) -> str:
        asked = json.dumps([self.model.model, self.model.instruction, REPLY_TOKENS, prompt])
        key = hashlib.sha256(asked.encode()).hexdigest()
        if key not in self.known:
            reply = encodable(await self.model.reply(prompt))
            append(self.path, (json.dumps({"key": key, "reply": reply}, ensure_ascii=False) + "\n").encode())
            self.known[key] = reply
        return self.known[key]

    def judge(self, reply: str, *, useless: bool) -> None:
        """Give the model up if none of its first replies was of use."""
        self.useless.append(useless)
        if len(self.useless) >= TRIED and all(self.useless):
            raise UserError(
                f"--make-questions {self.model.model}: none of its first {TRIED} replies is what it was asked for "
                f"(the last: {reply[:60]!r}); give a larger model, or leave --make-questions out"
            )


class ChatWriter:
    """Makes a question for each passage."""

    def __init__(self, model: Endpoint, path: Path) -> None:
        self.replies = Replies(model, path)

    async def __call__(self, passages: Sequence[Chunk]) -> list[Candidate]:
        made = await all_of(map(self._made, passages))
        if not self.replies.known:
            raise UserError(
                f"--make-questions {self.replies.model.model} refused all of the first {len(made)} passages "
                f"({made[0].answer}); give a model that takes them, or --chunk-tokens for shorter ones"
            )
        return made

    async def _made(self, passage: Chunk) -> Candidate:
        try:
            reply = await self.replies.reply(encodable(titled(passage.title, passage.text.strip())))
        except RefusedError as error:
            return Candidate("model", passage, "", str(error), REFUSED)
        made = candidate_of(passage, reply)
        self.replies.judge(made.answer, useless=bool(made.fault))
        return made


def candidate_of(passage: Chunk, reply: str) -> Candidate:
    question, answer = texts_in(reply, "question", "answer") or ("", "")
    if question:
        return Candidate("model", passage, question, answer)
    return Candidate("model", passage, "", " ".join(reply.split())[:200], MALFORMED)


def texts_in(reply: str, *names: str) -> list[str]:
    """The texts that the first JSON object has under the names, if each has a word in it; else none."""
    for found in OBJECT.findall(THOUGHTS.sub("", reply)):
        try:
            value = json.loads(found)
        except (ValueError, RecursionError):
            continue
        texts = [" ".join(encodable(str(value.get(name, ""))).split()) for name in names]
        if all(re.search(r"\w", text) and len(text) <= LONGEST for text in texts):
            return texts
    return []


def described(mentions: Sequence[Mention], options: MakingOptions, folder: Path) -> Describe:
    """How a chat model describes what each mention names, but where that gives the name away."""
    url, name = options.make_questions_url, options.make_questions

    async def ask() -> list[str]:
        with Counting("describing names", len(mentions)) as bar:
            async with Endpoint(url, name, DESCRIBE, REPLY_TOKENS, URL) as model:
                replies = Replies(model, folder / ASKED)

                async def describe(mention: Mention) -> str:
                    named, passage = " ".join(mention.name), mention.chunk
                    prompt = f"Name: {named}\nTitle: {passage.title}\n\n{passage.text}"
                    bar.update(1)
                    try:
                        reply = await replies.reply(encodable(prompt))
                    except RefusedError as error:
                        replies.judge(str(error), useless=True)
                        return ""
                    said = texts_in(reply, "description")
                    replies.judge(reply, useless=not said)
                    return "".join(said).rstrip(".").replace(": ", ", ")  # a colon ends a description

                return await all_of(map(describe, mentions))

    texts = zip(mentions, asyncio.run(ask()), strict=True)
    fit = {mention: text for mention, text in texts if not gives_away(text, mention)}
    return lambda mention, question: fit.get(mention, "")


def gives_away(description: str, mention: Mention) -> bool:
    words = words_of(description)
    return says(words, mention.name) or any(len(word) >= SHORTEST and akin(word, mention.names) for word in words)
