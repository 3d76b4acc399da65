"""Demonstrations: the episodes that the warm start imitates, by the teacher or from files.

Telling words, which the teacher guesses, are what the answers to one type of question say, and hardly any others.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from forage.agent.episode import Episode, read_episodes, write_episodes
from forage.agent.options import AgentSettings
from forage.agent.protocol import Protocol
from forage.agent.searcher import searching
from forage.agent.vetting import Vetting
from forage.data.records import Question
from forage.data.splits import read_training_questions
from forage.errors import UserError
from forage.sft.options import SFTOptions
from forage.sft.teacher import Guess, TeacherOptions, causes_of, demonstrate
from forage.store.opening import open_address
from forage.text import IDLE, folded, spoken_words


def get_demonstrations(options: SFTOptions, protocol: Protocol, settings: AgentSettings) -> list[Episode]:
    """Load the demonstrations of an interrupted run, or make and save new ones."""
    path, vetting = options.output_dir / "demonstrations.jsonl", Vetting.over(options.data, protocol, settings)
    if not path.exists():  # files first: one may be refused
        given = [episode for file in options.demonstrations for episode in vetting.read(file)]
        write_episodes(path, [*play_demonstrations(options, protocol, settings), *given])
    demonstrations = list(read_episodes(path))
    vetting.check(path, demonstrations)
    if len(demonstrations) < 2:
        raise UserError(f"{len(demonstrations)} demonstrations are too few to train on and to measure by")
    return demonstrations


def play_demonstrations(options: SFTOptions, protocol: Protocol, settings: AgentSettings) -> list[Episode]:
    """The teacher's."""
    questions = read_training_questions(options.data)
    chosen = random.Random(options.seed).sample(questions, min(options.num_demonstrations, len(questions)))
    search, guess = (
        searching(open_address(options.address, options.data), settings),
        make_guess(options.teacher, questions),
    )
    print(f"the teacher searches for {len(chosen)} questions", flush=True)
    taught, without = asyncio.run(demonstrate(chosen, search, protocol, settings, options.teacher, options.seed, guess))
    print(f"{len(taught)} demonstrations by the teacher for {len(chosen)} questions{causes_of(without)}")
    return taught


def make_guess(teacher: TeacherOptions, questions: Sequence[Question]) -> Guess | None:
    """What the teacher guesses, if it does."""
    if not teacher.guess_words:
        return None
    telling = telling_words(questions)
    return lambda question, choose: draw_words(question, telling[question.question_type], teacher.guess_words, choose)


# Telling words


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
