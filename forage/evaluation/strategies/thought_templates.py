"""Thought templates: what worked for questions of a kind in training, shown before a question of that kind.

    python -m forage.evaluation.strategies.thought_templates runs/a --data data --out templates.jsonl

ReasonFlux, https://arxiv.org/abs/2502.06772: a library of templates, retrieved for a problem and filled in. Ours are
distilled from a run's well-rewarded, well-formed episodes on training questions: the shape of the question and of the
queries that worked, the question's focus replaced by a slot. Example:

    What are the symptoms of [topic]?  ->  [topic] symptoms

A question is served by the templates whose shape it has, their queries filled in with what stands in the slot; else by
those whose shape shares most of its words (BM25), the slot left open.

Simplified: ReasonFlux writes its templates by a large model and trains, by reinforcement learning on trajectories of
templates, how to plan with several of them; here they are counted, and one kind of step is all there is. Focus and
type of a question are used to build the library only; of the question that is asked, nothing but its text is.

Where it does not help: a policy trained on these questions has learnt their queries already, and a hint is a prompt it
never saw. Questions without a focus in the data leave no template. A policy that copies the hint's query finds what
the template finds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from forage.agent.agent import Agent
from forage.agent.episode import Episode, read_episodes
from forage.cli import run_script
from forage.data.records import Question, read_questions
from forage.errors import UserError, check_at_least_one
from forage.evaluation.outcomes import Outcome
from forage.files import json_lines, write_jsonl
from forage.store.bm25 import BM25
from forage.store.bm25 import Tokenizer as Words

SLOT = "[topic]"


@dataclass(frozen=True)
class Template:
    """A kind of question and the searches that answered it."""

    kind: str
    """The questions' type in the data."""
    question: str
    """Its shape, the focus replaced by the slot."""
    queries: tuple[str, ...]
    """One after the other, with the slot."""
    episodes: int
    """How many it was distilled from."""
    reward: float
    """Their mean reward."""

    @property
    def worth(self) -> float:
        """The mean as if one more episode had failed: one that worked once is not the best. Example: 1 of 1 is .5."""
        return self.reward * self.episodes / (self.episodes + 1)


@dataclass(frozen=True)
class ThoughtTemplates:
    """A strategy. Example: await ThoughtTemplates(read_templates(path))(agent, question, seed)."""

    library: tuple[Template, ...]
    shown: int = 1

    def __post_init__(self) -> None:
        check_at_least_one(self, "shown")

    async def __call__(self, agent: Agent, question: Question, seed: int) -> Outcome:
        text = question.question
        hints = [hint(template, text) for template in retrieved(self.library, text, self.shown)]
        episode = await agent.play(question, 0, seed, asked=" ".join([text, *hints]))
        return Outcome(episode, (episode,))


# Retrieval


def retrieved(library: Sequence[Template], question: str, most: int) -> list[Template]:
    """Those of the question's shape, the longest shape and then the worthiest first; else those nearest by words.

    BM25 finds nothing among one or two shapes: it gives words that half of all texts have no weight.
    """
    fitting = [template for template in library if topic_of(template.question, question)]
    if fitting:
        return sorted(fitting, key=lambda template: (-len(template.question), -template.worth))[:most]
    shapes_there, words = list(dict.fromkeys(template.question for template in library)), Words()
    if not shapes_there:
        return []
    ranking = BM25.build([words(shape.replace(SLOT, " ")) for shape in shapes_there]).rank(words(question), most)
    places = {shapes_there[number]: place for place, number in enumerate(ranking.ids)}
    near = [template for template in library if template.question in places]
    return sorted(near, key=lambda template: (places[template.question], -template.worth))[:most]


def topic_of(shape: str, question: str) -> str:
    """What stands in a shape's slot; empty where the question has another shape.

    Example: "What causes [topic]?" and "what causes  gout ?" give "gout".
    """
    before, after = (r"\s+".join(map(re.escape, part.split())) for part in _parts(shape))
    found = re.fullmatch(rf"\s*{before}\s*(.+?)\s*{after}\s*", question, re.IGNORECASE)
    return found[1] if found else ""


