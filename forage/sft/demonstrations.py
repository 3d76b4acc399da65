"""Demonstrations: the episodes that the warm start imitates, by the teacher, by the policy itself, or from files."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from forage.agent.episode import Episode, read_episodes, write_episodes
from forage.agent.teacher import Guess, accepted, beginnings, best_beginnings, demonstrate
from forage.agent.telling_words import draw_words, telling_words
from forage.agent.vetting import Vetting
from forage.data.records import Question
from forage.data.splits import read_training_questions
from forage.errors import UserError
from forage.metrics import token_f1
from forage.policy.adapters import versions
from forage.sft.options import SFTOptions
from forage.sft.player import Player


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
    guess = make_guess(options, questions, player)
    taught = asyncio.run(
        demonstrate(chosen, player.search, player.protocol, player.settings, options.teacher, options.seed, guess)
    )
    print(f"{len(taught)} demonstrations by the teacher for {len(chosen)} questions")
    own = sample_own(options, chosen, player) if options.rejection_samples else []
    return [*taught, *own, *from_files]


def vetting_of(options: SFTOptions, player: Player) -> Vetting:
    return Vetting.over(options.data, player.protocol, player.settings, keep_malformed=options.keep_malformed)


def make_guess(options: SFTOptions, questions: Sequence[Question], player: Player) -> Guess | None:
    """What the teacher guesses; None if it guesses each answer's own beginning."""
    teacher = options.teacher
    if teacher.guess == "own" or not teacher.guess_words:
        return None
    if teacher.guess == "words":
        telling = telling_words(questions)
        return lambda question, choose: draw_words(
            question, telling[question.question_type], teacher.guess_words, choose
        )
    if teacher.guess == "typical":
        begun = {kind: several[0] for kind, several in beginnings(questions, teacher.guess_words).items()}
    else:
        weight = player.settings.question_weight
        begun = best_beginnings(questions, teacher.guess_words, player.search, weight, options.seed)
    return lambda question, _: begun.get(question.question_type)


def sample_own(options: SFTOptions, questions: Sequence[Question], player: Player) -> list[Episode]:
    """Rejection sampling: for each question, the accepted episode of the policy with the best answer."""
    by_id = {question.id: question for question in questions}
    episodes = player.play(versions(options.policy)[-1], questions, options.rejection_samples, options.seed)
    best: dict[str, Episode] = {}
    for episode in episodes:
        question = by_id[episode.question_id]
        if accepted(episode, question, token_f1, options.min_similarity):
            before = best.get(question.id)
            if before is None or token_f1(before.answer, question.answer) < token_f1(episode.answer, question.answer):
                best[question.id] = episode
    print(
        f"{len(best)} demonstrations by the policy itself, from {len(episodes)} episodes on {len(questions)} questions"
    )
    return list(best.values())
