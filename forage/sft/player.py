"""Player: plays episodes of a policy's adapters while it is being trained."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from forage.agent.agent import Agent, BatchedSearch
from forage.agent.builder import Found
from forage.agent.episode import Episode
from forage.agent.options import AgentSettings
from forage.agent.protocol import Protocol
from forage.data.records import Question
from forage.engines.local import LocalEngine
from forage.policy.card import PolicyCard
from forage.policy.policy import load_base, load_tokenizer
from forage.sft.options import SFTOptions
from forage.store.document_store import DocumentStore


class Player:
    """Plays episodes in this process. The engine is loaded when it is first needed."""

    def __init__(self, options: SFTOptions, settings: AgentSettings, card: PolicyCard) -> None:
        self.options, self.settings, self.card = options, settings, card
        self.protocol = Protocol(load_tokenizer(card), settings.passage_tokens, settings.task)
        self.store = DocumentStore.open(options.data / "store")
        self._engine: LocalEngine | None = None

    def search(self, queries: Sequence[str]) -> Sequence[Sequence[Found]]:
        return self.store.search(queries, self.settings.k, self.settings.mode)

    def play(self, adapter: Path, questions: Sequence[Question], samples: int, seed: int) -> list[Episode]:
        return asyncio.run(self._play(adapter, questions, samples, seed))

    async def _play(self, adapter: Path, questions: Sequence[Question], samples: int, seed: int) -> list[Episode]:
        self._engine = self._engine or LocalEngine(load_base(self.card, dequantize=True))
        await self._engine.load_adapter(adapter.name, adapter)
        search = BatchedSearch(self.search)
        agent = Agent(self._engine, self.protocol, search, self.settings, self.options.sampling)
        return await asyncio.gather(*(agent.play(q, sample, seed) for q in questions for sample in range(samples)))
