"""How the agent plays."""

from __future__ import annotations

from dataclasses import dataclass

from forage.errors import check_at_least_one


@dataclass(frozen=True)
class Limits:
    """How far an episode may go."""

    max_turns: int = 4
    """Turns of the policy, the answer included."""
    max_turn_tokens: int = 160
    """Tokens the policy may sample in one turn."""
    max_tokens: int = 2048
    """Tokens of a whole episode, prompt and results included."""
    max_calls: int = 2
    """Searches in one turn; further ones are refused."""
    max_query: int = 300
    """Characters of a query."""

    def check(self) -> None:
        check_at_least_one(self, *vars(self))
