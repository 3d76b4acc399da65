"""Policies under evaluation: a model with an adapter or without, whose weights stay the same for an output folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from forage.agent.options import AgentSettings, SearchOptions, same_settings
from forage.engines.base import Engine
from forage.errors import UserError
from forage.policy.adapters import newest_adapter, undamaged
from forage.policy.base_models import resolve_model
from forage.policy.card import PolicyCard, read_policy_card


@dataclass(frozen=True)
class Policy:
    """A model under the name it has in the table."""

    name: str
    folder: Path
    card: PolicyCard
    adapter: Path | None
    """None: a plain model."""

    @property
    def version(self) -> str:
        return self.adapter.name if self.adapter else "base"


def find_policy(name: str, source: str, version: str) -> Policy:
    """A policy folder's adapter (the newest where no version is given), or a plain model."""
    folder = Path(source)
    if (folder / "model.json").is_file():
        adapter = folder / "adapters" / version if version else newest_adapter(folder)
        if not adapter.exists():
            raise UserError(f"{adapter} was removed since {name} was evaluated first; give another --output-dir")
        return Policy(name, folder, read_policy_card(folder), undamaged(adapter))
    base = resolve_model(source)
    return Policy(name, folder, PolicyCard(folder, base, base, quantized=False), None)


def settle_agent(search: SearchOptions, policies: Sequence[Policy]) -> AgentSettings:
    """How all the policies play, as their agent.json says; a difference is an error.

    A plain model has no agent.json: it plays as the first policy that has one.
    """
    folders = [policy.folder for policy in policies]
    return same_settings([(policy.name, search.settle(policy.folder, *folders)) for policy in policies])


async def load_adapter(engine: Engine, policy: Policy) -> None:
    """Load the policy's adapter; a plain model has none."""
    if policy.adapter:
        await engine.load_adapter(f"{policy.name}-{policy.version}", policy.adapter)
