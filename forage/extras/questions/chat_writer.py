"""Questions written by a chat model: each passage is asked about once, and the reply kept on disk as it comes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

from forage.data.chunking import Chunk
from forage.engines.chat_endpoint import Endpoint, RefusedError, all_of
from forage.errors import UserError
from forage.extras.questions.vetting import Candidate
from forage.files import append, json_lines
from forage.text import encodable, titled

INSTRUCTION = (
    "You write questions for a search engine's users. Read the passage and write one question that it answers, as "
    "somebody would ask who has not seen the passage: name what it is about, and never say 'the passage'. Then give "
    "the answer in the words of the passage, in one sentence. The question must not contain the answer. Reply "
    'with JSON and nothing else: {"question": "...", "answer": "..."}'
)
REPLY_TOKENS = 400
THOUGHTS = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
OBJECT = re.compile(r"\{[^{}]*\}")
TRIED = 16  # replies after which a model that wrote no question is given up
LONGEST = 2000  # characters of a question or an answer
MALFORMED = "no question and answer in the model's reply"
REFUSED = "the model refused the passage"


class ChatWriter:
    """Makes a question for each passage. After a kill, no passage that was answered is asked about twice."""

    def __init__(self, model: Endpoint, path: Path) -> None:
        self.model, self.path = model, path
        append(path, b"")  # whose writer may have been killed in the middle of a line
        rows = (row for _, row in json_lines(path, []) if isinstance(row, dict))
        self.replies = {row.get("key"): str(row.get("reply")) for row in rows}
        self.faults = list[str]()

    async def __call__(self, passages: Sequence[Chunk]) -> list[Candidate]:
        made = await all_of(map(self._made, passages))
        if not self.replies:
            raise UserError(
                f"--make-questions {self.model.model} refused all of the first {len(made)} passages "
                f"({made[0].answer}); give a model that takes them, or --chunk-tokens for shorter ones"
            )
        return made

    async def _made(self, passage: Chunk) -> Candidate:
        prompt = encodable(titled(passage.title, passage.text.strip()))
        asked = json.dumps([self.model.model, INSTRUCTION, REPLY_TOKENS, prompt])
        key = hashlib.sha256(asked.encode()).hexdigest()
        if key not in self.replies:
            try:
                reply = encodable(await self.model.reply(prompt))
            except RefusedError as error:
                return Candidate("model", passage, "", str(error), REFUSED)
            append(self.path, (json.dumps({"key": key, "reply": reply}, ensure_ascii=False) + "\n").encode())
            self.replies[key] = reply
        made = candidate_of(passage, self.replies[key])
        self.faults.append(made.fault)
        if len(self.faults) >= TRIED and all(self.faults):
            raise UserError(
                f"--make-questions {self.model.model}: none of its first {TRIED} replies has a question and an answer "
                f"(the last: {made.answer[:60]!r}); give a larger model, or leave --make-questions out"
            )
        return made


def candidate_of(passage: Chunk, reply: str) -> Candidate:
    """By the first JSON object with a question and an answer, each a text with a word in it."""
    for found in OBJECT.findall(THOUGHTS.sub("", reply)):
        try:
            value = json.loads(found)
        except (ValueError, RecursionError):
            continue
        question, answer = (" ".join(encodable(str(value.get(name, ""))).split()) for name in ("question", "answer"))
        if all(re.search(r"\w", text) and len(text) <= LONGEST for text in (question, answer)):
            return Candidate("model", passage, question, answer)
    return Candidate("model", passage, "", " ".join(reply.split())[:200], MALFORMED)
