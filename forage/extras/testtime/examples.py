"""Examples: what the preference model learns from: candidates of a question, how good each was, and pairs among them.

Paper: rStar-Math, https://arxiv.org/abs/2501.04519: a step's Q-value is the mean outcome of the rollouts through it.

Episodes of a question make a tree: those that share their tokens up to where a turn's results end, share a node there.
So a tree that tree.py stored is found again, and independent samples make one too, which branches where they first
differ. Example: two episodes begin with the query "gout" and are rewarded .2 and .6, a third begins with "toe" and is
rewarded 1. After the first turn, "gout" has the Q-value .4 and "toe" has 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from forage.agent.episode import Episode, episode_files, is_written, read_episodes
from forage.agent.protocol import Protocol
from forage.agent.rewards import RewardFunction, combine_rewards, reward_matrix
from forage.agent.vetting import asked_in
from forage.data.records import Question
from forage.data.relevance import question_key
from forage.data.splits import read_train
from forage.errors import UserError
from forage.extras.testtime.features import Floats, Rows, features
from forage.extras.testtime.preference import Pairs
from forage.extras.testtime.scorers import unanswered

if TYPE_CHECKING:
    from forage.store.embedder import Embedder

MARGIN = 0.05  # two Q-values less than this apart are too near to learn from


Played = Mapping[Question, Sequence[Episode]]
"""Training questions and their episodes."""


def read_played(paths: Sequence[Path], data: Path, protocol: Protocol) -> Played:
    """The episodes by question, in the order of train.jsonl, each once; not what the engine gave up on.

    Held-out questions are refused: what learns from episodes learns from the reference answers by which they are
    rewarded.
    """
    known = {question.id: question for question in read_train(data)}
    by_question: dict[str, dict[tuple[object, ...], Episode]] = {}
    for path in files_of(paths):
        episodes = list(read_episodes(path))
        if foreign := [episode.question_id for episode in episodes if episode.question_id not in known]:
            raise UserError(
                f"{path}: {len(set(foreign))} of its questions are not in {data / 'train.jsonl'}, such as "
                f"{foreign[0]}; give episodes of training questions, as evaluate.py --split train plays them"
            )
        if any(e.transcript and e.transcript != protocol.tokenizer.decode(e.ids) for e in episodes[:1]):
            raise UserError(f"{path}: its tokens are of another tokenizer; name the --policy that played it")
        if other := [episode for episode in episodes if asks_other(episode, known[episode.question_id], protocol)]:
            raise UserError(
                f"{path}: {len(other)} of its episodes answer another question than {data / 'train.jsonl'} has under "
                f"the id {other[0].question_id}; give the --data that they were played on"
            )
        for episode in episodes:
            if episode.stop != "engine":
                by_question.setdefault(episode.question_id, {})[episode.id, episode.ids] = episode
    if not by_question:
        raise UserError("no episode is left to learn from; give files of whole episodes")
    return {known[name]: list(by_question[name].values()) for name in known if name in by_question}


def asks_other(episode: Episode, question: Question, protocol: Protocol) -> bool:
    """Whether its prompt shows another question. A strategy may have added something, such as a critique."""
    asked, words = asked_in(episode, protocol), question_key(protocol.harmless(question.question))
    return asked is not None and f" {words} " not in f" {asked} "


def files_of(paths: Sequence[Path]) -> list[Path]:
    """The files of episodes, those in folders included."""
    files = [file for path in paths for file in (episode_files(path) if path.is_dir() else [path])]
    if missing := [path for path in files if not is_written(path)] or (not files and [Path("no file of episodes")]):
        raise UserError(f"{missing[0]} is missing; name files or folders of episodes, such as those evaluate.py writes")
    return files


def examples_of(
    played: Played, embedder: Embedder, protocol: Protocol, functions: Mapping[str, RewardFunction]
) -> tuple[Rows, Pairs]:
    """The features of all candidates, and the pairs of them that tell. Rewards may see the reference, features not."""
    rows, pairs, start = [], [], 0
    for question, episodes in played.items():
        rewards_N = combine_rewards(reward_matrix(functions, episodes, [question] * len(episodes)))
        for nodes, q_N in siblings_of(episodes, rewards_N):
            rows.append(features(embedder, protocol, unanswered(question), nodes))
            pairs.append(pairs_of(q_N, start))
            start += len(nodes)
    return np.concatenate(rows), Pairs(*map(np.concatenate, zip(*pairs, strict=True)))


def siblings_of(episodes: Sequence[Episode], rewards_N: Floats) -> Iterator[tuple[Sequence[Episode], Floats]]:
    """(what is compared, Q-values): the finished episodes, then the nodes after one turn, after two, and so on."""
    yield episodes, rewards_N
    for depth in range(1, max(len(episode.turns) for episode in episodes)):
        below: dict[tuple[int, ...], list[int]] = {}
        for number, episode in enumerate(episodes):
            if len(episode.turns) > depth:
                below.setdefault(episode.ids[: episode.turns[depth].start], []).append(number)
        nodes = [cut_after(episodes[numbers[0]], depth) for numbers in below.values()]
        yield nodes, np.array([rewards_N[numbers].mean() for numbers in below.values()])


def cut_after(episode: Episode, turns: int) -> Episode:
    """The episode as it was when so many turns, and their results, were there: what EpisodeBuilder.so_far gives."""
    end = episode.turns[turns].start
    return replace(
        episode, ids=episode.ids[:end], mask=episode.mask[:end], logprobs=episode.logprobs[:end],
        credits=episode.credits[:end], turns=episode.turns[:turns],
        searches=tuple(search for search in episode.searches if search.turn < turns),
        uses=tuple(use for use in episode.uses if use.turn < turns), answer="", stop="search", transcript="",
        rewards={}, reward=0.0,
    )  # fmt: skip


def pairs_of(q_N: Floats, start: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
    """(better, worse, by how much) of every two candidates whose Q-values are apart; the first has the number `start`.

    Example: Q-values .9, .5 and .47 give the pairs (0, 1) and (0, 2).
    """
    apart_NN = q_N[:, None] - q_N[None, :]
    better_P, worse_P = np.nonzero(apart_NN >= MARGIN)
    return better_P + start, worse_P + start, apart_NN[better_P, worse_P]


def right_share(scores_N: Floats, pairs: Pairs) -> float:
    """The share of pairs that are scored in the right order; equal scores count a half.

    Example: scores .9, .5 and .5 for pairs (0, 1), (0, 2) and (1, 2) give 2.5 of 3.
    """
    ahead_P = scores_N[pairs.better_P] - scores_N[pairs.worse_P]
    return float(np.where(ahead_P == 0, 0.5, ahead_P > 0).mean())
