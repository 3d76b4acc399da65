"""Vetting: which candidates are questions worth learning from, and why the others are not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from forage.data.chunking import Chunk
from forage.data.relevance import question_key, relevant_chunks, shared_share, trigrams
from forage.questions.candidates import Candidate, Dropped, Kept
from forage.store.bm25 import Tokenizer
from forage.store.document_store import DocumentStore
from forage.store.options import Mode

NOT_IN_PASSAGE = "the answer is not in the passage"
GIVEN_AWAY = "the question gives the answer away"
BY_TITLE = "the title alone answers it"
DUPLICATE = "asked before"
# An answer is told if more than this share of its telling words is.
TOLD = 0.5
# At least this share of a longer answer's word triples is in its passage, as elsewhere (forage/data/relevance.py).
IN_PASSAGE = 0.5


def not_found(k: int) -> str:
    return f"a search with it does not find its passage among {k}"


@dataclass
class Vetter:
    """Judges candidates in their order; a question is asked once."""

    store: DocumentStore
    mode: Mode
    k: int

    def __post_init__(self) -> None:
        self.asked: set[str] = set()
        self.chunks_of: dict[str, list[Chunk]] = {}
        for chunk in self.store.chunks:
            self.chunks_of.setdefault(chunk.doc_id, []).append(chunk)

    def judged(self, candidates: Sequence[Candidate]) -> Iterator[Kept | Dropped]:
        """One judgement for each candidate."""
        hits = self.store.search([candidate.question for candidate in candidates], self.k, self.mode)
        for candidate, found in zip(candidates, hits, strict=True):
            ids = [hit.chunk_id for hit in found]
            key = question_key(candidate.question)
            reason = fault(candidate) or (DUPLICATE if key in self.asked else "")
            rank = 0 if reason else self._rank(candidate, ids)
            if reason or not rank:
                yield dropped(candidate, reason or not_found(self.k))
            else:
                self.asked.add(key)
                yield Kept(candidate, rank)

    def _rank(self, candidate: Candidate, ids: Sequence[str]) -> int:
        """The first rank of the passage, or of a neighbour that shares the answer; 0 if none is there."""
        here = candidate.passage
        beside = self.chunks_of[here.doc_id][max(0, here.index - 1) : here.index + 2]
        wanted = {here.id, *relevant_chunks(candidate.answer, beside)}
        return next((rank for rank, chunk_id in enumerate(ids, 1) if chunk_id in wanted), 0)


def fault(candidate: Candidate) -> str:
    """Why a candidate is dropped whatever else is asked and stored; empty if it isn't."""
    if not is_in_passage(candidate):
        return NOT_IN_PASSAGE
    short = candidate.term or candidate.answer
    if told_share(short, candidate.passage.title) > TOLD:
        return BY_TITLE
    return GIVEN_AWAY if told_share(short, candidate.question) > TOLD else ""


def is_in_passage(candidate: Candidate) -> bool:
    """Whether the passage says the answer: its short form word by word, and most of its whole form."""
    text = words_between(candidate.passage.text)
    if candidate.term and words_between(candidate.term) not in text:
        return False
    return shared_share(trigrams(candidate.answer), trigrams(candidate.passage.text)) >= IN_PASSAGE


def words_between(text: str) -> str:
    """The words in lower case with a blank on each side, so that a run of words is a part of the text."""
    return f" {question_key(text)} "


def told_share(answer: str, text: str) -> float:
    """The share of the answer's telling words that the text has; an answer without any is told by everything."""
    words = set(Tokenizer()(answer))
    return len(words & set(Tokenizer()(text))) / len(words) if words else 1.0


def dropped(candidate: Candidate, reason: str) -> Dropped:
    return Dropped(reason, candidate.kind, candidate.passage, candidate.question, candidate.answer)
