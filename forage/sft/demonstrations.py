"""Demonstrations: the episodes that the warm start imitates, by the teacher or from files."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from forage.agent.episode import Episode, read_episodes, write_episodes
from forage.agent.vetting import Vetting
from forage.data.records import Question
from forage.data.splits import read_training_questions
from forage.errors import UserError
from forage.sft.options import SFTOptions
from forage.sft.player import Player
from forage.sft.teacher import Guess, TeacherOptions, demonstrate
from forage.sft.telling_words import draw_words, telling_words


def get_demonstrations(options: SFTOptions, player: Player) -> list[Episode]:
    """Load the demonstrations of an interrupted run, or make and save new ones."""
    path = options.output_dir / "demonstrations.jsonl"
    if not path.exists():
        write_episodes(path, make_demonstrations(options, player))
    demonstrations = list(read_episodes(path))
    vetting_of(options, player).check(path, demonstrations)
    if len(demonstrations) < 2:
        raise UserError(f"{len(demonstrations)} demonstrations are too few to train on and to measure by")
    return demonstrations


def make_demonstrations(options: SFTOptions, player: Player) -> list[Episode]:
    questions = read_training_questions(options.data)
    vetting = vetting_of(options, player)  # before anything is played: a file may be refused
    from_files = [episode for path in options.demonstrations for episode in vetting.read(path)]
    chosen = random.Random(options.seed).sample(questions, min(options.num_demonstrations, len(questions)))
    guess = make_guess(options.teacher, questions)
    taught = asyncio.run(
        demonstrate(chosen, player.search, player.protocol, player.settings, options.teacher, options.seed, guess)
    )
    print(f"{len(taught)} demonstrations by the teacher for {len(chosen)} questions")
    return [*taught, *from_files]


def vetting_of(options: SFTOptions, player: Player) -> Vetting:
    return Vetting.over(options.data, player.protocol, player.settings)


def make_guess(teacher: TeacherOptions, questions: Sequence[Question]) -> Guess | None:
    """What the teacher guesses; None if it guesses each answer's own beginning."""
    if teacher.guess == "own" or not teacher.guess_words:
        return None
    telling = telling_words(questions)
    return lambda question, choose: draw_words(question, telling[question.question_type], teacher.guess_words, choose)
