"""Demonstrations: the episodes that the warm start imitates, by the teacher, by the policy itself, or from files."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from forage.agent.episode import Episode, read_episodes, write_episodes
from forage.agent.vetting import Vetting
from forage.data.records import Question
from forage.data.splits import read_training_questions
from forage.errors import UserError
from forage.metrics import token_f1
from forage.policy.adapters import versions
from forage.sft.options import SFTOptions
from forage.sft.player import Player
from forage.sft.teacher import Guess, TeacherOptions, demonstrate
from forage.sft.telling_words import draw_words, telling_words

LEAST_F1 = 0.3  # of the answer and the reference, with which an episode of --rejection-samples passes


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
    own = sample_own(options, chosen, player) if options.rejection_samples else []
    return [*taught, *own, *from_files]


def vetting_of(options: SFTOptions, player: Player) -> Vetting:
    return Vetting.over(options.data, player.protocol, player.settings)


def make_guess(teacher: TeacherOptions, questions: Sequence[Question]) -> Guess | None:
    """What the teacher guesses; None if it guesses each answer's own beginning."""
    if teacher.guess == "own" or not teacher.guess_words:
        return None
    telling = telling_words(questions)
    return lambda question, choose: draw_words(question, telling[question.question_type], teacher.guess_words, choose)


def sample_own(options: SFTOptions, questions: Sequence[Question], player: Player) -> list[Episode]:
    """Rejection sampling: for each question, the accepted episode of the policy with the best answer."""
    by_id = {question.id: question for question in questions}
    episodes = player.play(versions(options.policy)[-1], questions, options.rejection_samples, options.seed)
    best: dict[str, Episode] = {}
    for episode in episodes:
        question = by_id[episode.question_id]
        if accepted(episode, question):
            before = best.get(question.id)
            if before is None or token_f1(before.answer, question.answer) < token_f1(episode.answer, question.answer):
                best[question.id] = episode
    print(
        f"{len(best)} demonstrations by the policy itself, from {len(episodes)} episodes on {len(questions)} questions"
    )
    return list(best.values())


def accepted(episode: Episode, question: Question) -> bool:
    """Rejection sampling: is this episode worth learning from?"""
    found = bool(set(episode.hits) & set(question.relevant_chunk_ids))
    return episode.well_formed and found and token_f1(episode.answer, question.answer) >= LEAST_F1
