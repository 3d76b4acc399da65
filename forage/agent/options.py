"""How the agent plays: options on the command line, and agent.json, which keeps them beside the policy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from forage.agent.planning import PLAN, QueryTemplate, library_of, read_library, told
from forage.agent.prompts import MEDICAL_TASK, TASK
from forage.agent.tools import Spec, chosen_tools, own_tools, specs_of
from forage.errors import UserError, check_at_least_one, check_at_least_zero, flag
from forage.files import replacing
from forage.store.options import Fusion, Mode

AGENT_FILE = "agent.json"
Credit = Literal["episode", "words"]  # what a token answers for (credit.py)
# What policies searched with before it was written down: one task for all, and the best title counted fully.
BEFORE: Mapping[str, Any] = {
    "task": MEDICAL_TASK, "dense_weight": 0.4, "title_weight": 0.5, "title_share": False
}  # fmt: skip
LEAST_THOUGHT = 12  # words with which a thought says something (thoughts.py)
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
    max_query: int = 300
    force_search: bool = False
    task: str = TASK
    dense_weight: float = Fusion.dense_weight
    title_weight: float = Fusion.title_weight
    title_share: bool = Fusion.title_share
    tools: Mapping[str, Spec] = field(default_factory=dict, hash=False)
    query_templates: tuple[QueryTemplate, ...] = ()

    @property
    def fusion(self) -> Fusion:
        """How hybrid search weighs its rankings."""
        return Fusion(dense_weight=self.dense_weight, title_weight=self.title_weight, title_share=self.title_share)

    def check(self) -> None:
        check_at_least_one(self, *COUNTS)
        self.fusion.check()
        if not self.task or "<" in self.task:
            raise UserError(
                f"--task {self.task!r} must be a sentence without tags, such as {TASK!r}; they are explained after it"
            )
        check_at_least_zero(self, "question_weight")
        if self.query_templates and self.force_search:
            raise UserError(
                "--force-search begins the first turn with a search, so no plan can; leave it or --query-templates out"
            )
        if self.query_templates and PLAN in self.tools:
            raise UserError(
                f"--query-templates adds a tool {PLAN!r}, and get_tools has one too; give yours another name"
            )


@dataclass(frozen=True)
class SearchOptions:
    """How the agent searches, and its task. Options left out come from the policy's agent.json (in brackets: a new
    policy's)."""

    mode: Mode | None = None
    """Rank by embeddings (dense), by words (sparse, BM25), or by both (hybrid)."""
    k: int | None = None
    """Passages a search shows (3)."""
    passage_tokens: int | None = None
    """Tokens shown of each passage (64)."""
    question_weight: int | None = None
    """Search for the question, repeated N times (BM25 counts repeats), plus the query; 0: for the query alone (0)."""
    max_turns: int | None = None
    """Most turns of an episode, the one with the answer included; 1: an episode is a search, without an answer (4)."""
    max_turn_tokens: int | None = None
    """Most tokens the policy may sample in one turn (160)."""
    max_tokens: int | None = None
    """Most tokens of an episode, prompt and search results included (2048)."""
    max_calls: int | None = None
    """Most searches in one turn; any more are refused (2)."""
    max_query: int | None = None
    """Most characters of a query; a longer one is refused (300)."""
    force_search: bool | None = None
    """Begin the first turn with a search for the policy, which writes only the query; what is given is not trained on
    (False)."""
    task: str | None = None
    """What the policy is told to do, before "search it first, ..."; decided at the first training, for good
    (Answer the question from a library)."""
    dense_weight: float | None = None
    """With --mode hybrid: weight of the ranking by meaning. The ranking by words gets the rest: 1 less this and
    --title-weight (0.6)."""
    title_weight: float | None = None
    """With --mode hybrid: weight of how well the query's words match the document's title (0.3)."""
    title_share: bool | None = None
    """With --mode hybrid: let a title count by the share of its words that the query says; the ranking by words gets
    the weight that no title earns (True)."""
    tools: tuple[str, ...] | None = None
    """Tools beside search, by their names in get_tools of grpo_rollout.py (all of those)."""
    query_templates: Path | None = None
    """File of query templates, which the policy may name in a plan instead of writing queries (none); decided at the
    first training. python -m forage.evaluation.strategies.template_library writes one."""
    override_agent: bool = False
    """Let these options differ from the policy's agent.json instead of stopping."""

    def settle(self, *folders: Path) -> AgentSettings:
        """The settings in the first folder that has an agent.json, else the defaults, with what was given here.

        What was given may differ from agent.json only with --override-agent: a policy that learnt from three passages
        is another policy with five.
        """
        given = {name: value for name, value in asdict(self).items() if name != "override_agent" and value is not None}
        if self.task is not None:
            given["task"] = as_task(self.task)
        if self.tools is not None:
            given["tools"] = chosen_tools(self.tools)
        if self.query_templates is not None:
            given["query_templates"] = read_library(self.query_templates)
        folder = next((folder for folder in folders if (folder / AGENT_FILE).is_file()), None)
        known = read_agent(folder) if folder else AgentSettings(tools=specs_of(own_tools()))
        differs = next((name for name, value in given.items() if value != getattr(known, name)), None)
        if folder and differs and not self.override_agent:
            option = flag(differs)
            raise UserError(
                f"{option} {quoted(given[differs])}: the policy was trained with {quoted(getattr(known, differs))}, as "
                f"{folder / AGENT_FILE} says; leave {option} out, or give --override-agent"
            )
        settings = replace(known, **given)
        settings.check()
        return settings


