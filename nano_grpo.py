"""GRPO in one file, to read first: a language model learns to search from the rewards of its own episodes.

    python nano_grpo.py --data data --policy models/warm --output-dir runs/nano

Reads the folders of data_prep.py and sft_train.py; writes each step's episodes, and a policy folder. A step:

    play        sample a group of episodes for each question: a turn, its searches, what they found, the next turn
    reward      score each episode with a few numbers from 0 to 1, and take their mean
    advantages  how much better each episode is than the others of its group
    update      make the sampled tokens of good episodes likelier and those of bad ones less likely

Prompts, rewards and the store are those of grpo_train.py. Log-probabilities, advantages, loss and optimiser step are
written again, as plainly as possible; tests/test_nano_grpo.py checks that the gradients agree. grpo_train.py adds:

    engines        vLLM, or a cache of keys and values from turn to turn; here each turn recomputes its whole episode
    workers        other machines play (grpo_rollout.py --follow), also ahead of the trainer
    micro-batches  many episodes in one pass, shared prompts computed once, never a whole batch's logits in memory
    sharding       several GPUs: ZeRO, FSDP2, sequences split among them
    exact resume   a run killed at any point ends with the same weights; every file appears whole or not at all
    other losses   GSPO, CISPO, Dr. GRPO, RLOO, a KL term, credit for single words
    guards         stop or roll back a run that collapses; evaluations during training, plots, a report, trackers
    the agent      other tools besides search, episodes of a single query, calls that are begun for it (--force-search)

Shapes: N episodes of a step, R rewards, B episodes of a group that go on, T tokens of an episode, V of the vocabulary.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from forage.agent.episode import Episode, Search, Turn, write_episodes
from forage.agent.options import AgentSettings, SearchOptions, write_agent
from forage.agent.protocol import NO_ACTION_TEXT, Call, Protocol, read_turn
from forage.agent.rewards import MakeRewards, rewarded, rewards_of
from forage.agent.searcher import Searcher, searching
from forage.arguments import run_script
from forage.data.records import Question
from forage.data.splits import in_rounds, read_training_questions
from forage.errors import UserError
from forage.files import check_apart
from forage.policy.adapters import publish_adapter
from forage.policy.manifest import read_policy_manifest, write_policy_manifest
from forage.store.opening import Store, open_store
from grpo_rollout import get_reward_functions

if "--help" not in sys.argv:  # which is to come at once, but torch takes seconds to import
    import numpy as np
    import torch
    from torch import Tensor
    from torch.optim import AdamW
    from transformers import GenerationConfig

    from forage.policy.policy import load_policy, load_tokenizer
    from forage.store.embedder import Embedder

CLIP = 0.2  # how far a token's probability may move from where it was at the start of the step: by this factor
CORRECTION_CAP = 2.0  # the most that a token counts for having been sampled with a lower probability than computed
MAX_NORM = 1.0  # the gradient is scaled down to this norm
DEVIATION_FLOOR = 1e-4  # so that rewards that differ by rounding alone don't become advantages of 1 and -1


@dataclass(frozen=True)
class Options:
    """Options."""

    data: Path = Path("data")
    """Folder that data_prep.py wrote."""
    policy: Path = Path("models/warm")
    """Policy folder to start from; its newest adapter is trained."""
    output_dir: Path = Path("runs/nano")
    """Policy folder for the result."""
    max_steps: int = 20
    """Number of steps."""
    batch_size: int = 8
    """Questions per step."""
    num_rollouts: int = 8
    """Episodes per question."""
    epochs: int = 1
    """Updates made from each step's episodes."""
    learning_rate: float = 5e-5
    """Learning rate of AdamW."""
    temperature: float = 1.0
    """Divides the logits, in sampling and in the loss."""
    seed: int = 0
    """Seed for question order and sampling."""


