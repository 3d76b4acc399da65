"""Episodes to benchmark engines on: the teacher's, on sample questions, with realistic lengths and results."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from forage.agent.episode import Episode
from forage.agent.options import AgentSettings
from forage.agent.protocol import Protocol
from forage.data.records import Question, read_answerable
from forage.engines.base import Request, Sampling
from forage.errors import UserError
from forage.sft.teacher import TeacherOptions, demonstrate
from forage.store.opening import open_store


def teacher_episodes(data: Path, protocol: Protocol, count: int, k: int = 3) -> tuple[list[Question], list[Episode]]:
    """`count` questions with an episode each; questions are repeated if there are too few."""
    store = open_store(data / "store")
    questions = read_answerable(data / "train.jsonl")
    episodes = asyncio.run(
        demonstrate(
            questions[: 2 * count],
            lambda queries: store.search(queries, k),
            protocol,
            AgentSettings(),
            TeacherOptions(),
            0,
        )
    )
    if not episodes:
        raise UserError(f"{data} has no question whose answer is found; make it by data_prep.py")
    by_id = {question.id: question for question in questions}
    chosen = [episodes[number % len(episodes)] for number in range(count)]
    return [by_id[episode.question_id] for episode in chosen], chosen


def turn_requests(episode: Episode, name: str, seed: int = 0) -> list[Request]:
    """The request for each turn of the episode, of exactly that turn's length, whatever the engine samples."""
    return [
        Request(episode.ids[: turn.start], turn.end - turn.start, (), seed + number, Sampling(), name)
        for number, turn in enumerate(episode.turns)
    ]


def tokens_of(episodes: Sequence[Episode]) -> int:
    return sum(episode.sampled for episode in episodes)
