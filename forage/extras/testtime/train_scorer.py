"""Trains the preference model: a scorer of candidate episodes, learnt from rewarded ones, for test-time search.

    python evaluate.py --data data --policy models/warm --systems best_of:8 --split train --output-dir runs/candidates
    python -m forage.extras.testtime.train_scorer runs/candidates/episodes/warm/best_of_8 --data data \\
        --policy models/warm --out models/scorer
    python evaluate.py --data data --policy models/warm --scorer models/scorer \\
        --systems single best_of:8 best_of:8:learned oracle:8 tree:learned

Reads episodes (files or folders of them) of evaluate.py --split train or of a run, and train.jsonl and store.json
in --data. Only training questions are used: on held-out ones, a scorer that has seen their answers would look good. The
files written to --out are described in preference.py.

A turn is worth the mean reward of the episodes that went on from it. Rewards are computed anew here: the
mean of answer similarity and MRR. What the model sees of an episode and the model are in preference.py.

Follows rStar-Math's process preference model, https://arxiv.org/abs/2501.04519. Differences: it is a weighted sum
of features, not a language model that reads the steps; it learns from all pairs whose Q-values differ, not from the
best and worst two of each step. Rounds of playing and training are in self_evolve.py.

Where it doesn't help: few questions, or candidates that are all alike, give few pairs, and then the written scorer is
as good. It knows the mistakes of the policy whose episodes it saw; another policy may make others.

It learns from pairs among a question's candidates. As in the paper, a step's Q-value is the mean outcome of the
rollouts through it. Episodes of a question make a tree: those that share their tokens up to where a turn's results end,
share a node there. So a tree that tree.py stored is found again, and independent samples make one too, which branches
where they first differ. Example: two episodes begin with the query "gout" and are rewarded .2 and .6, a third begins
with "toe" and is rewarded 1. After the first turn, "gout" has the Q-value .4 and "toe" has 1.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from forage.agent.episode import Episode, episode_files, is_written, read_episodes
from forage.agent.options import SearchOptions
from forage.agent.protocol import Protocol
from forage.agent.rewards import RewardFunction, combine_rewards, get_answer_similarity, get_mrr, reward_matrix
from forage.agent.vetting import asked_in
from forage.arguments import POSITIONAL, run_script
from forage.data.records import Question
from forage.data.relevance import question_key
from forage.data.splits import read_train
from forage.errors import UserError
from forage.evaluation.setting import find_policy
from forage.extras.testtime.preference import CARD, FEATURES, OPEN, Floats, Pairs, Rows, features, fit, scores
from forage.extras.testtime.scorers import unanswered
from forage.files import check_apart, check_folder, filling_folder
from forage.manifest import plain, write_manifest
from forage.metrics import grouped
from forage.rollout.agreement import open_embedder
from forage.store.embedder import Embedder
from forage.store.opening import manifest_at
from forage.store.options import StoreAddress

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
        # A strategy may have added something to the prompt, such as a critique.
        pairs = ((episode, asked_in(episode, protocol), known[episode.question_id]) for episode in episodes)
        other = [
            episode for episode, asked, question in pairs
            if asked is not None and f" {question_key(protocol.harmless(question.question))} " not in f" {asked} "
        ]  # fmt: skip
        if other:
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
        below = grouped(
            (episode.ids[: episode.turns[depth].start], number)
            for number, episode in enumerate(episodes)
            if len(episode.turns) > depth
        )
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


WRITTEN = ("well_formed", "relevance", "support")  # what looks_good is the mean of; each is a feature too


@dataclass(frozen=True)
class Options:
    """The preference model."""

    files: Annotated[tuple[Path, ...], POSITIONAL]
    """Files of episodes, or folders of them. Training questions only."""
    data: Path = Path("data")
    """Folder that data_prep.py wrote."""
    policy: Path = Path("models/warm")
    """Policy that played the episodes. Only its tokenizer and settings are used."""
    out: Path = Path("models/scorer")
    """Folder to write."""
    held_out: float = 0.2
    """Share of the questions to measure the model on, without learning from them; 0: none."""
    seed: int = 0
    """Seed for drawing which questions are held out."""
    search: SearchOptions = SearchOptions()
    address: StoreAddress = StoreAddress()

    def check(self) -> None:
        self.address.check()
        if not 0 <= self.held_out < 1:
            raise UserError(f"--held-out {self.held_out:g} must be at least 0 and less than 1")
        check_folder("--out", self.out)
        check_apart("--out", self.out, {"--data": self.data, "--policy": self.policy})


def main(options: Options) -> None:
    options.check()
    settings = options.search.settle(options.policy)
    policy = find_policy(options.policy.name, str(options.policy), "")  # it may be a plain model
    protocol = Protocol.of_policy(policy.manifest, settings)
    played = read_played(options.files, options.data, protocol)
    embedder = open_embedder(manifest_at(options.address, options.data)[0])
    with filling_folder(options.out, way_out="--out"):
        learnt, unseen = split(played, options.held_out, options.seed)
        similarity: RewardFunction = partial(get_answer_similarity, embedder=embedder)
        functions = {"answer_similarity": similarity, "mrr": get_mrr}
        rows_NF, pairs = examples_of(learnt, embedder, protocol, functions)
        if not len(pairs):
            raise UserError(
                f"no two episodes of a question differ by {MARGIN} in their rewards; give several episodes of each "
                "question, as best_of:8 plays them"
            )
        weights_F, intercept = fit(rows_NF, pairs)
        accuracy = {}
        if unseen:
            rows_NF, held_out = examples_of(unseen, embedder, protocol, functions)
            accuracy = accuracies(scores(rows_NF, weights_F, intercept), rows_NF, held_out)
        write_manifest(options.out / CARD, {
            "weights": dict(zip(FEATURES, weights_F.tolist(), strict=True)), "intercept": intercept,
            "embedder": embedder.name, "options": plain(options), "questions": len(learnt), "pairs": len(pairs),
            "accuracy": accuracy, "probe": embedder.probe().tolist(),
        })  # fmt: skip
    for kind, shares in accuracy.items():
        print(f"right on held-out pairs, {kind}: " + ", ".join(f"{n} {share:.3f}" for n, share in shares.items()))
    print(f"wrote {options.out / CARD}; use it: python evaluate.py --scorer {options.out} --systems best_of:8:learned")


def split(played: Played, share: float, seed: int) -> tuple[Played, Played]:
    """(to learn from, to judge by), the same whatever the order of the questions."""
    ids = sorted(question.id for question in played)
    drawn = set(random.Random(seed).sample(ids, round(share * len(ids))))
    return (
        {question: episodes for question, episodes in played.items() if question.id not in drawn},
        {question: episodes for question, episodes in played.items() if question.id in drawn},
    )


def accuracies(learned_N: Floats, rows_NF: Rows, pairs: Pairs) -> dict[str, dict[str, float]]:
    """How often the scorer puts the better one of a held-out pair first, beside what strategies choose by without it.

    Of finished episodes and of those that go on.
    """
    found: dict[str, Floats] = {
        "learned": learned_N,
        "looks_good": rows_NF[:, [FEATURES.index(name) for name in WRITTEN]].astype(np.float64).mean(axis=1),
    }
    open_P = rows_NF[pairs.better_P, OPEN] == 1
    kinds = {"finished": pairs.some(~open_P), "going on": pairs.some(open_P)}
    return {
        kind: {name: right_share(scores_N, some) for name, scores_N in found.items()}
        for kind, some in kinds.items() if len(some)
    }  # fmt: skip


if __name__ == "__main__":
    run_script(main, __doc__)