def main(options: Options, make_rewards: MakeRewards = get_reward_functions) -> None:
    check_apart("--output-dir", options.output_dir, {"--data": options.data, "--policy": options.policy})
    manifest, settings = read_policy_manifest(options.policy), SearchOptions().settle(options.policy)
    if settings.tools or settings.max_turns == 1 or settings.force_search or settings.search_first:
        raise UserError(f"{options.policy} was not made to search and then answer; train it with grpo_train.py")
    questions, store = read_training_questions(options.data), open_store(options.data / "store")
    embedder = Embedder() if store.options.embedder == "none" else store.embedder
    functions = rewards_of(make_rewards, embedder, Searcher(lambda: store, settings))
    policy = load_policy(manifest)
    player = Player(policy, Protocol.playing(load_tokenizer(manifest), settings), store, settings, options.temperature)
    optimizer = AdamW([w for w in policy.parameters() if w.requires_grad], options.learning_rate, weight_decay=0.0)
    write_policy_manifest(manifest, options.output_dir)
    write_agent(settings, options.output_dir)

    torch.manual_seed(options.seed)
    for step in range(options.max_steps):
        chosen = in_rounds(questions, step, options.batch_size, options.seed)
        episodes = [episode for question in chosen for episode in play(player, question, options.num_rollouts)]
        episodes = rewarded(functions, episodes, [q for q in chosen for _ in range(options.num_rollouts)])
        advantages_N = advantages([e.reward for e in episodes], [e.question_id for e in episodes])
        norm = update(policy, optimizer, episodes, advantages_N, options)
        write_episodes(options.output_dir / f"episodes_{step:06d}.jsonl", episodes)
        earned = {name: [e.rewards[name] for e in episodes if name in e.rewards] for name in functions}
        means = "  ".join(f"{name} {np.mean(values):.3f}" for name, values in earned.items())
        print(f"step {step}: {means}  gradient {norm:.3f}", flush=True)
    print(f"policy: {publish_adapter(policy, options.output_dir, options.max_steps, overwrite=True)}")


@dataclass(frozen=True)
class Player:
    policy: Any
    protocol: Protocol
    store: Store
    settings: AgentSettings
    temperature: float


def play(player: Player, question: Question, count: int) -> list[Episode]:
    """A question's group of episodes, turn by turn."""
    prompt = player.protocol.prompt(question.question)
    start = Episode("", question.id, (), (), (), turns=(), searches=(), answer="", stop="turns", adapter="nano")
    group = [extended(replace(start, id=f"{question.id}/{number}"), prompt) for number in range(count)]
    for _ in range(player.settings.max_turns):
        going = [number for number, episode in enumerate(group) if episode.stop == "turns"]  # nothing else ended it
        sampled = sample_turns(player, [group[number].ids for number in going]) if going else ()
        for number, (ids, logprobs) in zip(going, sampled, strict=True):
            group[number] = take_turn(player, question, group[number], ids, logprobs)
    return [replace(episode, transcript=player.protocol.tokenizer.decode(episode.ids)) for episode in group]


def extended(episode: Episode, ids: Sequence[int], logprobs: Sequence[float] = ()) -> Episode:
    """With more tokens, never decoded and tokenised again: sampled ones and their log-probabilities, or given ones."""
    mask = [1 if logprobs else 0] * len(ids)
    return replace(
        episode, ids=(*episode.ids, *ids), mask=(*episode.mask, *mask),
        logprobs=(*episode.logprobs, *(logprobs or [0.0] * len(ids))),
    )  # fmt: skip


def sample_turns(player: Player, rows: Sequence[Sequence[int]]) -> Iterator[tuple[list[int], list[float]]]:
    """Each row's next turn: its tokens and their log-probabilities."""
    policy, end, stop_ids = player.policy.eval(), player.protocol.end_of_turn, player.protocol.stop_ids
    # Not the model's own settings, which may cut its distribution off (top_p) or bend it (repetition_penalty).
    policy.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=True, temperature=player.temperature, top_k=0, top_p=1.0, eos_token_id=list(stop_ids),
        pad_token_id=end, max_new_tokens=player.settings.max_turn_tokens, output_scores=True,
        return_dict_in_generate=True,
    )  # fmt: skip
    longest = max(map(len, rows))
    ids_BT = torch.tensor([[end] * (longest - len(row)) + list(row) for row in rows], device=policy.device)
    seen_BT = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=policy.device)
    sampled = policy.generate(input_ids=ids_BT, attention_mask=seen_BT)
    logprobs_BT = policy.compute_transition_scores(sampled.sequences, sampled.scores, normalize_logits=True)
    for ids, logprobs in zip(sampled.sequences[:, longest:].tolist(), logprobs_BT.tolist(), strict=True):
        length = next((place for place, token in enumerate(ids, 1) if token in stop_ids), len(ids))
        yield ids[:length], logprobs[:length]