@dataclass(frozen=True)
class TeacherOptions:
    """The teacher's demonstrations."""

    answer_tokens: int = 64
    """Most tokens of the teacher's answer, which is made of the reference's sentences that the passage shows."""
    guess_words: int = 0
    """Let the teacher search for the question plus a guess of N words at how its answer begins (as query2doc does), so
    that the policy learns to guess. With --question-weight the query is the guess alone. 0: no guess."""
    guess: Literal["own", "typical", "best", "words"] = "own"
    """The guess: how this answer really begins (own); how most answers to its type of question begin, which finds less
    but is learnt sooner (typical); the common beginning that finds most training answers (best); or words of this
    answer that tell its type of question from others, drawn at random (words)."""
    guess_share: float = 1.0
    """Share of the questions for which the teacher has a guess; for the others it searches as without --guess-words."""
    thought_words: int = 0
    """Let the teacher think before it acts, in at most N words: what the question asks for and what to search for, then
    what a passage says. A thought that does not fit into its turn is shortened. 0: no thoughts."""

    def check(self) -> None:
        check_at_least_one(self, "answer_tokens")
        check_at_least_zero(self, "guess_words")
        if not 0 <= self.guess_share <= 1:
            raise UserError(f"--guess-share {self.guess_share} must lie between 0 and 1")
        if self.thought_words and self.thought_words < LEAST_THOUGHT:
            raise UserError(
                f"--thought-words {self.thought_words} must be at least {LEAST_THOUGHT}, as fewer leave no word for "
                "what a passage says; 0: no thoughts"
            )


def as_task(text: str) -> str:
    """A task as a prompt shows it. Example: " Answer the  question. " gives "Answer the question"."""
    return " ".join(text.split()).rstrip(" .:!")


def quoted(value: object) -> str:
    """A value as the command line takes it, a library in a few words. Example: "a b" gives '"a b"', 3 gives '3'."""
    if isinstance(value, Mapping):
        return " ".join(value) or "none"
    if isinstance(value, tuple):
        return told(value)
    return f'"{value}"' if isinstance(value, str) and " " in value else str(value)


def difference(first: AgentSettings, second: AgentSettings) -> str | None:
    """The first field in which two settings differ."""
    names = (each.name for each in fields(AgentSettings))
    return next((name for name in names if getattr(first, name) != getattr(second, name)), None)


def same_settings(named: Sequence[tuple[str, AgentSettings]]) -> AgentSettings:
    """The settings that all of these policies share; a difference is an error."""
    (first, settings), *others = named
    for other, theirs in others:
        if name := difference(settings, theirs):
            option = flag(name)
            raise UserError(
                f"{first} plays with {option} {quoted(getattr(settings, name))} and {other} with "
                f"{quoted(getattr(theirs, name))}, so "
                f"they can't be compared; give one {option} for both, and --override-agent"
            )
    return settings


def read_agent(folder: Path) -> AgentSettings:
    path = folder / AGENT_FILE
    try:
        row: dict[str, Any] = {**BEFORE, **json.loads(path.read_text())}
        settings = AgentSettings(**row | {"query_templates": library_of(row.get("query_templates", ()))})
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} can't be read ({error}); mend it, or delete it and give its options again") from error
    settings.check()
    return settings


def write_agent(settings: AgentSettings, folder: Path) -> None:
    row = asdict(settings)
    for name in ("tools", "query_templates"):
        if not row[name]:  # as versions without them wrote it
            del row[name]
    with replacing(folder / AGENT_FILE) as file:
        json.dump(row, file, indent=1)
        file.write("\n")
