"""Plan trials: which of a library's templates find the answer to a training question, and the plan to imitate."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from forage.agent.agent import SearchMany, searched_for
from forage.agent.builder import Found
from forage.agent.options import AgentSettings
from forage.data.records import Question

FAILS_FIRST, NAMES_TWO = 0.1, 0.1  # shares of the questions


@dataclass(frozen=True)
class Trial:
    """What a template finds for a question."""

    template: str
    hits: Sequence[Found]
    rank: int | None
    """Rank of the first chunk that answers, from 1; None if none was found."""


def try_templates(
    questions: Sequence[Question], settings: AgentSettings, search_many: SearchMany
) -> dict[str, list[Trial]]:
    """By question id, each template tried with the question's topic; none without a topic. One batch of searches."""
    asked = [
        (question, template.name, searched_for(question, template.about(topic), settings.question_weight))
        for question in questions
        if (topic := topic_of(question))
        for template in settings.query_templates
    ]
    distinct = sorted({text for _, _, text in asked})
    found = dict(zip(distinct, search_many(distinct), strict=True)) if distinct else {}
    trials: dict[str, list[Trial]] = {question.id: [] for question in questions}
    for question, name, text in asked:
        trials[question.id].append(Trial(name, found[text], first_relevant(found[text], question)))
    return trials


def topic_of(question: Question) -> str:
    """The question's focus, as the question spells it, so that a policy can learn to copy it.

    Example: "What is gout?" with focus "Gout" gives "gout"; a focus that the question does not say stays as it is.
    """
    focus = " ".join(question.focus.split())
    words = r"\s+".join(map(re.escape, focus.split()))
    said = re.search(rf"(?<!\w){words}(?!\w)", question.question, re.IGNORECASE) if focus else None
    return " ".join(said[0].split()) if said else focus


def choose_plans(
    trials: Sequence[Trial], rank_without: int | None, choose: random.Random, max_calls: int
) -> list[list[Trial]]:
    """The teacher's plans, one per turn; the last one's first template finds the answer.

    None where a query of the teacher's own ranks the answer higher (`rank_without`), or nothing finds it. For a tenth
    of the questions a plan that fails comes first, to show the policy that it may plan again; and for a tenth a plan
    names the two templates that rank the answer highest, where a turn may search twice.
    """
    ranked = {trial.template: trial.rank for trial in trials if trial.rank is not None}
    if not ranked or (rank_without is not None and rank_without < min(ranked.values())):
        return []
    best = choose.choice([trial for trial in trials if trial.rank == min(ranked.values())])
    failing = [trial for trial in trials if trial.rank is None]
    others = sorted((ranked[trial.template], n) for n, trial in enumerate(trials) if trial.rank and trial is not best)
    plan = [best]
    if others and max_calls > 1 and choose.random() < NAMES_TWO:
        plan.append(trials[others[0][1]])
    return [[choose.choice(failing)], plan] if failing and choose.random() < FAILS_FIRST else [plan]


def first_relevant(hits: Iterable[Found], question: Question) -> int | None:
    """Rank, from 1, of the first hit that answers the question."""
    relevant = set(question.relevant_chunk_ids)
    return next((rank for rank, hit in enumerate(hits, 1) if hit.chunk_id in relevant), None)
