"""Trains the preference model: a scorer of candidate episodes, learnt from rewarded ones, for test-time search.

    python evaluate.py --data data --policy models/warm --systems best_of_8 --split train --output-dir runs/candidates
    python -m forage.evaluation.preference.train_scorer runs/candidates/episodes/warm/best_of_8.jsonl --data data \\
        --policy models/warm --out models/scorer
    python evaluate.py --data data --policy models/warm --scorer models/scorer \\
        --systems single best_of_8 learned_8 oracle_8 learned_tree

Reads files of episodes, of evaluate.py with --split train or of a run, and train.jsonl and the store's card in --data.
Only training questions are taken: a scorer that has seen the answers of held-out ones would look good on them.

Writes into --out: scorer.json (what it was trained on, and how often it is right on held-out questions, beside the
written scorers on the same pairs), head.safetensors, and features/, what was embedded. Re-run the same command to
resume: what is in features/ is not embedded again, and the result is that of an undisturbed training.

How good a turn is follows from the rewards of the episodes that went on from it (q_values.py), which are computed anew
here. What the model sees of an episode is in features.py, what it is in model.py.

Following rStar-Math's process preference model, https://arxiv.org/abs/2501.04519. Left out: it is a head over
embeddings, not a language model that reads the steps; pairs are all that differ by --margin, not the best and worst two
of each step. Rounds of playing and training are forage/evolution/self_evolve.py's.

Where it doesn't help: with few questions, or candidates that are all alike, there are few pairs, and the written
scorers are as good. It knows the mistakes of the policy whose episodes it saw: another policy may make others.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
from rich.console import Console
from rich.table import Table

from forage.agent.combination import RewardFunction, weights_by_name
from forage.agent.episode import Episode, is_written, read_episodes
from forage.agent.options import SearchOptions
from forage.agent.protocol import Protocol
from forage.agent.rewards import get_answer_similarity, get_mrr
from forage.arguments import POSITIONAL
from forage.cli import run_script
from forage.data.records import Question
from forage.data.splits import read_train
from forage.errors import UserError
from forage.evaluation.outcomes import is_fused
from forage.evaluation.policies import find_policy
from forage.evaluation.preference.accuracy import accuracies
from forage.evaluation.preference.card import CARD, ScorerCard, write_scorer
from forage.evaluation.preference.examples import Examples, Played, chosen, combined, examples_of, pairs_of
from forage.evaluation.preference.features import PRODUCTS, SCALARS, Floats
from forage.evaluation.preference.model import Head, Learning, Pairs, fit
from forage.evaluation.preference.shards import FOLDER, Shards
from forage.manifest import plain
from forage.outputs import check_apart, check_folder
from forage.policy.policy import load_tokenizer
from forage.rollout.agreement import embedder_digest, open_embedder
from forage.sole_writer import filling_folder
from forage.statistics import Interval, span
from forage.store.embedder import Embedder
from forage.store.opening import card_at
from forage.store.options import StorePlace

FINISHED, GOING_ON = "finished", "going on"


@dataclass(frozen=True)
class Options:
    """The preference model."""

    files: Annotated[tuple[Path, ...], POSITIONAL]
    """Files of episodes, of training questions only."""
    data: Path = Path("data")
    """Folder that data_prep.py wrote."""
    policy: Path = Path("models/warm")
    """Policy that played the episodes; its tokenizer is needed."""
    out: Path = Path("models/scorer")
    """Folder to write."""
    weights: tuple[float, ...] = ()
    """Weights of the two rewards to foresee, similarity of the answer and MRR; left out: 1 each."""
    margin: float = 0.05
    """Least difference of two Q-values to learn from."""
    held_out: float = 0.2
    """Share of the questions to judge the model on, which it does not learn from."""
    learning: Learning = field(default_factory=Learning)
    search: SearchOptions = field(default_factory=SearchOptions)
    place: StorePlace = field(default_factory=StorePlace)

    def check(self) -> None:
        self.learning.check()
        self.place.check()
        if not self.files:
            raise UserError("name one or more files of episodes")
        if not 0 <= self.held_out < 1:
            raise UserError(f"--held-out {self.held_out:g} must be at least 0 and less than 1")
        if self.margin < 0:
            raise UserError(f"--margin {self.margin:g} must be at least 0")
        weights_by_name(REWARDS, self.weights)
        check_folder("--out", self.out)
        check_apart("--out", self.out, {"--data": self.data, "--policy": self.policy})
        for path in self.files:
            if not is_written(path):
                raise UserError(f"{path} is missing; name files of episodes, such as those evaluate.py writes")


REWARDS = ("answer_similarity", "mrr")


def main(options: Options) -> None:
    options.check()
    settings = options.search.settle(options.policy)
    policy = find_policy(options.policy.name, str(options.policy), "")  # it may be a plain model
    protocol = Protocol.playing(load_tokenizer(policy.card), settings)
    played = read_played(options, protocol)
    embedder = open_embedder(card_at(options.place, options.data)[0])
    functions = reward_functions(embedder)
    with filling_folder(options.out, FOLDER, way_out="--out"):
        shards = Shards(options.out, embedder.name, embedder_digest(embedder.name))
        examples = shards.examples(played, functions, lambda group: examples_of(group, embedder, protocol, functions))
        lesson = divided(examples, played, options)
        head = fit(lesson.learnt.features_NF, lesson.pairs, options.learning)
        card = card_of(options, embedder, played, lesson, judged(head, lesson))
        write_scorer(options.out, card, head, embedder.probe())
    print_accuracy(card.accuracy)
    print(f"wrote {options.out / CARD}; use it: python evaluate.py --scorer {options.out} --systems learned_8 ...")


def reward_functions(embedder: Embedder) -> Mapping[str, RewardFunction]:
    similarity: RewardFunction = partial(get_answer_similarity, embedder=embedder)
    return {"answer_similarity": similarity, "mrr": get_mrr}


def read_played(options: Options, protocol: Protocol) -> list[Played]:
    """The episodes by question, in the order of train.jsonl, each once."""
    train = read_train(options.data)
    known = {question.id: question for question in train}
    by_question: dict[str, dict[tuple[object, ...], Episode]] = {}
    for path in options.files:
        episodes = list(read_episodes(path))
        check_episodes(path, episodes, known, protocol, options)
        for episode in filter(fit_to_learn_from, episodes):
            by_question.setdefault(episode.question_id, {}).setdefault((episode.id, episode.ids), episode)
    several = [Played(known[name], tuple(by_question[name].values())) for name in known if name in by_question]
    if not several:
        raise UserError("no episode is left to learn from; give files of whole episodes")
    return several


def check_episodes(
    path: Path, episodes: Sequence[Episode], known: Mapping[str, Question], protocol: Protocol, options: Options
) -> None:
    """Refuse episodes of other questions than the training's, and tokens of another tokenizer."""
    foreign = dict.fromkeys(episode.question_id for episode in episodes if episode.question_id not in known)
    if foreign:
        raise UserError(
            f"{path}: {len(foreign)} of its questions are not in {options.data / 'train.jsonl'}, such as "
            f"{next(iter(foreign))}; give episodes of training questions, as evaluate.py --split train plays them"
        )
    for episode in episodes[:1]:
        if episode.transcript and episode.transcript != protocol.tokenizer.decode(episode.ids):
            raise UserError(
                f"{path}: its tokens are not of {options.policy}'s tokenizer; name the --policy that played it"
            )


