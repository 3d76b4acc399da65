"""Aside: asks the policy something outside its episodes, such as a critique, in a conversation without tools."""

from __future__ import annotations

from dataclasses import dataclass

from forage.agent.agent import Agent, turn_seed
from forage.agent.prompts import prompt_tokens
from forage.engines.base import EngineError, Request


@dataclass(frozen=True, slots=True)
class Aside:
    """The reply, and what it cost."""

    text: str = ""
    """One line without tags; empty if the engine gave up."""
    sampled: int = 0
    read: int = 0
    searches: int = 0
    """Searches made with the reply."""


async def ask(agent: Agent, name: str, instruction: str, text: str, tokens: int, seed: int) -> Aside:
    """The policy's reply of at most `tokens` tokens; `name` must differ from those of the episodes being played.

    Neither the text nor the reply can forge a turn: control tokens and tags in them are made harmless.
    """
    protocol = agent.protocol
    ids = tuple(prompt_tokens(protocol.tokenizer, instruction, protocol.harmless(text)))
    request = Request(ids, tokens, protocol.stop_ids, turn_seed(seed, name, 0), agent.sampling, name)
    try:
        sampled = await agent.reply(request)
    except EngineError:  # the strategy continues without the reply
        return Aside()
    return Aside(protocol.harmless(protocol.text(sampled.ids)), len(sampled.ids), len(ids))
