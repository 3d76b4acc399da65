"""How the agent plays: options on the command line, and agent.json, which keeps them beside the policy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Literal

from forage.agent.prompts import TASK
from forage.agent.tools import Spec, own_tools, specs_of
from forage.errors import UserError, check_at_least_one, flag
from forage.manifest import read_manifest_as, write_manifest
from forage.store.options import Fusion, Mode

AGENT_FILE = "agent.json"
DEPTH = 100  # chunks that a search is judged by, however few are shown
Credit = Literal["episode", "words"]  # what a token answers for (rewards.py)
Window = Literal["start", "query"]  # shown of a passage: its beginning, or from where it answers the query best
COUNTS = ("k", "passage_tokens", "max_turns", "max_turn_tokens", "max_tokens", "max_calls", "max_query")


@dataclass(frozen=True)
class AgentSettings:
    """How an agent searches and when its episode ends. It must be the same in training, in rollout and in use."""

    mode: Mode = "hybrid"
    k: int = 3
    passage_tokens: int = 64
    question_weight: int = 0
    max_turns: int = 4
    max_turn_tokens: int = 160
    max_tokens: int = 2048
    max_calls: int = 2
    """Further searches of a turn are refused."""
    max_query: int = 300
    """Longer queries are refused."""
    force_search: bool = False
    search_first: bool = False
    task: str = TASK
    dense_weight: float = Fusion.dense_weight
    title_weight: float = Fusion.title_weight
    title_share: bool = Fusion.title_share
    """With mode hybrid: score a title by the share of its words that the query contains; any weight that the best
    title doesn't earn goes to the ranking by words."""
    window: Window = "start"
    """Which part of a passage is shown: its beginning, or from where it says most of what the query asks for."""
    tools: Mapping[str, Spec] = field(default_factory=dict, hash=False)

    @property
    def search_only(self) -> bool:
        """Whether the policy has one turn, for a search that it doesn't read."""
        return self.max_turns == 1 + self.search_first

    @property
    def fusion(self) -> Fusion:
        """How hybrid search weighs its rankings."""
        return Fusion(dense_weight=self.dense_weight, title_weight=self.title_weight, title_share=self.title_share)

    def check(self) -> None:
        check_at_least_one(self, *COUNTS)
        self.fusion.check()
        if self.max_turns == self.search_first:
            raise UserError("--search-first writes the only turn of --max-turns 1; give --max-turns 2 or more")
        if not self.task or "<" in self.task:
            raise UserError(
                f"--task {self.task!r} must be a sentence without tags, such as {TASK!r}; they are explained after it"
            )


