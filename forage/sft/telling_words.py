"""Telling words: what a passage says that answers one type of question, and hardly any other passage."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from forage.data.records import Question
from forage.text import IDLE, folded, spoken_words

LEAST_ANSWERS = 3  # a word of fewer answers says more of a subject than of a type


def words_of(text: str) -> list[str]:
    """Example: "It's Gout: rest" gives "it's", "gout", "rest"."""
    return spoken_words(folded(text))


def answer_words(question: Question) -> set[str]:
    """The words of the answer that the question does not have and that are not idle."""
    return set(words_of(question.answer)) - set(words_of(question.question)) - IDLE


def telling_words(questions: Iterable[Question]) -> dict[str, dict[str, float]]:
    """By question type, how telling each word is: its share of the type's answers times the log of how much larger
    that is than its share of all answers.

    Example: in 8 of 10 "prevention" answers and in 10 of all 100, "avoid" has .8 * log(.8 / .1) = 1.66. Words that are
    no commoner in the type, or in fewer than LEAST_ANSWERS of its answers, are left out.
    """
    of_type: dict[str, Counter[str]] = defaultdict(Counter)
    of_all, answers = Counter[str](), Counter[str]()
    for question in questions:
        words = answer_words(question)
        of_type[question.question_type].update(words)
        of_all.update(words)
        answers[question.question_type] += 1
    every = answers.total()
    return {
        kind: {
            word: count / answers[kind] * math.log(count / answers[kind] / (of_all[word] / every))
            for word, count in counts.items()
            if count >= LEAST_ANSWERS and count * every > of_all[word] * answers[kind]
        }
        for kind, counts in of_type.items()
    }


def draw_words(question: Question, telling: Mapping[str, float], count: int, choose: random.Random) -> str:
    """At most `count` telling words of this answer, drawn by how telling they are, the most telling first.

    Drawn and not just the best: a policy that imitates them learns the vocabulary, and what to try. In order: in a
    random one each word would be as likely as the first after any other, and the likeliest would be said again and
    again by a policy that takes the likeliest.
    """
    known = {word: telling[word] for word in sorted(answer_words(question)) if word in telling}
    drawn = sorted(known, key=lambda word: choose.random() ** (1 / known[word]), reverse=True)[:count]
    return " ".join(sorted(drawn, key=lambda word: -known[word]))
