"""Player: plays episodes of a policy while it is being trained."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from forage.agent.agent import Agent, BatchedSearch
from forage.agent.builder import Found
from forage.agent.episode import Episode
from forage.agent.options import AgentSettings
from forage.agent.protocol import Protocol
from forage.agent.tools import functions_for
from forage.data.records import Question
from forage.engines.base import Engine, Sampling
from forage.engines.choice import open_local
from forage.engines.local import LocalEngine, borrowing
from forage.policy.adapters import publish_adapter, version_name
from forage.policy.card import PolicyCard
from forage.policy.footprint import Lora
from forage.policy.memory import SLOTS
from forage.policy.policy import load_policy, load_tokenizer
from forage.policy.room import engine_slots
from forage.sft.options import SFTOptions
from forage.store.opening import open_place


class Player:
    """Plays episodes in this process.

    On a GPU it samples with the very policy that is trained: a second base would need its memory again. On a CPU an
    engine of its own samples, which merges the adapter and is faster; it is loaded when it is first needed.
    """

    def __init__(self, options: SFTOptions, settings: AgentSettings, card: PolicyCard) -> None:
        self.options, self.settings, self.card = options, settings, card
        self.protocol = Protocol.playing(load_tokenizer(card), settings)
        self.store = open_place(options.place, options.data)

    @property
    def borrows(self) -> bool:
        return torch.cuda.is_available()

    @cached_property
    def policy(self) -> Any:
        """The policy to train, which begins with the newest adapter of --policy."""
        return load_policy(self.card)

    @cached_property
    def _engine(self) -> LocalEngine:
        return open_local(self.card, SLOTS, self.settings.max_tokens)

    def search(self, queries: Sequence[str]) -> Sequence[Sequence[Found]]:
        return self.store.search(queries, self.settings.k, self.settings.mode, fusion=self.settings.fusion)

    def play(self, version: int, questions: Sequence[Question], seed: int) -> list[Episode]:
        """Episodes of the policy as it is now, which is to be called by that version in them."""
        if not self.borrows:
            with tempfile.TemporaryDirectory(prefix=".probe.", dir=self.options.output_dir) as folder:
                adapter = publish_adapter(self.policy, Path(folder), version)
                asyncio.run(self._engine.load_adapter(adapter.name, adapter))
            return asyncio.run(self._play(self._engine, questions, seed))
        asked, way_out = min(SLOTS, len(questions)), "give a lower --max-tokens, or --eval-questions 0"
        slots = engine_slots(
            self.card, asked, self.settings.max_tokens, lora=Lora(0), merged=False, way_out=way_out
        )  # fmt: skip
        with borrowing(self.policy, slots, version_name(version)) as engine:
            return asyncio.run(self._play(engine, questions, seed))

    async def _play(self, engine: Engine, questions: Sequence[Question], seed: int) -> list[Episode]:
        search = BatchedSearch(self.search)
        tools = functions_for(self.settings.tools)
        agent = Agent(engine, self.protocol, search, self.settings, Sampling(self.options.temperature), tools=tools)
        return await asyncio.gather(*(agent.play(question, 0, seed) for question in questions))
