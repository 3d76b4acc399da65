"""Rewards: pure functions of episodes and their questions, each giving a number from 0 to 1 for every episode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from forage.agent.episode import Episode
from forage.data.records import Question
from forage.metrics import token_f1

if TYPE_CHECKING:
    from forage.store.embedder import Embedder


def get_mrr(episodes: Sequence[Episode], questions: Sequence[Question]) -> list[float]:
    """Reciprocal rank of the first relevant chunk among all that the agent saw, each counted once, in that order.

    So a second search helps only if the first one failed. Example: hits (a, b) and then (b, c), of which c answers:
    seen were a, b, c, so 1/3.
    """
    return [
        next((1 / place for place, hit in enumerate(episode.hits, 1) if hit in question.relevant_chunk_ids), 0.0)
        for episode, question in zip(episodes, questions, strict=True)
    ]


def get_answer_similarity(
    episodes: Sequence[Episode], questions: Sequence[Question], embedder: Embedder
) -> list[float]:
    """Cosine between the embeddings of answer and reference, 0 where it is negative or there is no answer.

    Unrelated texts are not at 0: MiniLM gives them about 0.1, E5 about 0.7.
    """
    given = embedder.encode_passages([episode.answer for episode in episodes])
    wanted = embedder.encode_passages([question.answer for question in questions])
    cosines = np.einsum("nd,nd->n", given, wanted).clip(0, 1)
    return [float(c) if episode.answer else 0.0 for c, episode in zip(cosines, episodes, strict=True)]


def get_token_f1(episodes: Sequence[Episode], questions: Sequence[Question]) -> list[float]:
    """Overlap of the answer's words with the reference's."""
    return [token_f1(episode.answer, question.answer) for episode, question in zip(episodes, questions, strict=True)]


def get_format_reward(episodes: Sequence[Episode], questions: Sequence[Question]) -> list[float]:
    """A third each for: a search that was run, an answer that ended it, and turns that keep to the protocol.

    The last third by their share. Example: a well-formed search, then a turn with broken JSON, then an answer:
    1/3 + 1/3 + 1/3 * 2/3.
    """
    return [
        (bool(e.searches) + (e.stop == "answer") + sum(not t.faults for t in e.turns) / max(1, len(e.turns))) / 3
        for e in episodes
    ]
