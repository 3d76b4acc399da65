"""Questions written by a chat model: each passage is asked about once, and the reply kept on disk."""

from __future__ import annotations

from collections.abc import Sequence

from forage.data.chunking import Chunk, sentence_spans
from forage.engines.chat_endpoint import Endpoint, RefusedError, all_of
from forage.errors import UserError
from forage.questions.candidates import Candidate, Dropped
from forage.questions.replies import ReplyFile, prompt_of, read_reply
from forage.questions.vetting import words_between
from forage.text import encodable

MALFORMED = "no question and answer in the model's reply"
REFUSED = "the model refused the passage"
SHORT = 3  # words up to which an answer is a term, completed by its sentence


class ChatWriter:
    """Makes a question for each passage."""

    def __init__(self, model: Endpoint, replies: ReplyFile) -> None:
        self.model, self.replies = model, replies

    async def made(self, passages: Sequence[Chunk]) -> list[Candidate | Dropped]:
        made = await all_of(self._made(passage) for passage in passages)
        if made and not self.replies.replies:
            said = next(one.answer for one in made if isinstance(one, Dropped))
            raise UserError(
                f"--make-questions {self.replies.model} refused all of the first {len(made)} passages ({said}); give a "
                "model that takes them, or --chunk-tokens for shorter ones"
            )
        return made

    async def _made(self, passage: Chunk) -> Candidate | Dropped:
        prompt = encodable(prompt_of(passage))
        reply = self.replies.get(prompt)
        if reply is None:
            try:
                reply = await self.model.reply(prompt)
            except RefusedError as error:
                return Dropped(REFUSED, "model", passage, "", str(error))
            self.replies.put(prompt, reply)
        return candidate_of(passage, reply)


def candidate_of(passage: Chunk, reply: str) -> Candidate | Dropped:
    written = read_reply(reply)
    if written is None:
        return Dropped(MALFORMED, "model", passage, "", " ".join(reply.split())[:200])
    if len(words_between(written.answer).split()) > SHORT:
        return Candidate("model", passage, written.question, written.answer)
    return Candidate("model", passage, written.question, completed(written.answer, passage.text), written.answer)


def completed(term: str, text: str) -> str:
    """A short answer with the sentence that says it. Example: ("ice", "Heat harms. Ice helps.") gives "ice: Ice helps."

    Where no sentence does, the term alone, which the vetting will drop.
    """
    sentences = (" ".join(text[start:end].split()) for start, end in sentence_spans(text))
    said = next((sentence for sentence in sentences if words_between(term) in words_between(sentence)), "")
    return f"{term}: {said}" if said else term
