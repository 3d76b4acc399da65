"""What a chat model is asked about a passage, what its reply says, and the file that keeps replies as they come."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from forage.data.chunking import Chunk
from forage.errors import UserError
from forage.files import json_lines
from forage.text import encodable, titled

INSTRUCTION = (
    "You write questions for a search engine's users. Read the passage and write one question that it answers, as "
    "somebody would ask who has not seen the passage: name what it is about, and never say 'the passage'. Then give "
    "the answer in the words of the passage, in one sentence. The question must not contain the answer. Reply "
    'with JSON and nothing else: {"question": "...", "answer": "..."}'
)
REPLY_TOKENS = 400
LONGEST_QUESTION, LONGEST_ANSWER = 400, 2000  # characters
THOUGHTS = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
LABELLED = re.compile(
    r"^[^\w\n]{0,9}question[^\w\n]{0,9}:\s*(.+?)^[^\w\n]{0,9}answer[^\w\n]{0,9}:\s*(.+)",
    re.DOTALL | re.MULTILINE | re.IGNORECASE,
)
MOST_BRACES, MOST_CHARACTERS = 20, 20_000  # looked at in a reply


@dataclass(frozen=True, slots=True)
class Written:
    """The question and the answer in a reply."""

    question: str
    answer: str


def prompt_of(passage: Chunk) -> str:
    return titled(passage.title, passage.text.strip())


def read_reply(reply: str) -> Written | None:
    """The first JSON object with a question and an answer, else lines "Question: ..." and "Answer: ..."; else None."""
    text = THOUGHTS.sub("", reply)[:MOST_CHARACTERS]
    for brace in list(re.finditer(r"\{", text))[:MOST_BRACES]:
        try:
            value, _ = json.JSONDecoder().raw_decode(text, brace.start())
        except (ValueError, RecursionError):
            continue
        if written := _written(value.get("question"), value.get("answer")):
            return written
    labelled = LABELLED.search(text)
    return _written(labelled[1], labelled[2]) if labelled else None


def _written(question: Any, answer: Any) -> Written | None:
    if not isinstance(question, str) or not isinstance(answer, str | int | float):
        return None
    question, answer = (" ".join(encodable(str(text)).split()) for text in (question, answer))
    fits = 0 < len(question) <= LONGEST_QUESTION and 0 < len(answer) <= LONGEST_ANSWER
    return Written(question, answer) if fits and re.search(r"\w", question) and re.search(r"\w", answer) else None


class ReplyFile:
    """Replies on disk, one line each, written as they come: after a kill, no passage is asked about twice."""

    def __init__(self, path: Path, model: str) -> None:
        self.path, self.model = path, model
        self.replies: dict[str, str] = {}
        if path.exists():
            _cut_torn_line(path)
            for number, row in json_lines(path):
                if not isinstance(row, dict) or not all(isinstance(row.get(name), str) for name in ("key", "reply")):
                    raise UserError(f"{path}:{number}: not a reply of a model; delete that line, or the file")
                self.replies[row["key"]] = row["reply"]
        self._file: BinaryIO | None = None

    def key(self, prompt: str) -> str:
        """The same passage, asked about in the same words with the same model, has the same key."""
        parts = json.dumps([self.model, INSTRUCTION, REPLY_TOKENS, prompt])
        return hashlib.sha256(parts.encode()).hexdigest()

    def get(self, prompt: str) -> str | None:
        return self.replies.get(self.key(prompt))

    def put(self, prompt: str, reply: str) -> None:
        if self._file is None:
            self._file = self.path.open("ab", buffering=0)
        key, reply = self.key(prompt), encodable(reply)
        self._file.write((json.dumps({"key": key, "reply": reply}, ensure_ascii=False) + "\n").encode())
        self.replies[key] = reply

    def close(self) -> None:
        if self._file:
            os.fsync(self._file.fileno())
            self._file.close()


def _cut_torn_line(path: Path) -> None:
    """Drop the last line if its writer was killed in the middle of it."""
    with path.open("rb+") as file:
        body = file.read()
        file.truncate(body.rfind(b"\n") + 1)
