"""Selection: of each training question the best episode that was played, for the next warm start to imitate.

Expert iteration, as in https://arxiv.org/abs/1705.08439 and STaR, https://arxiv.org/abs/2203.14465: a search makes
better episodes than the policy, and the policy learns to do without the search. self_evolve.py runs it in each round.

Kept is the episode of the highest reward among those that are well-formed and found a chunk with the answer, if its
reward is higher than that of the policy's first sample: what the policy says by itself it need not learn. Rewards are
those of get_reward_functions in grpo_rollout.py, computed anew.

A prompt that a strategy changed (critiques, revisions) is replaced by the question's plain prompt, so the policy learns
to say without the hint what it said with it; the log-probabilities belong to the other prompt, so they become 0, as the
teacher's are. Tokens that a strategy forced have mask 0 and are not learnt, but what the policy said after them is.

Where it doesn't help: with a reward that the policy can earn without answering; in many rounds, each of which narrows
what the policy does; and a policy whose first sample is nearly always the best leaves little to learn from.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from forage.agent.episode import Episode, Turn, write_episodes
from forage.agent.options import SearchOptions
from forage.agent.protocol import Protocol
from forage.agent.rewards import ROUNDING, RewardFunction, combine_rewards, reward_matrix, rewards_of, scored
from forage.agent.searcher import Searcher
from forage.agent.tools import SCRIPT
from forage.agent.vetting import Vetting
from forage.data.records import Question
from forage.data.splits import read_train
from forage.errors import UserError
from forage.evaluation.outcomes import OutcomeLog
from forage.policy.card import read_policy_card
from forage.policy.policy import load_tokenizer
from forage.rollout.agreement import open_embedder
from forage.store.opening import card_at, open_place
from forage.store.options import StorePlace


def select(search: OutcomeLog, first: OutcomeLog, data: Path, policy: Path, place: StorePlace, out: Path) -> None:
    """Write what is kept of a search's episodes, beside the first samples that the system `single` played."""
    settings = SearchOptions().settle(policy)
    protocol = Protocol.playing(load_tokenizer(read_policy_card(policy)), settings)
    functions = rewards_of(
        importlib.import_module(SCRIPT).get_reward_functions, open_embedder(card_at(place, data)[0]),
        Searcher(lambda: open_place(place, data), settings),
    )  # fmt: skip
    vetting = Vetting.over(data, protocol, settings)
    outcomes, firsts, kept = search.results(), first.results(), []
    for question in read_train(data):
        if question.id in outcomes:
            fit = [episode for episode in outcomes[question.id].tried if is_fit(episode, question, vetting)]
            if found := best(fit, firsts[question.id].episode, question, functions):
                kept.append(demonstration(found, question, protocol))
    counted = f"{len(kept)} of {len(outcomes)} questions have an episode that is better than the policy's first"
    if not kept:
        raise UserError(f"{counted}; play more questions, or at a higher --temperature")
    write_episodes(out, kept)
    print(f"{out}: {counted}")


def is_fit(episode: Episode, question: Question, vetting: Vetting) -> bool:
    """Well-formed, with a chunk among its hits that answers the question."""
    return bool(set(episode.hits) & set(question.relevant_chunk_ids)) and not vetting.malformed(episode)


def best(
    candidates: Sequence[Episode], first: Episode, question: Question, functions: Mapping[str, RewardFunction]
) -> Episode | None:
    """The candidate with the highest reward, the first of equal ones; None if none beats the first sample."""
    episodes = [*candidates, first]
    rewards_NR = reward_matrix(functions, episodes, [question] * len(episodes))
    *rewarded, last = scored(episodes, list(functions), rewards_NR, combine_rewards(rewards_NR))
    # A lead that rounding could have made is none: an answer may be embedded in two batches.
    better = [episode for episode in rewarded if episode.reward >= last.reward + ROUNDING]
    return max(better, key=lambda episode: episode.reward, default=None)


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
