"""Aside: something the policy is asked beside its episodes, such as a critique: a conversation without the tool."""

from __future__ import annotations

from dataclasses import dataclass

from forage.agent.agent import Agent, turn_seed
from forage.agent.prompts import prompt_tokens
from forage.engines.base import EngineError, Request


@dataclass(frozen=True, slots=True)
class Aside:
    """What was said, and what it cost."""

    text: str = ""
    """Without tags, one line; empty where the engine gave up."""
    sampled: int = 0
    read: int = 0
    searches: int = 0
    """Made for what was said."""


async def ask(agent: Agent, name: str, instruction: str, text: str, tokens: int, seed: int) -> Aside:
    """The policy's reply of at most so many tokens; `name` is an episode's, unlike any that is being played.

    Text of the policy's or of documents can't forge a turn of this conversation, and the reply none of a later one.
    """
    protocol = agent.protocol
    ids = tuple(prompt_tokens(protocol.tokenizer, instruction, protocol.harmless(text)))
    request = Request(ids, tokens, protocol.stop_ids, turn_seed(seed, name, 0), agent.sampling, name)
    try:
        sampled = await agent.engine.generate(request)
    except EngineError:  # what it was for goes on without
        return Aside()
    finally:
        agent.engine.release(name)
    return Aside(protocol.harmless(protocol.text(sampled.ids)), len(sampled.ids), len(ids))
