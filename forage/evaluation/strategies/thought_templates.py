"""Builds the library of thought templates (templates.py) from the episodes of a training run.

    python -m forage.evaluation.strategies.thought_templates runs/a --data data --out templates.jsonl

Reads the run's episodes and the focus of their questions in --data/train.jsonl; episodes of other questions are left
out. Writes one template per line, the worthiest first: the shape of a question and of the queries that worked, with a
slot in place of the focus. Only well-formed episodes with a reward of at least --min-reward count. Questions without a
focus in the data give no template.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from forage.agent.episode import Episode, episode_files, read_episodes
from forage.arguments import POSITIONAL
from forage.cli import run_script
from forage.data.records import Question
from forage.data.splits import read_train
from forage.errors import UserError, check_at_least_one
from forage.evaluation.strategies.templates import SLOT, Template
from forage.files import write_jsonl
from forage.outputs import check_apart
from forage.text import one_line


@dataclass(frozen=True)
class Options:
    """The template library."""

    run_dir: Annotated[Path, POSITIONAL]
    """Run folder of grpo_train.py."""
    data: Path = Path("data")
    """Folder that data_prep.py wrote."""
    out: Path = Path("templates.jsonl")
    """File to write."""
    min_reward: float = 0.5
    """Lowest reward of an episode that counts."""
    min_episodes: int = 2
    """Lowest number of episodes behind a template."""


def main(options: Options) -> None:
    check_at_least_one(options, "min_episodes")
    check_apart("--out", options.out, {"--data": options.data / "train.jsonl"})
    episodes = played_in(options.run_dir)
    questions = read_train(options.data)
    library = build_library(episodes, questions, options.min_reward, options.min_episodes)
    if not library:
        raise UserError(f"no episode of {options.run_dir} gives a template; lower --min-reward or --min-episodes")
    print(f"{write_jsonl(options.out, library)} templates in {options.out}; the worthiest:")
    for template in library[:5]:
        shown = one_line(f"{template.question} -> {', '.join(template.queries)}")
        print(f"  {shown} ({template.reward:.2f}, {template.episodes})")


def played_in(run_dir: Path) -> Iterator[Episode]:
    """All episodes of a training run, in the order of its steps, or of an evaluation's policies.

    Systems of an evaluation that have samples in common each list them; they count once.
    """
    folders = [step for step in sorted((run_dir / "episodes").glob("*/")) if episode_files(step)]
    if not folders:
        raise UserError(f"{run_dir}/episodes has no episodes; give the --run-dir of a training run")
    return (episode for folder in folders for episode in distinct(folder))


def distinct(folder: Path) -> Iterator[Episode]:
    seen: set[tuple[str, str, tuple[int, ...]]] = set()
    for file in episode_files(folder):
        for episode in read_episodes(file):
            if (key := (episode.question_id, episode.id, tuple(episode.ids))) not in seen:
                seen.add(key)
                yield episode


def build_library(
    episodes: Iterable[Episode], questions: Sequence[Question], min_reward: float, min_episodes: int
) -> list[Template]:
    """The templates of well-formed, rewarded episodes, the worthiest first."""
    by_id = {question.id: question for question in questions}
    rewards: dict[tuple[str, str, tuple[str, ...]], list[float]] = {}
    for episode in episodes:
        question = by_id.get(episode.question_id)
        if question and episode.well_formed and episode.reward >= min_reward:
            shape, queries = shapes(question, episode)
            if shape.count(SLOT) == 1 and all(SLOT in query for query in queries):
                rewards.setdefault((question.question_type, shape, queries), []).append(episode.reward)
    templates = [
        Template(*key, len(several), sum(several) / len(several))
        for key, several in rewards.items()
        if len(several) >= min_episodes
    ]
    return sorted(templates, key=lambda template: (-template.worth, template.question, template.queries))


def shapes(question: Question, episode: Episode) -> tuple[str, tuple[str, ...]]:
    """The shapes of the question and of its queries. Example: "Causes of gout?", focus "Gout": "Causes of [topic]?"."""
    queries = tuple(slotted(search.query, question.focus) for search in episode.searches)
    return slotted(question.question, question.focus), queries


def slotted(text: str, focus: str) -> str:
    """A text with the slot in place of the focus, matched as whole words in any case."""
    words = r"\s+".join(map(re.escape, focus.split()))
    return re.sub(rf"(?<!\w){words}(?!\w)", lambda _: SLOT, " ".join(text.split()), flags=re.I) if words else text


if __name__ == "__main__":
    run_script(main, __doc__)
