"""Scorers: how good each candidate episode of a question looks, from 0 to 1, without knowing the answer.

Those here are written; preference.py learns one from rewarded episodes, and strategies take either. They call scorers
through `scores_of`, which passes only the question's text: the reference, the relevant chunks, the type and the focus
are blanked, so no scorer can peek. Only `Oracle` gets the whole question: it is the upper bound of what choosing among
the candidates could reach, not a way of answering.

Where they don't help: `confidence` prefers short, bland answers, and a small model is sure of its mistakes; `agreement`
needs mistakes that differ, and a policy's bias is the same mistake n times; `support` sees what is said without
evidence, not what is missing; `well_formed` hardly ever tells a trained policy's episodes apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from forage.agent.agent import Agent
from forage.agent.episode import Episode
from forage.agent.protocol import RESPONSE, Protocol
from forage.agent.rewards import RewardFunction
from forage.data.records import Question
from forage.errors import UserError
from forage.metrics import token_f1
from forage.store.bm25 import Tokenizer

Scorer = Callable[[Protocol, Question, Sequence[Episode]], Sequence[float]]
WORDS = Tokenizer()


async def scores_of(
    agent: Agent, scorer: Scorer | Oracle, question: Question, episodes: Sequence[Episode]
) -> list[float]:
    """A finite number for each episode. Runs in the search thread, because a scorer may use the embedder."""
    asked = question if isinstance(scorer, Oracle) else unanswered(question)
    scores = [float(score) for score in await agent.search.in_thread(scorer, agent.protocol, asked, episodes)]
    if len(scores) != len(episodes) or not all(map(math.isfinite, scores)):
        name = getattr(scorer, "__name__", scorer)
        raise UserError(f"scorer {name} gave {scores} for {len(episodes)} episodes of question {question.id}")
    return scores


def unanswered(question: Question) -> Question:
    """As much of a question as its asker knows."""
    return Question(question.id, question.question, "")


def best_index(scores: Sequence[float], episodes: Sequence[Episode]) -> int:
    """The index of the highest score, the first of equal ones; episodes that the engine gave up on come last.

    Example: scores .2 .9 .9, where the engine gave up on the second, give 2.
    """
    return max(range(len(episodes)), key=lambda n: (episodes[n].stop != "engine", scores[n], -n))


@dataclass(frozen=True)
class Oracle:
    """Scores by the reference, as a reward does: the upper bound. Example: Oracle(get_mrr).

    Where the reward does not exist, all candidates are equal.
    """

    reward: RewardFunction

    def __call__(self, _: Protocol, question: Question, episodes: Sequence[Episode]) -> Sequence[float]:
        return [score or 0.0 for score in self.reward(episodes, [question] * len(episodes))]


def confidence(_: Protocol, __: Question, episodes: Sequence[Episode]) -> list[float]:
    """Geometric mean of the answer turn's token probabilities; 0 without an answer.

    They are already at hand, under the distribution that was drawn from. Example: probabilities .9 and .4 give .6.
    """
    return [probability(episode) for episode in episodes]


def probability(episode: Episode) -> float:
    if not episode.answer:
        return 0.0
    turn = slice(episode.turns[-1].start, episode.turns[-1].end)
    sampled = [logprob for logprob, own in zip(episode.logprobs[turn], episode.mask[turn], strict=True) if own]
    return math.exp(sum(sampled) / len(sampled)) if sampled else 0.0


def well_formed(_: Protocol, __: Question, episodes: Sequence[Episode]) -> list[float]:
    """1 for an episode that searched, answered and broke no rule; a half for any other that answered."""
    return [1.0 if episode.well_formed else 0.5 if episode.stop == "answer" else 0.0 for episode in episodes]


def support(protocol: Protocol, _: Question, episodes: Sequence[Episode]) -> list[float]:
    """Share of the answer's words (stems, without stop words) that occur in the passages shown.

    Example: "Gout hurts badly" after the passage "Gout: It hurts." has 2 of 3.
    """
    return [covered(episode.answer, shown(protocol, episode)) for episode in episodes]


def relevance(protocol: Protocol, question: Question, episodes: Sequence[Episode]) -> list[float]:
    """Share of the question's words that occur in the passages shown: a guess at whether the search went astray."""
    return [covered(question.question, shown(protocol, episode)) for episode in episodes]


def covered(text: str, passages: Sequence[str]) -> float:
    """Share of a text's words that occur in the passages; 0 for a text without words."""
    words, held = WORDS(text), {word for passage in passages for word in WORDS(passage)}
    return sum(word in held for word in words) / len(words) if words else 0.0


def shown(protocol: Protocol, episode: Episode) -> list[str]:
    """The tool responses that the policy read, errors included."""
    ends = [turn.end for turn in episode.turns]
    starts = [*(turn.start for turn in episode.turns[1:]), len(episode.ids)][: len(ends)]  # none without a turn
    given = [protocol.text(episode.ids[end:start]) for end, start in zip(ends, starts, strict=True)]
    return [response for text in given for response in RESPONSE.findall(text)]


def agreement(_: Protocol, __: Question, episodes: Sequence[Episode]) -> list[float]:
    """Mean token F1 of the answer with the other candidates' answers; an empty answer has 0 with all.

    Example: answers "a b", "a b" and "c" get .5, .5 and 0.
    """
    answers = [episode.answer for episode in episodes]
    if len(answers) < 2:
        return [1.0 if answer else 0.0 for answer in answers]
    alike_NN = np.array([[token_f1(one, other) if one and other else 0.0 for other in answers] for one in answers])
    return ((alike_NN.sum(axis=1) - alike_NN.diagonal()) / (len(answers) - 1)).tolist()


def looks_good(protocol: Protocol, question: Question, episodes: Sequence[Episode]) -> list[float]:
    """What strategies choose by unless a learned scorer does: the mean of three signs that need no reference.

    The episode keeps to the protocol, its passages cover the question, and they support the answer.
    """
    signs = [sign(protocol, question, episodes) for sign in (well_formed, relevance, support)]
    return np.mean(signs, axis=0).tolist()