@dataclass(frozen=True)
class SearchOptions:
    """How the agent searches, and its task. Options left out come from the policy's agent.json (in brackets: the
    defaults of a new policy)."""

    mode: Mode | None = None
    """Rank by embeddings (dense), by words (sparse, BM25), or by both (hybrid)."""
    k: int | None = None
    """Passages shown per search (3)."""
    passage_tokens: int | None = None
    """Tokens shown of each passage (64)."""
    question_weight: int | None = None
    """Search for the question, repeated N times (BM25 counts repeats), plus the query. 0: only the query (0)."""
    max_turns: int | None = None
    """Maximum turns per episode, including the answer. If that leaves the policy one turn (1, or 2 with
    --search-first), an episode ends with its search, without an answer (4)."""
    max_turn_tokens: int | None = None
    """Maximum tokens the policy may sample per turn (160)."""
    max_tokens: int | None = None
    """Maximum tokens per episode, including the prompt and search results (2048)."""
    force_search: bool | None = None
    """Write the beginning of a search call into the policy's first turn, so that it writes only the query. That
    beginning is not trained on (off)."""
    search_first: bool | None = None
    """Search for the question as it is before the policy's first turn. That search counts as a turn, and is not trained
    on (off)."""
    task: str | None = None
    """The task that opens the system prompt, before ": search it first, ...". The first training fixes it for good
    (Answer the question from a library)."""
    dense_weight: float | None = None
    """With --mode hybrid: weight of the ranking by embeddings. The ranking by words gets 1 minus this and
    --title-weight (0.6)."""
    title_weight: float | None = None
    """With --mode hybrid: weight of how well the query's words match the document's title (0.3)."""
    override_agent: bool = False
    """Allow these options to differ from the policy's agent.json, instead of stopping."""

    def settle(self, *folders: Path) -> AgentSettings:
        """The settings in the first folder that has an agent.json, else the defaults, with what was given here.

        What was given may differ from agent.json only with --override-agent: a policy that learnt from three passages
        is another policy with five.
        """
        given = {name: value for name, value in asdict(self).items() if name != "override_agent" and value is not None}
        if self.task is not None:
            given["task"] = " ".join(self.task.split()).rstrip(" .:!")  # " Answer the  question. " loses its ends
        folder = next((folder for folder in folders if (folder / AGENT_FILE).is_file()), None)
        known = read_agent(folder) if folder else AgentSettings(window="query", tools=specs_of(own_tools()))
        differs = next((name for name, value in given.items() if value != getattr(known, name)), None)
        if folder and differs and not self.override_agent:
            option = flag(differs)
            raise UserError(
                f"{option} {quoted(given[differs])}: the policy was trained with {quoted(getattr(known, differs))}, as "
                f"{folder / AGENT_FILE} says; leave {option} out, or give --override-agent"
            )
        if folder and (unknown := ", ".join(sorted(own_tools().keys() - known.tools.keys()))):
            print(f"{folder / AGENT_FILE} fixes the policy's tools; only a new warm start tells it of {unknown}")
        settings = replace(known, **given)
        settings.check()
        return settings


def weights_named(given: Sequence[str]) -> dict[str, float]:
    """What --weights says. Example: ["mrr=3", "format=1"] gives {"mrr": 3, "format": 1}."""
    weights = {}
    for each in given:
        name, _, weight = each.partition("=")
        try:
            weights[name] = float(weight)
        except ValueError:
            weights[name] = math.nan
        if not 0 <= weights[name] < math.inf:
            raise UserError(f"--weights {each}: give a reward's name and a weight of at least 0, such as mrr=2")
    if given and not sum(weights.values()):
        raise UserError(f"--weights {' '.join(given)}: one weight at least must be above 0")
    return weights


def quoted(value: object) -> str:
    """A value as the command line takes it. Example: "a b" gives '"a b"', 3 gives '3'."""
    if isinstance(value, Mapping):
        return " ".join(value) or "none"
    return f'"{value}"' if isinstance(value, str) and " " in value else str(value)


def difference(first: AgentSettings, second: AgentSettings) -> tuple[str, str, str] | None:
    """The first option in which two settings differ, with both values. Example: ("--k", "3", "5")."""
    for each in fields(AgentSettings):
        one, other = getattr(first, each.name), getattr(second, each.name)
        if one != other:
            return flag(each.name), quoted(one), quoted(other)
    return None


def same_settings(named: Sequence[tuple[str, AgentSettings]]) -> AgentSettings:
    """The settings that all of these policies share; a difference is an error."""
    (first, settings), *others = named
    for other, theirs in others:
        if differs := difference(settings, theirs):
            option, own, their = differs
            raise UserError(
                f"{first} plays with {option} {own} and {other} with {their}, so they can't be compared; give one "
                f"{option} for both, and --override-agent"
            )
    return settings


def read_agent(folder: Path) -> AgentSettings:
    way_out = "mend it, or delete it and give its options again"
    settings = read_manifest_as(AgentSettings, folder / AGENT_FILE, way_out)
    settings.check()
    return settings


def write_agent(settings: AgentSettings, folder: Path) -> None:
    write_manifest(folder / AGENT_FILE, asdict(settings))
