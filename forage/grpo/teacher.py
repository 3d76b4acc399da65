"""Teacher: marks the tokens that the policy sampled by how likely they are to itself.

On-policy distillation: the policy plays, and each of its tokens gains log p_teacher - log p_policy beside its episode's
advantage. In expectation this lowers, token by token, the KL divergence from policy to teacher in the contexts that the
policy reaches. A token of a tool is never marked. https://arxiv.org/abs/2306.13649
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from forage.agent.episode import Episode, Segment
from forage.agent.options import AgentSettings
from forage.agent.protocol import Protocol
from forage.agent.tools import SCRIPT, own_agent
from forage.data.records import Question
from forage.engines.base import EngineOptions
from forage.engines.vllm import VLLMEngine
from forage.errors import UserError
from forage.grpo.learner import TEACHER, Learner
from forage.grpo.options import HINT
from forage.policy.adapters import newest_adapter, undamaged
from forage.policy.base_models import same_base
from forage.policy.manifest import PolicyManifest, read_policy_manifest
from forage.policy.packing import Row, TokenBatch, Tokens, needed, pack, pack_trees
from forage.processes import first_alone
from forage.rollout.options import RolloutOptions

PROBE = "Wo tut's weh? 膝が痛い 🦵 \t x_1 += 3.14;  naïve\n\nØ"  # cut differently by nearly any two tokenizers
GetHints = Callable[[Sequence[Question]], Sequence[str]]


@dataclass(frozen=True)
class Teacher:
    """An adapter that the learner keeps under the name TEACHER, a server, or the policy itself with hints."""

    server: EngineOptions | None = None
    hints: Mapping[str, tuple[Sequence[int], Sequence[int]]] | None = None
    """By question, the prompt that the policy reads and the one with the hint; None of an adapter."""

    def reads(self, episode: Episode | Segment) -> Tokens:
        """What the teacher reads of an episode."""
        if self.hints is None or not isinstance(episode, Episode):
            return episode
        plain, told = self.hints[episode.question_id]
        if tuple(episode.ids[: len(plain)]) != tuple(plain):
            raise UserError(f"episode {episode.id} doesn't begin with the prompt of its question, so it takes no hint")
        return Row((*told, *episode.ids[len(plain) :]), (*[0] * len(told), *episode.mask[len(plain) :]))

    def logprobs(
        self,
        learner: Learner,
        episodes: Sequence[Episode | Segment],
        temperature: float,
        pack: Callable[[Sequence[Tokens]], list[TokenBatch]],
    ) -> Tensor:
        """(N, T) log-probabilities by the teacher, at the places that the tokens have in the episodes."""
        if self.server:
            server, rows = self.server, [tuple(needed(episode)) for episode in episodes]
            scores = first_alone(lambda: asyncio.run(scored(server, rows)))
            longest = max(len(episode.ids) for episode in episodes)
            return torch.tensor([[0.0, *row, *[0.0] * (longest - 1 - len(row))] for row in scores]).to(learner.device)
        read = [self.reads(episode) for episode in episodes]
        told_NT = learner.table(read, temperature, pack, "" if self.hints is not None else TEACHER)
        longer_N = torch.tensor([len(told.ids) - len(own.ids) for told, own in zip(read, episodes, strict=True)])
        places_NT = torch.arange(max(len(episode.ids) for episode in episodes)) + longer_N[:, None]
        return told_NT.gather(1, places_NT.clamp(max=told_NT.shape[1] - 1).to(told_NT.device))

    def states(self, learner: Learner, part: TokenBatch, episodes: Sequence[Episode | Segment]) -> Tensor:
        """(N, D): the teacher's states that predict the sampled tokens of a micro-batch, row by row."""
        if self.hints is None:
            with learner.adapter(TEACHER):
                return learner.states(part)
        numbers = part.sequence_BT[:, 0].tolist()
        told = [self.reads(episodes[number]) for number in numbers]
        [read] = (pack_trees if part.tree else pack)(told, sum(len(row.ids) for row in told) * len(told))
        states_ND = learner.states(read)
        # Of each row the same tokens are sampled, one after another; only the rows stand in another order.
        counts = [int(count) for count in read.predicted_BT.sum(dim=1)]
        by_row = dict(zip(read.sequence_BT[:, 0].tolist(), torch.split(states_ND, counts), strict=True))
        return torch.cat([by_row[row] for row in range(len(numbers))])


def open_teacher(
    name: str,
    rollout: RolloutOptions,
    policy: PolicyManifest,
    settings: AgentSettings,
    questions: Sequence[Question],
    learner: Learner,
) -> Teacher:
    """The teacher that --teacher names."""
    if name != HINT and "://" not in name:
        learner.keep(TEACHER, teacher_adapter(name, policy))
        return Teacher()
    protocol = Protocol.of_policy(policy, settings)
    if name == HINT:
        return Teacher(hints=hinted(questions, protocol))
    if rollout.temperature != 1:
        raise UserError(f"a server scores tokens at temperature 1 alone; leave out --temperature or --teacher {name}")
    server = replace(rollout.engine, urls=(name,))
    first_alone(lambda: asyncio.run(check_tokens(server, protocol)))
    return Teacher(server)


async def scored(server: EngineOptions, rows: Sequence[tuple[int, ...]]) -> list[list[float]]:
    """The log-probability of each token but the first, row by row."""
    async with VLLMEngine(server) as engine:
        return await asyncio.gather(*map(engine.scores, rows))


async def check_tokens(server: EngineOptions, protocol: Protocol) -> None:
    """Refuse a server that cuts text into other tokens than the policy: it would mark what nobody said."""
    probe = protocol.tokenizer.decode(protocol.prompt(PROBE))
    async with VLLMEngine(server) as engine:
        found = await engine.tokens(probe)
    if found != protocol.encode(probe):
        raise UserError(
            f"--teacher {server.urls[0]} has another tokenizer than the policy; serve a model with the same"
        )


def teacher_adapter(name: str, policy: PolicyManifest) -> Path:
    """The adapter of a policy folder, or the folder of one version; refuses one made for another base."""
    folder = Path(name)
    version = folder.parent.name == "adapters"
    theirs = read_policy_manifest(folder.parents[1] if version else folder)
    if not same_base(theirs.full_base, policy.full_base, policy.full_base_digest):
        raise UserError(f"--teacher {name} was made from {theirs.full_base}, not from the policy's {policy.full_base}")
    return undamaged(folder if version else newest_adapter(folder))


def get_hints_named() -> GetHints:
    found: GetHints | None = getattr(importlib.import_module(SCRIPT), "get_hints", None)
    if found is None:
        raise UserError(f"--teacher hint asks get_hints of {SCRIPT}.py, which has none; write one")
    return found


def hinted(questions: Sequence[Question], protocol: Protocol) -> dict[str, tuple[list[int], list[int]]]:
    """By question, its prompt, and the one with what get_hints says of it."""
    if own_agent():
        raise UserError("--teacher hint tells an agent of get_agent nothing, as it makes its own prompts")
    hints = [*get_hints_named()(questions)]
    if len(hints) != len(questions) or not all(isinstance(hint, str) for hint in hints):
        raise UserError(f"get_hints must return a text for each of the {len(questions)} questions")
    return {
        question.id: (protocol.prompt(question.question), protocol.prompt(f"{question.question}\n\n{hint}"))
        for question, hint in zip(questions, hints, strict=True)
    }
