"""Relevance: which chunks answer a question, and a train/eval split that shares no document."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from forage.data.chunking import Chunk
from forage.data.qa_rows import QARow
from forage.data.records import Question, clean
from forage.metrics import grouped
from forage.progress import counted
from forage.text import words_of

# Share of the shorter text's word triples: a chunk may contain a short answer, a long answer may span many chunks.
RELEVANT = 0.5

Trigrams = frozenset[tuple[str, ...]]
Placed = tuple[QARow, str, Sequence[str]]  # a row, and the ids of the document and of the chunks that answer it


def trigrams(text: str) -> Trigrams:
    """All runs of three words; a shorter text is one run.

    Example: "Rest, and drink water." -> (rest, and, drink), (and, drink, water).
    """
    words = words_of(text)
    if len(words) < 3:
        return frozenset([tuple(words)] if words else [])
    return frozenset(zip(words, words[1:], words[2:], strict=False))


def shared_share(part: Trigrams, whole: Trigrams) -> float:
    """The share of `part` that is in `whole`; 0 for an empty part."""
    return len(part & whole) / len(part) if part else 0.0


def relevant_chunks(answer: str, chunks: Sequence[Chunk]) -> list[str]:
    """Ids of the chunks that contain the answer or part of it: at least half the shorter one's triples are shared."""
    wanted = trigrams(answer)
    found = []
    for chunk in chunks:
        held = trigrams(chunk.text)
        shorter, longer = sorted((wanted, held), key=len)
        if shared_share(shorter, longer) >= RELEVANT:
            found.append(chunk.id)
    return found


def make_questions(
    rows: Sequence[QARow], doc_of_row: Sequence[str], chunks: Sequence[Chunk]
) -> tuple[list[Question], Counter[str]]:
    """Questions with the ids of what answers them, and the number of rows left out, by cause.

    Rows that ask the same are merged into one question, which any of their documents answers. The first row gives the
    id, answer, type and focus.
    """
    chunks_of = by_document(chunks)
    placed, left_out = list[Placed](), Counter[str]()
    for row, doc_id in zip(counted("placing questions", rows), doc_of_row, strict=True):
        relevant = relevant_chunks(row.answer, chunks_of.get(doc_id, [])) if row.question and row.answer else []
        if relevant:
            placed.append((row, doc_id, relevant))
        else:
            left_out[_why_unused(row)] += 1
    questions = merged(placed)
    left_out["same question, merged"] = len(placed) - len(questions)
    return questions, +left_out


def by_document(chunks: Iterable[Chunk]) -> dict[str, list[Chunk]]:
    return grouped((chunk.doc_id, chunk) for chunk in chunks)


def merged(placed: Iterable[Placed]) -> list[Question]:
    """One question of the rows that ask the same: what answers any of them answers it; the rest is the first row's."""
    questions = []
    for same in grouped((question_key(each[0].question), each) for each in placed).values():
        first = same[0][0]
        docs = tuple(dict.fromkeys(doc_id for _, doc_id, _ in same))
        found = tuple(dict.fromkeys(chunk_id for _, _, relevant in same for chunk_id in relevant))
        questions.append(Question(first.id, first.question, clean(first.answer), first.type, first.focus, docs, found))
    return questions


def question_key(question: str) -> str:
    """The question's words without case or punctuation, so that two spellings of one question are equal."""
    return " ".join(words_of(question))


def split_by_document(
    questions: Sequence[Question], eval_share: float, seed: int, links: Iterable[tuple[str, str]] = ()
) -> tuple[list[Question], list[Question]]:
    """(train, eval), such that no document answers questions of both.

    Documents that share a question form a group, also if it is asked twice in other spellings. Groups are ordered by a
    hash of the seed and their first document's id, and the first `eval_share` of them are held out. So the split is
    reproducible, and adding documents moves only groups near the boundary.

    `links` are documents that had better stay on one side: then the group comes next that has the most links to what is
    held out already, less those to the others, so that few links are cut.
    """
    leader = _groups(questions)
    groups = sorted(set(leader.values()), key=lambda doc_id: hashlib.sha256(f"{seed}:{doc_id}".encode()).digest())
    linked: dict[str, Counter[str]] = defaultdict(Counter)
    for ends in links:
        one, other = (leader.setdefault(doc_id, doc_id) for doc_id in ends)
        if one != other:
            linked[one][other] += 1
            linked[other][one] += 1
    order = {group: place for place, group in enumerate(groups)}
    held, near, left = set[str](), Counter[str](), min(len(groups), max(1, round(eval_share * len(groups))))
    while left > 0:
        # A document without a question only comes along.
        candidates = [group for group in near if group not in held] or [next(g for g in groups if g not in held)]
        best = max(candidates, key=lambda g: (2 * near[g] - linked[g].total(), -order.get(g, len(order))))
        held.add(best)
        near += linked[best]
        left -= best in order
    sides: tuple[list[Question], list[Question]] = [], []
    for question in questions:
        sides[leader[question.relevant_doc_ids[0]] in held].append(question)
    return sides


def _groups(questions: Sequence[Question]) -> dict[str, str]:
    """The first document of each document's group; documents that answer one question are in one group.

    Two questions in the same words are one.
    """
    leader: dict[str, str] = {}

    def find(doc_id: str) -> str:
        while leader.setdefault(doc_id, doc_id) != doc_id:
            leader[doc_id] = leader[leader[doc_id]]
            doc_id = leader[doc_id]
        return doc_id

    asked: dict[str, str] = {}  # a document of each question, by its key
    for question in questions:
        first, *others = map(find, question.relevant_doc_ids)
        key = question_key(question.question) or question.id  # without a word, nothing tells that two are the same
        for other in (*others, asked.setdefault(key, first)):
            low, high = sorted((find(first), find(other)))
            leader[high] = low
    return {doc_id: find(doc_id) for doc_id in list(leader)}


def _why_unused(row: QARow) -> str:
    return "no question" if not row.question else "no answer" if not row.answer else "answer in no document"
