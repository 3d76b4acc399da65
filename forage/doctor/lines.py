"""Lines of the doctor's report. Nothing but the standard library here: it works where no package does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from forage.errors import UserError

State = Literal["ok", "choice", "missing", "problem"]
BAD: tuple[State, ...] = ("missing", "problem")
GIB = 2**30


@dataclass(frozen=True)
class Line:
    """One thing found on this machine."""

    state: State
    """choice: what a script will pick where nothing is said. problem: it is there and can't be used as it is."""
    what: str
    why: str = ""
    command: str = ""
    """What mends it, or chooses otherwise."""
    needed: bool = False
    """The basic path (make demo's stages with the defaults) needs it."""
    figures: Mapping[str, object] = field(default_factory=dict)
    """For programs that read the report."""

    @property
    def fails(self) -> bool:
        return self.needed and self.state in BAD


Report = dict[str, list[Line]]  # by the name of the group


def refused(what: str, error: UserError) -> Line:
    """What the scripts would refuse, in their words. It was asked for by an option, so it is needed."""
    return Line("problem", what, str(error), needed=True)


def gib(size: float) -> str:
    """Example: 1610612736 bytes are "1.5 GiB"."""
    return f"{size / GIB:,.1f} GiB"
