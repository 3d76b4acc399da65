"""Selection: of each training question the best episode that was played, as a file for sft_train.py to imitate.

    python evaluate.py --data data --policy models/warm --systems single best_of:8 --split train --output-dir runs/e
    python -m forage.testtime.selection runs/e/episodes/warm/best_of_8 --beat runs/e/episodes/warm/single --data data \\
        --policy models/warm --out best.jsonl
    python sft_train.py --policy models/warm --num-demonstrations 0 --demonstrations best.jsonl \\
        --output-dir models/better

Expert iteration, as in https://arxiv.org/abs/1705.08439 and STaR, https://arxiv.org/abs/2203.14465: a search makes
better episodes than the policy, and the policy learns to do without the search. self_evolve.py runs it in each round.

Kept is the episode of the highest reward among those that are well-formed and found a chunk with the answer, if its
reward is higher than that of the policy's first sample (--beat): what the policy says by
itself it need not learn. Rewards are those of get_reward_functions in grpo_rollout.py, computed anew.

A prompt that a strategy changed (critiques, revisions) is replaced by the question's plain prompt, so the policy learns
to say without the hint what it said with it; the log-probabilities belong to the other prompt, so they become 0, as the
teacher's are. Tokens that a strategy forced have mask 0 and are not learnt, but what the policy said after them is.

Where it doesn't help: with a reward that the policy can earn without answering; in many rounds, each of which narrows
what the policy does; and a policy whose first sample is nearly always the best leaves little to learn from.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from forage.agent.combination import (
    ROUNDING,
    MakeRewards,
    RewardFunction,
    combine_rewards,
    reward_matrix,
    rewards_of,
    scored,
)
from forage.agent.episode import Episode, Turn, write_episodes
from forage.agent.options import AgentSettings, SearchOptions
from forage.agent.protocol import Protocol
from forage.agent.searcher import Searcher
from forage.agent.tools import SCRIPT
from forage.agent.vetting import Vetting
from forage.arguments import POSITIONAL
from forage.cli import run_script
from forage.data.records import Question
from forage.errors import UserError
from forage.outputs import check_apart
from forage.policy.card import read_policy_card
from forage.policy.policy import load_tokenizer
from forage.rollout.agreement import open_embedder
from forage.store.opening import card_at, open_place
from forage.store.options import StorePlace
from forage.testtime.examples import Played, read_played

CAUSES = KEPT, NOT_BETTER, UNFIT = "kept", "not good enough", "without a fit episode"


@dataclass(frozen=True)
class Options:
    """The selection."""

    files: Annotated[tuple[Path, ...], POSITIONAL]
    """Files of episodes, or folders of such files, of training questions only."""
    beat: Path | None = None
    """The same of the system `single`: only what is better than that is kept, of questions that it played."""
    data: Path = Path("data")
    """Folder that data_prep.py wrote."""
    policy: Path = Path("models/warm")
    """Policy that will learn from the episodes; its tokenizer is needed."""
    out: Path = Path("best.jsonl")
    """File to write."""
    search: SearchOptions = field(default_factory=SearchOptions)
    place: StorePlace = field(default_factory=StorePlace)


def main(options: Options) -> None:
    options.place.check()
    reads: dict[str, Path | str | None] = {"--data": options.data, "--policy": options.policy, "--beat": options.beat}
    check_apart("--out", options.out, reads | {str(path): path for path in options.files})
    settings = options.search.settle(options.policy)
    protocol = Protocol.playing(load_tokenizer(read_policy_card(options.policy)), settings)
    several = read_played(options.files, options.data, protocol)
    samples = read_played([options.beat], options.data, protocol) if options.beat else []
    first = {played.question.id: played.episodes[0] for played in samples}
    several = [played for played in several if played.question.id in first or not options.beat]
    functions = open_rewards(options.place, options.data, settings)
    vetting = Vetting.over(options.data, protocol, settings)
    found = [(one.question, *choose(one, first.get(one.question.id), functions, vetting)) for one in several]
    counts = Counter(cause for _, _, cause in found)
    counted = f"of {len(several)} questions, " + ", ".join(f"{counts[name]} {name}" for name in CAUSES)
    kept = [demonstration(episode, question, protocol) for question, episode, _ in found if episode]
    if not kept:
        raise UserError(f"no episode to learn from: {counted}; play more questions, or at a higher --temperature")
    write_episodes(options.out, kept)
    print(f"{options.out}: {counted}")


def open_rewards(place: StorePlace, data: Path, settings: AgentSettings) -> Mapping[str, RewardFunction]:
    """Those of get_reward_functions in grpo_rollout.py, over this store."""
    make: MakeRewards = importlib.import_module(SCRIPT).get_reward_functions
    return rewards_of(make, open_embedder(card_at(place, data)[0]), Searcher(lambda: open_place(place, data), settings))


def choose(
    played: Played, first: Episode | None, functions: Mapping[str, RewardFunction], vetting: Vetting
) -> tuple[Episode | None, str]:
    """(the episode to keep, or None; why)."""
    episodes = [*played.episodes, *([first] if first else [])]
    rewards_NR = reward_matrix(functions, episodes, [played.question] * len(episodes))
    rewarded = scored(episodes, list(functions), rewards_NR, combine_rewards(rewards_NR))
    candidates = rewarded[: len(played.episodes)]
    fit = [is_fit(episode, played.question, vetting) for episode in candidates]
    # A lead over the first sample that rounding could have made is none: an answer may be embedded in two batches.
    least = rewarded[-1].reward + ROUNDING if first else 0.0
    place = best([episode.reward for episode in candidates], fit, least)
    return (None, NOT_BETTER if any(fit) else UNFIT) if place is None else (candidates[place], KEPT)


def is_fit(episode: Episode, question: Question, vetting: Vetting) -> bool:
    """Well-formed, with a chunk among its hits that answers the question."""
    return bool(set(episode.hits) & set(question.relevant_chunk_ids)) and not vetting.malformed(episode)


def best(rewards: Sequence[float], fit: Sequence[bool], least: float) -> int | None:
    """The place of the fit candidate with the highest reward, the first of equal ones; None if none is good enough.

    Example: of rewards (.9, .7, .7), the first one unfit, the second candidate is the best.
    """
    good = [place for place, reward in enumerate(rewards) if fit[place] and reward >= least]
    return max(good, key=lambda place: rewards[place], default=None)


def demonstration(episode: Episode, question: Question, protocol: Protocol) -> Episode:
    """The episode with its question's plain prompt.

    Example: plain prompt p, changed prompt p h: ids p h s t with turn (2, 4) become p s t with turn (1, 3).
    """
    prompt = tuple(protocol.prompt(question.question))
    if episode.ids[: len(prompt)] == prompt:
        return episode
    start = episode.turns[0].start
    shift = len(prompt) - start
    ids, mask = prompt + episode.ids[start:], (0,) * len(prompt) + episode.mask[start:]
    turns = tuple(Turn(turn.start + shift, turn.end + shift, turn.faults) for turn in episode.turns)
    transcript = protocol.tokenizer.decode(ids)
    return replace(episode, ids=ids, mask=mask, logprobs=(0.0,) * len(ids), turns=turns, transcript=transcript)


if __name__ == "__main__":
    run_script(main, __doc__)
