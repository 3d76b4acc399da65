"""Examples: what the preference model learns from: candidates of a question, how good each was, and pairs among them.

Paper: rStar-Math, https://arxiv.org/abs/2501.04519: a step's Q-value is the mean outcome of the rollouts through it.

Episodes of a question make a tree: those that share their tokens up to where a turn's results end, share a node there.
So a tree that tree.py stored is found again, and independent samples make one too, which branches where they first
differ. Example: two episodes begin with the query "gout" and are rewarded .2 and .6, a third begins with "toe" and is
rewarded 1. After the first turn, "gout" has the Q-value .4 and "toe" has 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from forage.agent.combination import RewardFunction, combine_rewards, reward_matrix
from forage.agent.episode import Episode, episode_files, is_written, read_episodes
from forage.agent.protocol import Protocol
from forage.data.records import Question
from forage.data.splits import read_train
from forage.errors import UserError
from forage.testtime.features import Floats, Rows, features
from forage.testtime.preference import Pairs
from forage.testtime.scorers import unanswered

if TYPE_CHECKING:
    from forage.store.embedder import Embedder

Integers = NDArray[np.int64]
MARGIN = 0.05  # two Q-values less than this apart are too near to learn from


@dataclass(frozen=True)
class Played:
    """A training question and its episodes."""

    question: Question
    episodes: tuple[Episode, ...]


def read_played(paths: Sequence[Path], data: Path, protocol: Protocol) -> list[Played]:
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
        for episode in episodes:
            if episode.stop != "engine":
                by_question.setdefault(episode.question_id, {}).setdefault((episode.id, episode.ids), episode)
    several = [Played(known[name], tuple(by_question[name].values())) for name in known if name in by_question]
    if not several:
        raise UserError("no episode is left to learn from; give files of whole episodes")
    return several


def files_of(paths: Sequence[Path]) -> list[Path]:
    """The files of episodes, those in folders included."""
    files = [file for path in paths for file in (episode_files(path) if path.is_dir() else [path])]
    if missing := [path for path in files if not is_written(path)] or (not files and [Path("no file of episodes")]):
        raise UserError(f"{missing[0]} is missing; name files or folders of episodes, such as those evaluate.py writes")
    return files


@dataclass(frozen=True, eq=False)
class Examples:
    """N candidates; those of one question and one depth are compared."""

    features_NF: Rows
    q_N: Floats
    question_N: Integers
    """Each candidate's question, by its number."""
    depth_N: Integers
    """Turns after which the candidate goes on; 0: finished."""

    def of(self, questions: Sequence[int]) -> Examples:
        """Those of these questions."""
        mine = np.isin(self.question_N, questions)
        return Examples(self.features_NF[mine], self.q_N[mine], self.question_N[mine], self.depth_N[mine])


def examples_of(
    several: Sequence[Played], embedder: Embedder, protocol: Protocol, functions: Mapping[str, RewardFunction]
) -> Examples:
    """The examples of some questions, numbered from 0. Rewards may see the reference answer, features may not."""
    rows, q_values, numbers, depths = [], [], [], []
    for number, played in enumerate(several):
        rewards_NR = reward_matrix(functions, played.episodes, [played.question] * len(played.episodes))
        for depth, nodes, q_N in siblings_of(played.episodes, combine_rewards(rewards_NR)):
            rows.append(features(embedder, protocol, unanswered(played.question), nodes))
            q_values.append(q_N)
            numbers += [number] * len(nodes)
            depths += [depth] * len(nodes)
    return Examples(np.concatenate(rows), np.concatenate(q_values), np.array(numbers), np.array(depths))


def siblings_of(episodes: Sequence[Episode], rewards_N: Floats) -> Iterator[tuple[int, Sequence[Episode], Floats]]:
    """(depth, what is compared, Q-values): the finished episodes at depth 0, then the nodes after so many turns."""
    yield 0, episodes, rewards_N
    for depth in range(1, max(len(episode.turns) for episode in episodes)):
        below: dict[tuple[int, ...], list[int]] = {}
        for number, episode in enumerate(episodes):
            if len(episode.turns) > depth:
                below.setdefault(episode.ids[: episode.turns[depth].start], []).append(number)
        nodes = [cut_after(episodes[numbers[0]], depth) for numbers in below.values()]
        yield depth, nodes, np.array([rewards_N[numbers].mean() for numbers in below.values()])


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


def pairs_of(examples: Examples, margin: float = MARGIN) -> Pairs:
    """Every two compared candidates whose Q-values are at least `margin` apart.

    Example: Q-values .9, .5 and .45 with margin .1 give the pairs (first, second) and (first, third).
    """
    better, worse = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for key in sorted(set(zip(examples.question_N.tolist(), examples.depth_N.tolist(), strict=True))):
        rows = np.flatnonzero((examples.question_N == key[0]) & (examples.depth_N == key[1]))
        apart_NN = examples.q_N[rows][:, None] - examples.q_N[rows][None, :]
        ahead, behind = np.nonzero((apart_NN >= margin) & (apart_NN > 0))
        better.append(rows[ahead])
        worse.append(rows[behind])
    better_P, worse_P = np.concatenate(better), np.concatenate(worse)
    return Pairs(better_P, worse_P, examples.q_N[better_P] - examples.q_N[worse_P])


def right_shares(scores_N: Floats, pairs: Pairs, question_N: Integers) -> Floats:
    """The share of each question's pairs that are scored in the right order; equal scores count a half.

    Example: scores .9, .5 and .5 for pairs (0, 1), (0, 2) and (1, 2) of one question give 2.5 of 3.
    """
    ahead_P = scores_N[pairs.better_P] - scores_N[pairs.worse_P]
    right_P = np.where(ahead_P == 0, 0.5, ahead_P > 0)
    _, place_P = np.unique(question_N[pairs.better_P], return_inverse=True)
    return np.asarray(np.bincount(place_P, right_P) / np.bincount(place_P))
