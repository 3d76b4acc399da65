"""Splits: the training questions of a data folder, none of which may be held out as well."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from forage.data.records import Question, read_questions
from forage.data.relevance import question_key
from forage.errors import UserError

T = TypeVar("T")
Splits = Mapping[str, Mapping[str, Question]]  # by split, train or eval, and id


def read_splits(data: Path) -> Splits:
    """The questions of both splits that some chunk answers; nothing is held out where there is no eval.jsonl."""
    split = {"train": read_train(data), "eval": read_held_out(data)}
    questions = {name: {q.id: q for q in of if q.relevant_chunk_ids} for name, of in split.items()}
    if not questions["train"]:
        raise UserError(f"{data}/train.jsonl has no question that a chunk of the store answers; make the data again")
    return questions


def read_training_questions(data: Path) -> list[Question]:
    """The questions of train.jsonl that some chunk answers."""
    return [*read_splits(data)["train"].values()]


def draw_questions(data: Path, count: int, seed: int) -> list[Question]:
    """At most `count` of them, at random."""
    questions = read_training_questions(data)
    return random.Random(seed).sample(questions, min(count, len(questions)))


def read_train(data: Path) -> list[Question]:
    """All questions of train.jsonl; refuses a folder that holds one of them out, by its id or its words: a policy would
    be evaluated on what it learnt."""
    train = read_questions(data / "train.jsonl")
    if both := shared(train, read_held_out(data)):
        raise UserError(
            f"{data}: {len(both)} questions of train.jsonl are in eval.jsonl too, such as {both[0].id} "
            f"({both[0].question[:80]!r}); make the data again with data_prep.py, or delete those lines of train.jsonl"
        )
    return train


def read_held_out(data: Path) -> list[Question]:
    """The questions of eval.jsonl, if there is one."""
    path = data / "eval.jsonl"
    return read_questions(path) if path.is_file() else []


def shared(train: Sequence[Question], held_out: Sequence[Question]) -> list[Question]:
    """The training questions that are held out under the same id or in the same words, whatever their case."""
    ids = {question.id for question in held_out}
    keys = {question_key(question.question) for question in held_out} - {""}
    return [question for question in train if question.id in ids or question_key(question.question) in keys]


def unshared(train: Sequence[Question], held_out: Sequence[Question]) -> list[Question]:
    """The other training questions."""
    both = {question.id for question in shared(train, held_out)}
    return [question for question in train if question.id not in both]


def drop_questions(folder: Path) -> None:
    """Remove the questions of a data folder whose store is about to change.

    Were they left and the new ones never written, as after a kill or an error, runs would learn from the new store
    with answers in chunks of the old one.
    """
    for name in ("train.jsonl", "eval.jsonl", "qrels/train.tsv", "qrels/eval.tsv", "questions_left_out.jsonl"):
        for path in (folder / name, *folder.glob(f"second_hop_*/{name}")):
            path.unlink(missing_ok=True)


def in_rounds(items: Sequence[T], step: int, count: int, seed: int) -> list[T]:
    """The `count` items of a step. Each round goes through all items in its own order, which depends on the seed alone.

    Example: with 5 items, 3 per step, step 0 has the first three of round 0, step 1 its last two and one of round 1.
    """
    orders: dict[int, list[int]] = {}
    chosen = []
    for place in range(step * count, (step + 1) * count):
        turn, number = divmod(place, len(items))
        if turn not in orders:
            orders[turn] = list(range(len(items)))
            random.Random(f"{seed}/{turn}").shuffle(orders[turn])
        chosen.append(items[orders[turn][number]])
    return chosen
