"""Selection: of each training question the best episode that a search found, if the policy can learn from it.

    python -m forage.evolution.selection --data data --policy models/warm --played runs/evolution/round_1/played \\
        --system best_of_8 --out runs/evolution/round_1/kept.jsonl

self_evolve.py runs it in each round. Reads an output folder of evaluate.py with --split train, in which the policy
played the system `single` too. Writes one episode per question at most: that of the highest reward among those that are
well-formed and found a chunk with the answer, if its reward is higher than that of the policy's first sample. What the
policy says by itself it need not learn.

Rewards are those of get_reward_functions in grpo_rollout.py, which may look at the reference answers: these are
training questions only. A held-out one is refused.

Where it doesn't help: with a reward that the policy can earn without answering. And a policy whose first sample is
nearly always the best leaves little to learn from: --temperature decides how much its samples differ.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from forage.agent.combination import (
    ROUNDING,
    MakeRewards,
    RewardFunction,
    combine_rewards,
    reward_matrix,
    rewards_of,
    scored,
    weights_by_name,
)
from forage.agent.episode import Episode, write_episodes
from forage.agent.options import AgentSettings, SearchOptions
from forage.agent.protocol import Protocol
from forage.agent.searcher import Searcher
from forage.agent.tools import SCRIPT
from forage.agent.vetting import Vetting
from forage.cli import run_script
from forage.data.records import Question
from forage.data.splits import read_training_questions
from forage.errors import UserError
from forage.evaluation.expert import demonstration
from forage.evaluation.outcomes import OutcomeLog, is_fused
from forage.evolution.stages import FIRST, PLAYER
from forage.outputs import check_apart
from forage.policy.card import read_policy_card
from forage.policy.policy import load_tokenizer
from forage.rollout.agreement import open_embedder
from forage.store.opening import card_at, open_place
from forage.store.options import StorePlace

CAUSES = KEPT, NOT_BETTER, UNFIT = "kept", "no better than the first sample", "without a fit episode"


@dataclass(frozen=True)
class Options:
    """The selection."""

    data: Path = Path("data")
    """Folder that data_prep.py wrote."""
    policy: Path = Path("models/warm")
    """Policy that will learn from the episodes; its tokenizer is needed."""
    played: Path = Path("runs/candidates")
    """Output folder of evaluate.py, of training questions."""
    system: str = "best_of_8"
    """The system that searched."""
    out: Path = Path("kept.jsonl")
    """File to write."""
    weights: tuple[float, ...] = ()
    """Weight of each reward, in the order of get_reward_functions (all equal)."""
    search: SearchOptions = field(default_factory=SearchOptions)
    place: StorePlace = field(default_factory=StorePlace)


@dataclass(frozen=True)
class Tried:
    """A question, the policy's first sample, and what the search tried."""

    question: Question
    first: Episode
    candidates: tuple[Episode, ...]


def main(options: Options) -> None:
    options.place.check()
    check_apart("--out", options.out, {"--data": options.data, "--policy": options.policy})
    settings = options.search.settle(options.policy)
    protocol = Protocol.playing(load_tokenizer(read_policy_card(options.policy)), settings)
    several = read_tried(options)
    functions = open_rewards(options.place, options.data, settings)
    weights = list(weights_by_name(functions, options.weights).values())
    vetting = Vetting.over(options.data, protocol, settings)
    found = [(tried.question, *choose(tried, functions, weights, vetting)) for tried in several]
    counts = Counter(cause for _, _, cause in found)
    counted = f"of {len(several)} questions, " + ", ".join(f"{counts[name]} {name}" for name in CAUSES)
    kept = [demonstration(episode, question, protocol) for question, episode, _ in found if episode]
    if not kept:
        raise UserError(
            f"no episode to learn from: {counted}; give more --questions or a higher --temperature, with another "
            "--output-dir, or stop here"
        )
    write_episodes(options.out, kept)
    print(f"{options.out}: {counted}")


def open_rewards(place: StorePlace, data: Path, settings: AgentSettings) -> Mapping[str, RewardFunction]:
    """Those of get_reward_functions in grpo_rollout.py, over this store."""
    make: MakeRewards = importlib.import_module(SCRIPT).get_reward_functions
    return rewards_of(make, open_embedder(card_at(place, data)[0]), Searcher(lambda: open_place(place, data), settings))


def read_tried(options: Options) -> list[Tried]:
    """What was played, in the order of train.jsonl."""
    questions = {question.id: question for question in read_training_questions(options.data)}
    first, search = (OutcomeLog(options.played, f"{PLAYER}/{system}") for system in (FIRST, options.system))
    samples, candidates = first.results(), search.candidates()
    if foreign := [name for name in candidates if name not in questions]:
        raise UserError(
            f"{search.episodes}: {len(foreign)} of its questions are not in {options.data / 'train.jsonl'}, such as "
            f"{foreign[0]}; give episodes of training questions, as evaluate.py --split train plays them"
        )
    several = [
        Tried(question, samples[name].episode, tuple(candidates[name]))
        for name, question in questions.items()
        if name in samples and name in candidates
    ]
    if not several:
        raise UserError(f"{options.played} has no question that both {FIRST} and {options.system} have played")
    return several


def choose(
    tried: Tried, functions: Mapping[str, RewardFunction], weights: Sequence[float], vetting: Vetting
) -> tuple[Episode | None, str]:
    """(the episode to keep, or None; why)."""
    first, *candidates = rewarded(tried, functions, weights)
    fit = [is_fit(episode, tried.question, vetting) for episode in candidates]
    place = best(first.reward, [episode.reward for episode in candidates], fit)
    return (None, NOT_BETTER if any(fit) else UNFIT) if place is None else (candidates[place], KEPT)


def rewarded(tried: Tried, functions: Mapping[str, RewardFunction], weights: Sequence[float]) -> list[Episode]:
    """The first sample and the candidates with their rewards."""
    episodes = [tried.first, *tried.candidates]
    rewards_NR = reward_matrix(functions, episodes, [tried.question] * len(episodes))
    return scored(episodes, list(functions), rewards_NR, combine_rewards(rewards_NR, "uniform", weights))


def is_fit(episode: Episode, question: Question, vetting: Vetting) -> bool:
    """Well-formed, with a chunk among its own hits that answers the question."""
    found = set(episode.hits) & set(question.relevant_chunk_ids)
    return bool(found) and not is_fused(episode) and not vetting.malformed(episode)


def best(first: float, rewards: Sequence[float], fit: Sequence[bool]) -> int | None:
    """The place of the fit candidate with the highest reward, the first of equal ones; None if none beats `first`.

    A lead that rounding could have made is none: the same answer may be embedded in two batches. Example: beside a
    first sample of .5, of rewards (.9, .7, .7), the first one unfit, the second candidate is kept.
    """
    better = [place for place, reward in enumerate(rewards) if fit[place] and reward > first + ROUNDING]
    return max(better, key=lambda place: rewards[place], default=None)


if __name__ == "__main__":
    run_script(main, __doc__)
