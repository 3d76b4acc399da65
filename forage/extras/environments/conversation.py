"""Conversation: an episode whose turns come from elsewhere, as text: from another library that trains or evaluates.

Its prompt, how a turn is read, its searches, limits and rewards are those of the agent's own episodes.
docs/recipes/environments.md makes an environment of `verifiers` and one of OpenEnv of it.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import Any

from forage.agent.agent import Agent, EpisodeBuilder, TurnTokens, sample_name
from forage.agent.episode import Episode
from forage.agent.protocol import RESPONSE
from forage.agent.rewards import MakeRewards
from forage.data.records import Question
from forage.data.splits import read_splits
from forage.engines.base import Engine
from forage.errors import UserError
from forage.rollout.options import RolloutOptions
from forage.rollout.rollout import Rollout, open_search, rollout_with
from forage.text import encodable


class Elsewhere(Engine):
    """Samples nothing, as the turns come from elsewhere."""

    adapter = "elsewhere"


def open_environment(options: RolloutOptions, make_rewards: MakeRewards) -> Rollout:
    """The questions, the store and the rewards. Of the policy's folder only the tokenizer and agent.json are read: they
    say how long a passage is, and how the agent searches."""
    options.check()
    settings = options.search.settle(options.policy)
    searched = open_search(options, settings)
    return rollout_with(Elsewhere(), *searched, options, settings, make_rewards, read_splits(options.data))


class Conversation:
    """One episode. Give its `opening` to a model, `take` what it writes, hand it what that returns, until `over`."""

    def __init__(self, environment: Rollout, question: Question) -> None:
        self._environment, self._protocol = environment, environment.protocol
        self._agent = Agent(
            environment.engine, environment.protocol, environment.batched_search, environment.settings,
            tools=environment.tools,
        )  # fmt: skip
        self._episode = self._agent.begin(question, sample_name(question, 0))

    @property
    def opening(self) -> list[dict[str, str]]:
        """The messages that ask the question."""
        return self._protocol.opening(self._protocol.harmless(self._episode.question.question))

    @property
    def tools(self) -> list[dict[str, Any]]:
        """What the chat template is to be given as `tools`; nothing if `opening` tells of them instead."""
        return self._protocol.described_tools if self._protocol.describes_tools else []

    @property
    def over(self) -> bool:
        return bool(self._episode.stop)

    @property
    def turns(self) -> int:
        return len(self._episode.turns)

    async def take(self, text: str, *, cut: bool = False) -> list[str]:
        """Play a turn; returns what its calls answer, or why there is no answer, and nothing once the episode is over.

        `cut` says that the turn was cut off at --max-turn-tokens; one that is longer is cut off here.
        """
        if self.over:
            raise UserError("the episode is over; begin another one (OpenEnv: reset)")

        async def speak(episode: EpisodeBuilder, room: int, seed: int) -> TurnTokens:
            ids = self._protocol.turn_ids(encodable(text))
            whole = not cut and len(ids) <= room
            ids = ids if whole else ids[:-1][:room]
            return TurnTokens(
                tuple(ids), (1,) * len(ids), (0.0,) * len(ids), "stop" if whole else "length", "elsewhere"
            )

        await self._agent.play_turn(self._episode, 0, speak)
        if self.over:
            return []
        return RESPONSE.findall(self._protocol.text(self._episode.ids[self._episode.turns[-1].end :]))

    async def rewarded(self) -> Episode:
        """The episode with its rewards, so far if it is not over."""
        episode = self._episode.so_far(self._protocol)
        if not self._episode.stop and not self._environment.settings.search_only:
            episode = replace(episode, stop="turns")  # an answer is lacking still
        search = self._environment.batched_search
        [rewarded] = await search.in_thread(self._environment.reward, [episode], [self._episode.question])
        return rewarded


def call_text(call: dict[str, Any]) -> str:
    """A chat API's tool call as the protocol's JSON. Arguments that are no JSON stay text, which the loop refuses.

    No < is left in it, so that a query can't end the call or the turn. Example: {"function": {"name": "search",
    "arguments": '{"query": "a <b"}'}} gives '{"name": "search", "arguments": {"query": "a \\u003cb"}}'.
    """
    arguments = call["function"].get("arguments")
    with contextlib.suppress(ValueError, TypeError, RecursionError):
        arguments = json.loads(arguments)
    return json.dumps({"name": call["function"]["name"], "arguments": arguments}).replace("<", "\\u003c")