def _parts(shape: str) -> tuple[str, str]:
    before, _, after = shape.partition(SLOT)
    return before, after


def hint(template: Template, question: str) -> str:
    """What a template says to the policy."""
    topic = topic_of(template.question, question)
    queries = [query.replace(SLOT, topic) if topic else query for query in template.queries]
    listed = ", then ".join(f'"{query}"' for query in queries)
    if topic:
        return f"Hint: for questions like this one, searching for {listed} and answering by what it finds worked."
    like = f'for "{template.question}", searching for {listed} and answering by what it finds worked'
    return f"Hint: {like}; {SLOT} stands for what the question is about."


# The library


def build_library(
    episodes: Iterable[Episode], questions: Sequence[Question], least_reward: float, least_episodes: int
) -> list[Template]:
    """Templates of well-formed episodes of at least that reward, each of at least so many; the worthiest first."""
    by_id = {question.id: question for question in questions}
    rewards: dict[tuple[str, str, tuple[str, ...]], list[float]] = {}
    for episode in episodes:
        question = by_id.get(episode.question_id)
        if question and episode.well_formed and episode.reward >= least_reward:
            shape, queries = shapes(question, episode)
            if shape.count(SLOT) == 1 and all(SLOT in query for query in queries):
                rewards.setdefault((question.question_type, shape, queries), []).append(episode.reward)
    templates = [
        Template(*key, len(several), sum(several) / len(several))
        for key, several in rewards.items()
        if len(several) >= least_episodes
    ]
    return sorted(templates, key=lambda template: (-template.worth, template.question, template.queries))


def shapes(question: Question, episode: Episode) -> tuple[str, tuple[str, ...]]:
    """The question's and its queries' shapes. Example: "Causes of gout?", focus "Gout": "Causes of [topic]?"."""
    queries = tuple(slotted(search.query, question.focus) for search in episode.searches)
    return slotted(question.question, question.focus), queries


def slotted(text: str, focus: str) -> str:
    """A text with the slot in the place of the focus, whole words in any case."""
    words = r"\s+".join(map(re.escape, focus.split()))
    return re.sub(rf"(?<!\w){words}(?!\w)", lambda _: SLOT, " ".join(text.split()), flags=re.I) if words else text


def read_templates(path: Path) -> tuple[Template, ...]:
    templates = []
    for number, row in json_lines(path):
        try:
            templates.append(Template(**row | {"queries": tuple(row["queries"])}))
        except (TypeError, KeyError) as error:
            raise UserError(f"{path}:{number}: no template ({error}); build the library again") from error
    return tuple(templates)


@dataclass(frozen=True)
class Options:
    """Which episodes the library is made of."""

    run_dir: Annotated[Path, tyro.conf.Positional]
    """Run folder of grpo_train.py."""
    data: Path = Path("data")
    """Folder that data_prep.py wrote: its train.jsonl says each question's focus. Others' episodes are left out."""
    out: Path = Path("templates.jsonl")
    """The library."""
    least_reward: float = 0.5
    """Least reward of an episode that is learnt from."""
    least_episodes: int = 2
    """Least number of episodes behind a template."""


def main(options: Options) -> None:
    check_at_least_one(options, "least_episodes")
    files = sorted((options.run_dir / "episodes").glob("*/*.jsonl"))
    if not files:
        raise UserError(f"{options.run_dir}/episodes has no episodes; give the --run-dir of a training run")
    episodes = (episode for file in files for episode in read_episodes(file))
    questions = read_questions(options.data / "train.jsonl")
    library = build_library(episodes, questions, options.least_reward, options.least_episodes)
    if not library:
        raise UserError(f"no episode of {options.run_dir} gives a template; lower --least-reward or --least-episodes")
    print(f"{write_jsonl(options.out, library)} templates in {options.out}; the worthiest:")
    for template in library[:5]:
        print(f"  {template.question} -> {', '.join(template.queries)} ({template.reward:.2f}, {template.episodes})")


if __name__ == "__main__":
    run_script(main, description=__doc__)
