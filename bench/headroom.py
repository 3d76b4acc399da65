"""Headroom: how much more a better query could find than the raw question, measured before a policy is trained.

    python -m bench.headroom --data runs/medquad/data --mode sparse

Prints the MRR of searches for training questions: for the question itself; for the question and the first words of a
random answer of its type, which a policy can say from the start; and for the question and the first words of its own
answer, which a policy can only guess.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from forage.agent.agent import searched_for
from forage.agent.options import SearchOptions
from forage.agent.searcher import searching
from forage.arguments import run_script
from forage.data.records import read_answerable
from forage.evaluation.measures import grades_of, retrieval_measures
from forage.metrics import bootstrapped, span
from forage.store.opening import open_store
from forage.text import first_words


@dataclass(frozen=True)
class Options:
    """The measurement."""

    data: Path = Path("data")
    """Folder that data_prep.py wrote."""
    questions: int = 800
    """Number of training questions, drawn by --seed."""
    words: int = 8
    """Words of an answer's beginning."""
    search: SearchOptions = field(default_factory=lambda: SearchOptions(question_weight=1))
    seed: int = 1
    """Seed of the choice of questions and of random answers."""


def main(options: Options) -> None:
    questions = read_answerable(options.data / "train.jsonl")
    draw = random.Random(options.seed)
    chosen = draw.sample(questions, min(options.questions, len(questions)))
    of_type = defaultdict(list)
    for question in questions:
        of_type[question.question_type].append(question)
    settings = options.search.settle()
    search = searching(open_store(options.data / "store"), settings)
    guesses = {
        "the question": [""] * len(chosen),
        f"and {options.words} words of an answer of its type": [
            first_words(draw.choice(of_type[q.question_type]).answer, options.words) for q in chosen
        ],
        f"and {options.words} words of its answer": [first_words(q.answer, options.words) for q in chosen],
    }
    for name, several in guesses.items():
        queries = [searched_for(q, guess, settings.question_weight) for q, guess in zip(chosen, several, strict=True)]
        ranked = [[hit.chunk_id for hit in hits] for hits in search(queries)]
        found = bootstrapped(retrieval_measures(ranked, grades_of(chosen), ())["mrr"].tolist())
        print(f"{name:40} MRR@{settings.k} {found['mean']:.3f} ({span(found)})", flush=True)


if __name__ == "__main__":
    run_script(main, __doc__)
