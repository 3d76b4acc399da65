"""Aside: asks the policy something outside its episodes, such as a critique, in a conversation without tools."""

from __future__ import annotations

from dataclasses import dataclass

from forage.agent.agent import Agent, turn_seed
from forage.agent.prompts import prompt_tokens
from forage.engines.base import Request


@dataclass(frozen=True, slots=True)
class Aside:
    """The reply, and what it cost."""

    text: str = ""
    """One line without tags."""
    sampled: int = 0
    read: int = 0


NOTHING = Aside()


async def ask(agent: Agent, name: str, instruction: str, text: str, tokens: int, seed: int) -> Aside:
    """The policy's reply of at most `tokens` tokens; `name` must differ from those of the episodes being played.

    Raises EngineError if the engine gave up. Neither the text nor the reply can forge a turn: their control tokens and
    tags are made harmless.
    """
    protocol = agent.protocol
    ids = tuple(prompt_tokens(protocol.tokenizer, instruction, protocol.harmless(text)))
    request = Request(ids, tokens, protocol.stop_ids, turn_seed(seed, name, 0), agent.sampling, name)
    sampled = await agent.reply(request)
    return Aside(protocol.harmless(protocol.text(sampled.ids)), len(sampled.ids), len(ids))