def fit_to_learn_from(episode: Episode) -> bool:
    """Not if the engine gave up on it, or if it has the hits of others."""
    return episode.stop != "engine" and not is_fused(episode)


@dataclass(frozen=True, eq=False)
class Lesson:
    """The examples to learn from, and those to be judged on."""

    learnt: Examples
    pairs: Pairs
    unseen: Examples
    unseen_pairs: Pairs


def divided(examples: Examples, played: Sequence[Played], options: Options) -> Lesson:
    """Whole questions are held out: candidates of one question tell of each other."""
    weights_R = np.array(list(weights_by_name(REWARDS, options.weights).values()))
    held_out = draw_held_out([one.question.id for one in played], options.held_out, options.learning.seed)
    learnt, unseen = chosen(examples, sorted(set(range(len(played))) - held_out)), chosen(examples, sorted(held_out))
    pairs, unseen_pairs = (pairs_of(part, combined(part.q_NR, weights_R), options.margin) for part in (learnt, unseen))
    lesson = Lesson(learnt, pairs, unseen, unseen_pairs)
    if not len(pairs):
        raise UserError(
            f"no two episodes of a question differ by --margin {options.margin:g}; give several episodes of each "
            "question, as best_of_8 plays them, or a smaller --margin"
        )
    return lesson


def draw_held_out(ids: Sequence[str], share: float, seed: int) -> set[int]:
    """Numbers of the questions to hold out; the same whatever their order."""
    drawn = set(random.Random(seed).sample(sorted(ids), round(share * len(ids))))
    return {number for number, name in enumerate(ids) if name in drawn}


def judged(head: Head, lesson: Lesson) -> dict[str, dict[str, Interval]]:
    """Accuracies on the held-out pairs, of finished episodes and of those that go on."""
    learned_N: Floats = np.array(head.scores(lesson.unseen.features_NF))
    finished_P = lesson.unseen.depth_N[lesson.unseen_pairs.better_P] == 0
    return {
        kind: accuracies(lesson.unseen, lesson.unseen_pairs.some(mine_P), learned_N)
        for kind, mine_P in ((FINISHED, finished_P), (GOING_ON, ~finished_P))
    }


def card_of(
    options: Options, embedder: Embedder, played: Sequence[Played], lesson: Lesson,
    accuracy: Mapping[str, Mapping[str, Interval]],
) -> ScorerCard:  # fmt: skip
    return ScorerCard(
        embedder=embedder.name, embedder_weights=embedder_digest(embedder.name), hidden=options.learning.hidden,
        dimension=(lesson.learnt.features_NF.shape[1] - len(SCALARS)) // len(PRODUCTS), rank=options.learning.rank,
        options=plain(options), rewards=weights_by_name(REWARDS, options.weights),
        learnt_from=counts(lesson.learnt, lesson.pairs), held_out=counts(lesson.unseen, lesson.unseen_pairs),
        accuracy=accuracy,
    )  # fmt: skip


def counts(examples: Examples, pairs: Pairs) -> dict[str, int]:
    return {
        "questions": len(np.unique(examples.question_N)), "episodes": int((examples.depth_N == 0).sum()),
        "pairs": len(pairs),
    }  # fmt: skip


def print_accuracy(accuracy: Mapping[str, Mapping[str, Interval]]) -> None:
    table = Table("right on held-out pairs", *accuracy)
    for name in dict.fromkeys(name for scorers in accuracy.values() for name in scorers):
        table.add_row(name, *(shown(scorers.get(name)) for scorers in accuracy.values()))
    Console().print(table if table.row_count else "no pair was held out: the card says nothing of its accuracy")


def shown(interval: Interval | None) -> str:
    return f"{interval['mean']:.3f} ({span(interval)})" if interval else "-"


if __name__ == "__main__":
    run_script(main, __doc__)
