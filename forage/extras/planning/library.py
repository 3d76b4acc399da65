"""Distils the library of query templates that a policy plans with (forage/extras/planning/tool.py).

    python -m forage.extras.planning.library runs/a --data data --out library.jsonl

Reads the episodes of a run, and the focus (subject) and type of their questions in --data/train.jsonl. Episodes of
other questions are skipped. Writes one template per line: a name, the query with a slot for the focus, the number of
episodes that searched for it, and its mean reward in them.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from forage.agent.episode import Episode, episode_files, episodes_in
from forage.arguments import POSITIONAL, run_script
from forage.data.records import Question
from forage.data.splits import read_train
from forage.errors import UserError, check_at_least_one
from forage.extras.planning.tool import SLOT
from forage.files import check_apart, write_jsonl
from forage.manifest import file_digest, flat, read_manifest
from forage.text import IDLE, say, whole_words, words_of


@dataclass(frozen=True)
class Options:
    """The library of query templates."""

    run_dir: Annotated[Path, POSITIONAL]
    """Run folder of grpo_train.py."""
    data: Path = Path("data")
    """Folder that data_prep.py wrote."""
    out: Path = Path("library.jsonl")
    """File to write."""
    most: int = 12
    """Maximum number of templates. Each one's name is part of every prompt."""


MIN_EPISODES = 2  # behind a template

Earned = Mapping[str, Sequence[float]]
"""What a query shape earned in each episode, by kind of question."""


def main(options: Options) -> None:
    check_at_least_one(options, "most")
    check_apart("--out", options.out, {"--data": options.data / "train.jsonl"})
    # Episodes name their questions by id alone.
    path, train = options.run_dir / "run.json", options.data / "train.jsonl"
    run = flat(read_manifest(path, "put it back")) if path.exists() else {}
    if run.get("data.train", file_digest(train)) != file_digest(train):
        raise UserError(f"{train} has other questions than {options.run_dir} was trained on; give the run's --data")
    questions = read_train(options.data)
    wordings, earned = merged(earnings(played_in(options.run_dir), questions))
    known = {name: rewards for name, rewards in earned.items() if len(all_of(rewards)) >= MIN_EPISODES}
    names = cover(known, shares_of(questions), options.most)
    if not names:
        raise UserError(
            f"no query of {options.run_dir} gives a template; give a run whose queries found "
            "something and whose questions have a focus in train.jsonl"
        )
    print(f"{len(names)} templates in {options.out}, the most useful first:")
    rows = []
    for name in names:
        [(query, _)], rewards = wordings[name].most_common(1), all_of(known[name])
        rows.append({"name": name, "query": query, "episodes": len(rewards), "reward": sum(rewards) / len(rewards)})
        say(f"  {name}: {query} ({rows[-1]['reward']:.2f}, {len(rewards)})")
    write_jsonl(options.out, rows)


def all_of(earned: Earned) -> list[float]:
    return [each for several in earned.values() for each in several]


def played_in(run_dir: Path) -> Iterator[Episode]:
    """All episodes of a run."""
    steps = [step for step in sorted((run_dir / "episodes").glob("*/")) if episode_files(step)]
    if not steps:
        raise UserError(f"{run_dir}/episodes has no episodes; give the --run-dir of a training run")
    for step in steps:
        yield from episodes_in(step)


def earnings(episodes: Iterable[Episode], questions: Sequence[Question]) -> Iterator[tuple[str, str, float]]:
    """(query shape, kind of question, what it earned) for each query shape of a well-formed episode.

    A query that did not find the answer earned nothing; one that did earned the episode's reward. Where it is not known
    which chunks answer, all queries of the episode earned its reward.
    """
    by_id = {question.id: question for question in questions}
    for episode in episodes:
        question = by_id.get(episode.question_id)
        answers = set(question.relevant_chunk_ids) if question else set()
        if not question or not question.focus or not episode.well_formed:
            continue
        earned: dict[str, float] = {}
        for search in episode.searches:
            found = not answers or not answers.isdisjoint(search.hits)
            shape = slotted(search.query, question.focus)
            earned[shape] = max(earned.get(shape, 0.0), episode.reward if found else 0.0)
        yield from ((shape, kind_of(question), reward) for shape, reward in earned.items() if SLOT in shape)


def slotted(text: str, focus: str) -> str:
    """A text with the slot in place of the focus, matched as whole words in any case."""
    words = whole_words(focus)
    return re.sub(words, lambda _: SLOT, " ".join(text.split()), flags=re.I) if words else text


def kind_of(question: Question) -> str:
    """The question's type in the data; where it has none, its shape."""
    return question.question_type or slotted(question.question, question.focus)


def shares_of(questions: Sequence[Question]) -> dict[str, float]:
    """The share of each kind among the questions that have a focus."""
    kinds = Counter(kind_of(question) for question in questions if question.focus)
    return {kind: count / kinds.total() for kind, count in kinds.items()}


def merged(earned: Iterable[tuple[str, str, float]]) -> tuple[dict[str, Counter[str]], dict[str, Earned]]:
    """How often each wording was used, and what was earned, by name: shapes of the same telling words are one.

    Example: "symptoms of [topic]" and "[Topic] Symptoms" are "symptoms"; "[topic]" alone is "topic".
    """
    wordings: dict[str, Counter[str]] = defaultdict(Counter)
    rewards: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for shape, kind, reward in earned:
        name = "_".join(telling(shape)) or "topic"
        wordings[name][shape] += 1
        rewards[name][kind].append(reward)
    return wordings, dict(rewards)


def telling(shape: str) -> list[str]:
    """The words of a query beside its slot and idle ones. Example: "Signs of [topic]" gives "signs"."""
    return [word for word in words_of(shape.replace(SLOT, " ")) if word not in IDLE]


def cover(shapes: Mapping[str, Earned], shares: Mapping[str, float], most: int) -> list[str]:
    """Shapes chosen one by one, each the one that adds most to what the best template for each kind is worth.

    The best dozen by reward might all be for the same easy kind of question. Example: kinds a and b with equal shares;
    x is worth .8 for a, y .7 for a, z .2 for b. First comes x (+.4), then z (+.1); y adds nothing to x and is left out.
    """
    best, chosen = dict.fromkeys(shares, 0.0), list[str]()

    def gain(shape: str) -> float:
        return sum(share * max(0.0, worth(shapes[shape], kind) - best[kind]) for kind, share in shares.items())

    while shapes and len(chosen) < most and gain(next_one := max(sorted(shapes), key=gain)) > 0:
        chosen.append(next_one)
        best = {kind: max(value, worth(shapes[next_one], kind)) for kind, value in best.items()}
    return chosen


def worth(earned: Earned, kind: str) -> float:
    """The mean for a kind as if one more episode had failed. Example: 1 and .5 give 1.5 / 3 = .5; none gives 0."""
    rewards = earned.get(kind, ())
    return sum(rewards) / (len(rewards) + 1)


if __name__ == "__main__":
    run_script(main, __doc__)
