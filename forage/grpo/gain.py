"""Gain: a reward without labels, which the trainer measures by how likely answers are to the policy that learns.

How likely an answer is: the geometric mean of its tokens' probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from forage.agent.episode import Episode
from forage.agent.options import AgentSettings
from forage.agent.protocol import Protocol
from forage.agent.rewards import MEASURED, has_reference, weighed
from forage.data.splits import Splits
from forage.grpo.learner import Learner
from forage.grpo.update import UpdateContext
from forage.policy.manifest import PolicyManifest
from forage.policy.packing import Row, TokenBatch, Tokens

Likely = Callable[[Sequence[Row]], list[float]]


@dataclass(frozen=True)
class Gains:
    """Measures the information gain of a run's episodes."""

    weights: Mapping[str, float]
    """Of all rewards of the run."""
    answers: Mapping[str, tuple[int, ...]]
    """By question, the tokens of its reference answer, as many as a turn may have; none where it has no reference."""
    opening: tuple[int, ...]
    """The tokens before an answer."""

    def measured(self, learner: Learner, episodes: Sequence[Episode], context: UpdateContext) -> list[Episode]:
        """The episodes with this reward too."""

        def likely(rows: Sequence[Row]) -> list[float]:
            scored = partial(likelihoods, rows, learner, context.temperature)
            with context.fitting(learner, rows) as fitting:
                return list(fitting(lambda tokens: scored(partial(context.pack, budget=tokens))))

        gained = information_gain(self, episodes, likely)
        rows = [{**episode.rewards, MEASURED: gain} for episode, gain in zip(episodes, gained, strict=True)]
        rewards_NR = np.array([[row.get(name) for name in self.weights] for row in rows], dtype=np.float64)
        return weighed(episodes, rewards_NR, self.weights)


def open_gains(
    weights: Mapping[str, float], policy: PolicyManifest, settings: AgentSettings, questions: Splits
) -> Gains:
    protocol, room = Protocol.of_policy(policy, settings), settings.max_turn_tokens
    answers = {
        name: tuple(protocol.encode(protocol.harmless(question.answer))[:room]) if has_reference(question) else ()
        for split in questions.values()
        for name, question in split.items()
    }
    return Gains(weights, answers, tuple(protocol.encode("<answer>")))


def likelihoods(
    rows: Sequence[Row], learner: Learner, temperature: float, pack: Callable[[Sequence[Tokens]], list[TokenBatch]]
) -> list[float]:
    """How likely the marked tokens of each row are."""
    totals = learner.table(rows, temperature, pack).sum(dim=1).tolist()
    return [math.exp(total / max(1, sum(row.mask))) for total, row in zip(totals, rows, strict=True)]


def information_gain(gains: Gains, episodes: Sequence[Episode], likely: Likely) -> list[float | None]:
    """See `get_information_gain`."""

    def row(episode: Episode, end: int) -> Row:
        context = (*episode.ids[:end], *gains.opening)
        answer = gains.answers[episode.question_id]
        return Row((*context, *answer), (0,) * len(context) + (1,) * len(answer))

    pairs = [tuple(row(episode, end) for end in read_by(episode)) for episode in episodes]
    rows = list(dict.fromkeys(row for pair in pairs for row in pair if any(row.mask)))
    known = dict(zip(rows, likely(rows), strict=True)) if rows else {}
    return [(1 + known[after] - known[before]) / 2 if after in known else None for before, after in pairs]


def read_by(episode: Episode) -> tuple[int, int]:
    """How many tokens the policy had before its first turn, and when it answered or the episode was over.

    Example: a prompt of 3, a search of 2, its result of 4, an answer: 3 and 9, as without an answer.
    """
    if not episode.turns:
        return len(episode.ids), len(episode.ids)
    first, last = episode.turns[0], episode.turns[-1]
    return first.start, last.start if last.end == len(episode.ids) else len(episode.ids)
