"""Gain: rewards without labels, which the trainer measures by how likely answers are to the policy that learns.

How likely an answer is: the geometric mean of its tokens' probabilities.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from forage.agent.episode import Episode
from forage.agent.options import AgentSettings
from forage.agent.protocol import Protocol
from forage.agent.rewards import has_reference, weighed
from forage.data.splits import Splits
from forage.errors import UserError
from forage.grpo.learner import Learner
from forage.grpo.update import UpdateContext
from forage.policy.manifest import PolicyManifest
from forage.policy.packing import Row, TokenBatch, Tokens, common_start

Likely = Callable[[Sequence[Row]], list[float]]


@dataclass(frozen=True)
class Gains:
    """The rewards that the trainer measures of a run's episodes."""

    weights: Mapping[str, float]
    """Of all rewards of the run."""
    answers: Mapping[str, tuple[int, ...]]
    """By question, the tokens of its reference answer, as many as a turn may have; none where it has no reference."""
    opening: tuple[int, ...]
    """The tokens before an answer."""

    def measured(self, learner: Learner, episodes: Sequence[Episode], context: UpdateContext) -> list[Episode]:
        """The episodes with these rewards too."""

        def likely(rows: Sequence[Row]) -> list[float]:
            scored = partial(likelihoods, rows, learner, context.temperature)
            with context.fitting(learner, rows) as fitting:
                return list(fitting(lambda tokens: scored(partial(context.pack, budget=tokens))))

        columns = {name: measure(self, episodes, likely) for name, measure in MEASURES.items() if name in self.weights}
        rows = [
            {**episode.rewards, **{name: column[number] for name, column in columns.items()}}
            for number, episode in enumerate(episodes)
        ]
        rewards_NR = np.array([[row.get(name) for name in self.weights] for row in rows], dtype=np.float64)
        return weighed(episodes, rewards_NR, self.weights)


def open_gains(
    weights: Mapping[str, float], policy: PolicyManifest, settings: AgentSettings, questions: Splits
) -> Gains:
    if "evidence" in weights and settings.search_only:
        raise UserError("evidence is of an answer, and this policy only searches; give --weights information_gain=1")
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


def evidence(gains: Gains, episodes: Sequence[Episode], likely: Likely) -> list[float | None]:
    """See `get_evidence`."""
    del gains  # references don't count
    found = {each.question_id: results_of(each) for each in episodes if each.hits and results_of(each)}
    if len(found) < 2:  # there are no other results
        return [None] * len(episodes)
    others = dict(zip(found, [*list(found.values())[1:], *list(found.values())[:1]], strict=True))
    answered = [n for n, episode in enumerate(episodes) if episode.stop == "answer" and results_of(episode)]
    own = [answer_after(results_of(episodes[n]), episodes[n]) for n in answered]
    other = [answer_after(others[episodes[n].question_id], episodes[n]) for n in answered]
    known = likely([*own, *other]) if answered else []
    gained = dict(zip(answered, np.subtract(known[: len(own)], known[len(own) :]).clip(0).tolist(), strict=True))
    return [gained.get(number, 0.0) for number in range(len(episodes))]


def results_of(episode: Episode) -> list[tuple[int, ...]]:
    """The tokens between its turns."""
    return [episode.ids[before.end : after.start] for before, after in pairwise(episode.turns)]


def answer_after(results: Sequence[tuple[int, ...]], episode: Episode) -> Row:
    """The episode with other results between its turns, the last of them again where there are too few.

    None is longer than the one in whose place it stands, so that the row fits where the episode did. Only the last turn
    is marked.
    """
    first, *later = episode.turns
    ids = list(episode.ids[: first.end])
    for number, (turn, own) in enumerate(zip(later, results_of(episode), strict=True)):
        ids += [*shortened(results[min(number, len(results) - 1)], own), *episode.ids[turn.start : turn.end]]
    marked = episode.mask[later[-1].start : later[-1].end]
    return Row(tuple(ids), (*[0] * (len(ids) - len(marked)), *marked))


def shortened(result: tuple[int, ...], own: tuple[int, ...]) -> tuple[int, ...]:
    """As long as `own` at most; what both end with, the beginning of the next turn, stays.

    Example: 1 2 3 4 9 beside 7 8 9 gives 1 2 9.
    """
    if len(result) <= len(own):
        return result
    end = common_start(result[::-1], own[::-1])
    return (*result[: len(own) - end], *result[len(result) - end :])


MEASURES: dict[str, Callable[[Gains, Sequence[Episode], Likely], list[float | None]]] = {
    "information_gain": information_gain,
    "evidence": evidence,
}
