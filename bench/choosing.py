"""Choosing: how much of what the best of 8 samples could gain each way of choosing among them gets, paired by question.

    python evaluate.py --data data --policy models/warm --scorer models/scorer \\
        --systems single best_of_8 learned_8 oracle_8 self_consistency_8
    python -m bench.choosing runs/eval
    python -m bench.choosing runs/eval --scorer models/scorer models/other

Reads an output folder of evaluate.py whose systems choose among the very same samples, those of --candidates. The
written scorers and those in --scorer choose among the stored samples here, so trying a scorer samples nothing; so does
the oracle. Where no --scorer is given, the system learned_8 is what is judged.

Bars: the learned scorer gets half of the oracle's gain over one sample, and its lead over best_of_8 is clear of zero.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import compress
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tyro
from numpy.typing import NDArray

from bench.report import Bar, finish
from forage.agent.combination import RewardFunction, reward_matrix
from forage.agent.episode import Episode
from forage.agent.options import read_agent
from forage.agent.protocol import Protocol
from forage.agent.rewards import get_answer_similarity, get_mrr, get_token_f1
from forage.cli import run_script
from forage.data.records import Question, read_answerable
from forage.errors import UserError
from forage.evaluation.measures import Floats
from forage.evaluation.outcomes import OutcomeLog, is_fused
from forage.evaluation.policies import find_policy
from forage.evaluation.preference.scorer import Preference
from forage.evaluation.scorers import WRITTEN, Scorer, best_index, unanswered
from forage.policy.policy import load_tokenizer
from forage.statistics import Interval, bootstrapped, bootstrapped_share, span
from forage.store.embedder import Embedder

SINGLE, ORACLE, LEARNED, BEFORE = "single", "oracle", "learned_8", "best_of_8"
LEAST_SHARE = 0.5
Places = NDArray[np.int64]  # (Q,): the number of each question's chosen candidate


@dataclass(frozen=True)
class Options:
    """The comparison."""

    evaluation: tyro.conf.Positional[Path]
    """Output folder of evaluate.py."""
    scorer: tuple[Path, ...] = ()
    """Learned scorers to choose by; the last one is judged."""
    policy: str = ""
    """A policy's name in the evaluation; left out: the first."""
    candidates: str = BEFORE
    """System whose samples are chosen among."""
    score: Literal["answer_similarity", "mrr", "token_f1"] = "answer_similarity"
    """What a choice is worth."""


def main(options: Options) -> None:
    stored = read_stored(options)
    choices = {SINGLE: np.zeros(len(stored.questions), np.int64), ORACLE: stored.values_QN.argmax(axis=1)}
    choices |= played_choices(options.evaluation, stored)
    for name, scorer in scorers(options, stored.embedder).items():
        choices[name] = np.array(list(stored.chosen_by(scorer)))
    worth = {name: stored.worth(place_Q) for name, place_Q in choices.items()}
    if not (worth[ORACLE] - worth[SINGLE]).any():
        raise UserError(
            f"{options.evaluation}: no sample has a better {options.score} than the first; play more samples"
        )
    judged = str(options.scorer[-1]) if options.scorer else LEARNED
    if judged not in worth:
        raise UserError(f"{options.evaluation} has no {LEARNED} of {stored.policy}; give a --scorer, or play it")
    print(f"{options.score} of {len(stored.questions)} questions, {stored.values_QN.shape[1]} samples each:\n")
    print("\n".join(table(worth, judged)), flush=True)
    finish(bars(worth, judged))


@dataclass(frozen=True, eq=False)
class Stored:
    """Q questions with N samples each, and what each sample is worth."""

    policy: str
    questions: list[Question]
    candidates: list[list[Episode]]
    values_QN: Floats
    protocol: Protocol
    embedder: Embedder = field(repr=False)

    def chosen_by(self, scorer: Scorer) -> Iterator[int]:
        for question, episodes in zip(self.questions, self.candidates, strict=True):
            yield best_index(scorer(self.protocol, unanswered(question), episodes), episodes)

    def worth(self, place_Q: Places) -> Floats:
        return np.asarray(np.take_along_axis(self.values_QN, place_Q[:, None], axis=1)[:, 0])


