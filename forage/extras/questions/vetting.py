"""Vetting: which candidates are questions worth learning from, and why the others are not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from forage.data.chunking import Chunk
from forage.data.relevance import question_key, relevant_chunks, shared_share, trigrams
from forage.store.bm25 import Tokenizer
from forage.store.document_store import DocumentStore
from forage.store.manifest import NO_EMBEDDER
from forage.store.options import Mode

NOT_IN_PASSAGE = "the answer is not in the passage"
GIVEN_AWAY = "the title or the question gives the answer away"
DUPLICATE = "asked before"
NOT_FOUND = "a search with it does not find its passage"
# An answer is told if more than this share of its telling words is.
TOLD = 0.5
# At least this share of an answer's word triples is in its passage, as elsewhere (forage/data/relevance.py).
IN_PASSAGE = 0.5


@dataclass(frozen=True, slots=True)
class Candidate:
    """A question made for a passage."""

    kind: Literal["title", "model"]
    passage: Chunk
    question: str
    answer: str
    fault: str = ""
    """Why it is dropped; empty if it is kept."""
    rank: int = 0
    """The rank at which a search with the question finds its passage."""


@dataclass
class Vetter:
    """Judges candidates in their order; a question is asked once."""

    store: DocumentStore
    k: int
    asked: set[str] = field(default_factory=set)

    def judged(self, candidates: Sequence[Candidate]) -> Iterator[Candidate]:
        """Each candidate, with its fault or the rank of its passage."""
        mode: Mode = "sparse" if self.store.options.embedder == NO_EMBEDDER else "hybrid"
        hits = self.store.search([candidate.question for candidate in candidates], self.k, mode)
        for candidate, found in zip(candidates, hits, strict=True):
            key = question_key(candidate.question)
            reason = fault(candidate) or (DUPLICATE if key in self.asked else "")
            rank = 0 if reason else self._rank(candidate, [hit.chunk_id for hit in found])
            if rank:
                self.asked.add(key)
            yield replace(candidate, fault=reason or ("" if rank else NOT_FOUND), rank=rank)

    def _rank(self, candidate: Candidate, ids: Sequence[str]) -> int:
        """The first rank of the passage, or of a neighbour that shares the answer; 0 if none is there."""
        here, chunks = candidate.passage, self.store.chunk_by_id
        beside = [chunks[chunk_id] for chunk_id in (here.previous, here.next) if chunk_id]
        wanted = {here.id, *relevant_chunks(candidate.answer, beside)}
        return next((rank for rank, chunk_id in enumerate(ids, 1) if chunk_id in wanted), 0)


def fault(candidate: Candidate) -> str:
    """Why a candidate is dropped whatever else is asked and stored; empty if it isn't."""
    if candidate.fault:
        return candidate.fault
    if shared_share(trigrams(candidate.answer), trigrams(candidate.passage.text)) < IN_PASSAGE:
        return NOT_IN_PASSAGE
    told = max(told_share(candidate.answer, text) for text in (candidate.passage.title, candidate.question))
    return GIVEN_AWAY if told > TOLD else ""


def told_share(answer: str, text: str) -> float:
    """The share of the answer's telling words that the text has; an answer without any is told by everything."""
    words = set(Tokenizer()(answer))
    return len(words & set(Tokenizer()(text))) / len(words) if words else 1.0
