"""Thought templates: queries that worked for a kind of question in training, shown before a question of that kind.

Paper: ReasonFlux, https://arxiv.org/abs/2502.06772, retrieves templates of a solution from a library for each problem
and fills them in. A large model writes its templates, and it learns by reinforcement learning on trajectories of
templates how to plan with several.

Here: thought_templates.py counts templates in a run's episodes: the shape of the question and of the queries that
worked, with a slot for the question's focus. Example:

    What are the symptoms of [topic]?  ->  [topic] symptoms

A question gets the templates of its own shape, with their queries filled in from its text; if there are none, those
whose shape shares most of its words (BM25), with the slot left open. Only the question's text is used, not its focus or
type.

Left out here: that the policy itself plans with templates, and learns to by reinforcement. A policy that is given a
library does so (forage/planning/tool.py, and library.py, which distils one); this strategy tells any policy
what worked, without training it.

Where it doesn't help: a policy trained on these questions has learnt their queries already, and has never seen a hint
in its prompt. A policy that copies the hint's query finds what the template finds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from forage.agent.agent import Agent
from forage.data.records import Question
from forage.errors import UserError, check_at_least_one
from forage.evaluation.outcomes import Outcome
from forage.files import json_lines
from forage.store.bm25 import BM25
from forage.store.bm25 import Tokenizer as Words

SLOT = "[topic]"


@dataclass(frozen=True)
class Template:
    """A kind of question and the searches that answered it."""

    kind: str
    """The questions' type in the data."""
    question: str
    """The questions' shape, with the slot for their focus."""
    queries: tuple[str, ...]
    """The queries in order, with the slot."""
    episodes: int
    """Number of episodes that searched like this."""
    reward: float
    """Their mean reward."""

    @property
    def worth(self) -> float:
        """The mean as if one more episode had failed, so one lucky episode is not best. Example: 1 of 1 gives .5."""
        return self.reward * self.episodes / (self.episodes + 1)


@dataclass(frozen=True)
class ThoughtTemplates:
    """A strategy. Example: await ThoughtTemplates(read_templates(path))(agent, question, seed)."""

    library: tuple[Template, ...]
    shown: int = 1
    """Templates shown to the policy."""

    def __post_init__(self) -> None:
        check_at_least_one(self, "shown")

    async def __call__(self, agent: Agent, question: Question, seed: int) -> Outcome:
        text = question.question
        hints = [hint(template, text) for template in retrieved(self.library, text, self.shown)]
        episode = await agent.play(question, 0, seed, asked=" ".join([text, *hints]))
        return Outcome(episode, (episode,))


def read_templates(path: Path) -> tuple[Template, ...]:
    templates = []
    for number, row in json_lines(path):
        try:
            templates.append(Template(**row | {"queries": tuple(row["queries"])}))
        except (TypeError, KeyError) as error:
            raise UserError(f"{path}:{number}: not a template ({error}); build the library again") from error
    return tuple(templates)


def retrieved(library: Sequence[Template], question: str, count: int) -> list[Template]:
    """Templates of the question's shape, the longest shape first, then the worthiest; else the nearest by words.

    BM25 finds nothing among one or two shapes, because words that half of all texts contain have no weight.
    """
    fitting = [template for template in library if topic_of(template.question, question)]
    if fitting:
        return sorted(fitting, key=lambda template: (-len(template.question), -template.worth))[:count]
    shapes, words = list(dict.fromkeys(template.question for template in library)), Words()
    if not shapes:
        return []
    ranking = BM25.build([words(shape.replace(SLOT, " ")) for shape in shapes]).rank(words(question), count)
    ranks = {shapes[number]: rank for rank, number in enumerate(ranking.ids)}
    near = [template for template in library if template.question in ranks]
    return sorted(near, key=lambda template: (ranks[template.question], -template.worth))[:count]


def topic_of(shape: str, question: str) -> str:
    """The text in a shape's slot; empty if the question has another shape.

    Example: "What causes [topic]?" and "what causes  gout ?" give "gout".
    """
    start, _, end = shape.partition(SLOT)
    before, after = (r"\s+".join(map(re.escape, part.split())) for part in (start, end))
    found = re.fullmatch(rf"\s*{before}\s*(.+?)\s*{after}\s*", question, re.IGNORECASE)
    return found[1] if found else ""


def hint(template: Template, question: str) -> str:
    """What a template says to the policy."""
    topic = topic_of(template.question, question)
    queries = [query.replace(SLOT, topic) if topic else query for query in template.queries]
    listed = ", then ".join(f'"{query}"' for query in queries)
    if topic:
        return f"Hint: for questions like this one, searching for {listed} and answering by what it finds worked."
    like = f'for "{template.question}", searching for {listed} and answering by what it finds worked'
    return f"Hint: {like}; {SLOT} stands for what the question is about."