def take_turn(player: Player, question: Question, episode: Episode, ids: list[int], logprobs: list[float]) -> Episode:
    """The episode with a sampled turn and, if another is to come, what this one's searches found."""
    protocol, settings, start = player.protocol, player.settings, len(episode.ids)
    reading = read_turn(protocol.text(ids), max_calls=settings.max_calls, max_query=settings.max_query)
    faults = (*reading.faults, "control_token") if protocol.forges(ids) else reading.faults
    turns = (*episode.turns, Turn(start, start + len(ids), faults))
    episode = replace(extended(episode, ids, logprobs), turns=turns, answer=reading.answer or "")
    if ids[-1] not in protocol.stop_ids:
        return replace(episode, stop="turn_tokens")
    if reading.answer is not None:
        return replace(episode, stop="answer")
    if len(turns) == settings.max_turns:  # nobody would read what is found
        return episode
    found = [search(player, question, call) for call in reading.calls]
    results = protocol.join([text for text, _ in found] or [f"error: {NO_ACTION_TEXT}"], ids[-1])
    if len(episode.ids) + len(results) + settings.max_turn_tokens > settings.max_tokens:
        return replace(episode, stop="tokens")
    calls = zip(reading.calls, found, strict=True)
    searches = [Search(len(turns) - 1, call.query, hits) for call, (_, hits) in calls if not call.fault]
    return replace(extended(episode, results), searches=(*episode.searches, *searches))


def search(player: Player, question: Question, call: Call) -> tuple[str, tuple[str, ...]]:
    """What the policy reads in answer to a call, and the ids of the chunks that it is shown."""
    if call.fault:
        return f"error: {call.explanation}", ()
    how, query = player.settings, " ".join([question.question] * player.settings.question_weight + [call.query])
    [hits] = searching(player.store, how)([query])
    return player.protocol.show(hits), tuple(h.chunk_id for h in hits)


def advantages(rewards: Sequence[float], groups: Sequence[str]) -> Tensor:
    """(N,) by how many of its group's deviations a reward is above its mean; 0, 0, 1, 1 give -.87, -.87, .87, .87."""
    rewards_N, advantages_N = torch.tensor(rewards, dtype=torch.float64), torch.zeros(len(rewards), dtype=torch.float64)
    for group in set(groups):
        members_N = torch.tensor([name == group for name in groups])
        group_N = rewards_N[members_N]
        if group_N.max() > group_N.min():
            advantages_N[members_N] = (group_N - group_N.mean()) / (group_N.std() + DEVIATION_FLOOR)
    return advantages_N


def update(policy: Any, optimizer: AdamW, episodes: Sequence[Episode], advantages_N: Tensor, options: Options) -> float:
    """Change the policy by the step's episodes. Returns the norm of the last gradient."""
    policy.train()
    old: dict[int, Tensor] = {}
    for _ in range(options.epochs):
        add_gradients(policy, episodes, advantages_N, old, options.temperature)
        norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
    return norm.item()


def add_gradients(
    policy: Any, episodes: Sequence[Episode], advantages_N: Tensor, old: dict[int, Tensor], temperature: float
) -> None:
    """Add the gradients of PPO's clipped loss, a mean over the step's sampled tokens. The first epoch fills `old`."""
    tokens = sum(sum(episode.mask) for episode in episodes)
    for number, (episode, advantage) in enumerate(zip(episodes, advantages_N.tolist(), strict=True)):
        if advantage == 0:  # it has no gradient, but its tokens count in the mean
            continue
        logprobs_T = token_logprobs(policy, episode.ids, temperature)
        old_T = old.setdefault(number, logprobs_T.detach())
        sampler_T, mask_T = torch.tensor([episode.logprobs[1:], episode.mask[1:]], device=policy.device)
        ratio_T = (logprobs_T - old_T).exp()
        # The smaller of the two: clipping may withhold a gain, never a loss.
        gain_T = torch.minimum(ratio_T * advantage, ratio_T.clamp(1 - CLIP, 1 + CLIP) * advantage)
        correction_T = (old_T - sampler_T).exp().clamp(max=CORRECTION_CAP)
        (-(gain_T * correction_T * mask_T).sum() / tokens).backward()


def token_logprobs(policy: Any, ids: Sequence[int], temperature: float) -> Tensor:
    """(T,) log-probability of each token but the first, given those before it."""
    ids_1T = torch.tensor([ids], device=policy.device)
    logits_TV: Tensor = policy(input_ids=ids_1T).logits[0, :-1].float() / temperature
    return logits_TV.log_softmax(-1).gather(1, ids_1T[0, 1:, None])[:, 0]


if __name__ == "__main__":
    run_script(main, __doc__, resumes=False)
