"""Trains the preference model: a scorer of candidate episodes, learnt from rewarded ones, for test-time search.

    python evaluate.py --data data --policy models/warm --systems best_of:8 --split train --output-dir runs/candidates
    python -m forage.extras.testtime.train_scorer runs/candidates/episodes/warm/best_of_8 --data data \\
        --policy models/warm --out models/scorer
    python evaluate.py --data data --policy models/warm --scorer models/scorer \\
        --systems single best_of:8 best_of:8:learned oracle:8 tree:learned

Reads episodes (files or folders of them) of evaluate.py --split train or of a run, and train.jsonl and the store's card
in --data. Only training questions are used: on held-out ones, a scorer that has seen their answers would look good. The
files written to --out are described in preference.py.

A turn is worth the mean reward of the episodes that went on from it (examples.py). Rewards are computed anew here: the
mean of answer similarity and MRR. What the model sees of an episode is in features.py; the model is in preference.py.

Follows rStar-Math's process preference model, https://arxiv.org/abs/2501.04519. Differences: it is a weighted sum
of features, not a language model that reads the steps; it learns from all pairs whose Q-values differ, not from the
best and worst two of each step. Rounds of playing and training are in self_evolve.py.

Where it doesn't help: few questions, or candidates that are all alike, give few pairs, and then the written scorer is
as good. It knows the mistakes of the policy whose episodes it saw; another policy may make others.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np

from forage.agent.options import SearchOptions
from forage.agent.protocol import Protocol
from forage.agent.rewards import RewardFunction, get_answer_similarity, get_mrr
from forage.arguments import POSITIONAL, run_script
from forage.errors import UserError
from forage.evaluation.setting import find_policy
from forage.extras.testtime.examples import MARGIN, Played, examples_of, read_played, right_share
from forage.extras.testtime.features import FEATURES, OPEN, Floats, Rows
from forage.extras.testtime.preference import CARD, Pairs, fit, scores
from forage.files import check_apart, check_folder, filling_folder
from forage.manifest import plain, write_manifest
from forage.policy.policy import load_tokenizer
from forage.rollout.agreement import open_embedder
from forage.store.embedder import Embedder
from forage.store.opening import card_at
from forage.store.options import StorePlace

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
    search: SearchOptions = field(default_factory=SearchOptions)
    place: StorePlace = field(default_factory=StorePlace)

    def check(self) -> None:
        self.place.check()
        if not 0 <= self.held_out < 1:
            raise UserError(f"--held-out {self.held_out:g} must be at least 0 and less than 1")
        check_folder("--out", self.out)
        check_apart("--out", self.out, {"--data": self.data, "--policy": self.policy})


def main(options: Options) -> None:
    options.check()
    settings = options.search.settle(options.policy)
    policy = find_policy(options.policy.name, str(options.policy), "")  # it may be a plain model
    protocol = Protocol.playing(load_tokenizer(policy.card), settings)
    played = read_played(options.files, options.data, protocol)
    embedder = open_embedder(card_at(options.place, options.data)[0])
    with filling_folder(options.out, way_out="--out"):
        learnt, unseen = split(played, options.held_out, options.seed)
        functions = reward_functions(embedder)
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


def reward_functions(embedder: Embedder) -> Mapping[str, RewardFunction]:
    similarity: RewardFunction = partial(get_answer_similarity, embedder=embedder)
    return {"answer_similarity": similarity, "mrr": get_mrr}


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