def read_stored(options: Options) -> Stored:
    folder = options.evaluation
    config, whole, policies = (read_json(folder / name) for name in ("config.json", "eval.json", "policies.json"))
    policy = options.policy or next(iter(policies))
    if policy not in policies:
        raise UserError(f"--policy {policy}: {folder} has {', '.join(policies)}")
    tried = OutcomeLog(folder, f"{policy}/{options.candidates}").candidates()
    known = {question.id: question for question in read_answerable(Path(config["data"]) / f"{config['split']}.jsonl")}
    questions = [known[name] for name in tried if name in known]
    candidates = [tried[question.id] for question in questions]
    if not questions or len({len(episodes) for episodes in candidates}) > 1:
        raise UserError(f"{folder} has no samples of {policy}/{options.candidates}, as many of each question; play it")
    embedder = Embedder(whole["embedder"])
    values_QN = values_of(questions, candidates, functions(embedder)[options.score])
    exists = [bool(np.isfinite(values_N).all()) for values_N in values_QN]
    if not any(exists):
        raise UserError(f"{folder}: no question has a reference answer; give --score mrr")
    source = policies[policy]
    tokenizer = load_tokenizer(find_policy(policy, source["source"], source["adapter"]).card)
    return Stored(
        policy, list(compress(questions, exists)),
        list(compress(candidates, exists)), values_QN[exists],
        Protocol.playing(tokenizer, read_agent(folder)), embedder,
    )  # fmt: skip


def read_json(path: Path) -> Any:
    if not path.is_file():
        raise UserError(f"{path} is missing; name the --output-dir of an evaluate.py that ran to its end")
    return json.loads(path.read_text())


def functions(embedder: Embedder) -> Mapping[str, RewardFunction]:
    similarity: RewardFunction = partial(get_answer_similarity, embedder=embedder)
    return {"answer_similarity": similarity, "mrr": get_mrr, "token_f1": get_token_f1}


def values_of(
    questions: Sequence[Question], candidates: Sequence[Sequence[Episode]], function: RewardFunction
) -> Floats:
    """(Q, N); NaN where a question has no such reward."""
    return np.stack(
        [
            reward_matrix({"score": function}, episodes, [question] * len(episodes))[:, 0]
            for question, episodes in zip(questions, candidates, strict=True)
        ]
    )


def scorers(options: Options, embedder: Embedder) -> dict[str, Scorer]:
    """The scorers to choose by here, by name; best_of_8 chooses by what looks good."""
    learned = {str(path): Preference.load(path, embedder) for path in options.scorer}
    written = dict(WRITTEN)
    if taken := learned.keys() & {BEFORE, *written}:
        raise UserError(f"--scorer {min(taken)} has the name of a written scorer; give its folder as ./{min(taken)}")
    return {BEFORE: written.pop("looks_good"), **written, **learned}


def played_choices(evaluation: Path, stored: Stored) -> dict[str, Places]:
    """What the evaluation's systems chose, of those that chose among these very samples for all the questions."""
    logs = sorted((evaluation / "outcomes" / stored.policy).glob("*.jsonl"))
    found = {path.stem: places(OutcomeLog(evaluation, f"{stored.policy}/{path.stem}"), stored) for path in logs}
    return {name: np.array(place_Q) for name, place_Q in found.items() if place_Q is not None and name != SINGLE}


def places(log: OutcomeLog, stored: Stored) -> list[int] | None:
    """The number of each chosen sample; None if some other episodes were tried, or found what others did."""
    tried, results, chosen = log.candidates(), log.results(), []
    for question, episodes in zip(stored.questions, stored.candidates, strict=True):
        own = tried.get(question.id, [])
        if [episode.ids for episode in own] != [episode.ids for episode in episodes] or any(map(is_fused, own)):
            return None
        chosen.append(results[question.id].cost.chosen)
    return chosen


def table(worth: Mapping[str, Floats], judged: str) -> list[str]:
    """Markdown: a line for each way of choosing, the best first."""
    lines = ["| chosen by | mean | share of the oracle's gain | the judged one less this |", "|---|---|---|---|"]
    for name in sorted(worth, key=lambda name: -worth[name].mean()):
        over = bootstrapped((worth[judged] - worth[name]).tolist())
        less = "" if name == judged else f"{over['mean']:+.4f} ({over['low']:+.4f} to {over['high']:+.4f})"
        share = share_of_gain(worth, name)
        lines.append(f"| {name} | {worth[name].mean():.4f} | {share['mean']:.3f} ({span(share)}) | {less} |")
    return lines


def share_of_gain(worth: Mapping[str, Floats], name: str) -> Interval:
    """What share of the oracle's gain over one sample it gets. Example: .5 for .5 between .4 and the oracle's .6."""
    parts, wholes = worth[name] - worth[SINGLE], worth[ORACLE] - worth[SINGLE]
    return bootstrapped_share(parts.tolist(), wholes.tolist())


def bars(worth: Mapping[str, Floats], judged: str) -> list[Bar]:
    over = bootstrapped((worth[judged] - worth[BEFORE]).tolist())
    return [
        Bar(f"{judged}: share of the oracle's gain", share_of_gain(worth, judged)["mean"], LEAST_SHARE),
        Bar(f"{judged} less {BEFORE}, {over['mean']:+.4f} ({span(over)}), is over 0", float(over["low"] > 0), 1),
    ]


if __name__ == "__main__":
    run_script(main, __doc__)
