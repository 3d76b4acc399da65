"""Distils the library of query templates that a policy plans with (forage/agent/planning.py).

    python -m forage.evaluation.strategies.template_library runs/a --data data --out library.jsonl

Reads the episodes of a run, or those that evaluate.py --split train played, and the focus and type of their questions
in --data/train.jsonl; episodes of other questions are left out. Writes one template per line: a name, the query with a
slot in place of the focus, the number of episodes that searched for it and what it earned in them. Given to
sft_train.py or grpo_train.py by --query-templates, it is what the policy plans with.

Paper: ReasonFlux, https://arxiv.org/abs/2502.06772. A large model writes about 500 thought templates of solutions. A
navigator plans a trajectory of templates for each problem, which it learns from pairs of trajectories, the better being
the one that solves more of the problems like it. At test time another model carries out each step with the template
that was retrieved for it, and the navigator changes the rest of its plan by what came out.

Here: a template is the shape of a query, counted in episodes. One policy plans, reads and answers: its plan is a call
that names templates, in their order, and it may plan again after it has read what they found. As the call's tokens are
its own, GRPO trains the plan on the episode's reward, in place of pairs.

Left out: templates of anything but a search, such as how to read or to answer; retrieval, since a dozen names fit into
the prompt; a second model that carries the plan out, which filling in a slot does not need; and the paper's reward,
which judges a plan by problems like the one at hand.

Where it doesn't help: on questions whose words are the best query already; where questions have no focus, since
nothing says where the slot goes; and no plan finds more than its templates' queries do, so what the run never searched
for can't be planned. The policy may still write queries of its own.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from forage.agent.episode import Episode
from forage.agent.planning import SLOT, library_of
from forage.agent.telling_words import IDLE
from forage.cli import run_script
from forage.data.records import Question
from forage.data.splits import read_train
from forage.errors import UserError, check_at_least_one
from forage.evaluation.strategies.thought_templates import played_in, slotted
from forage.files import write_jsonl
from forage.outputs import check_apart
from forage.text import one_line


@dataclass(frozen=True)
class Options:
    """The library of query templates."""

    run_dir: Annotated[Path, tyro.conf.Positional]
    """Run folder of grpo_train.py, or output folder of evaluate.py --split train."""
    data: Path = Path("data")
    """Folder that data_prep.py wrote."""
    out: Path = Path("library.jsonl")
    """File to write."""
    most: int = 12
    """Most templates of the library: each one's name is part of every prompt."""
    min_episodes: int = 2
    """Lowest number of episodes behind a template."""


@dataclass(frozen=True)
class Distilled:
    """A template as the library lists it."""

    name: str
    query: str
    episodes: int
    reward: float
    """What it earned in them, on average."""


@dataclass(frozen=True)
class Candidate:
    """The shape of a query, and what it earned in each episode, by kind of question."""

    query: str
    earned: Mapping[str, Sequence[float]]

    @property
    def episodes(self) -> int:
        return sum(map(len, self.earned.values()))

    @property
    def reward(self) -> float:
        return sum(map(sum, self.earned.values())) / self.episodes

    def worth(self, kind: str) -> float:
        """The mean for a kind as if one more episode had failed. Example: 1 and .5 give 1.5 / 3 = .5; none gives 0."""
        earned = self.earned.get(kind, ())
        return sum(earned) / (len(earned) + 1)


def main(options: Options) -> None:
    check_at_least_one(options, "most", "min_episodes")
    check_apart("--out", options.out, {"--data": options.data / "train.jsonl"})
    episodes = played_in(options.run_dir)
    questions = read_train(options.data)
    library = distil(episodes, questions, options.most, options.min_episodes)
    if not library:
        raise UserError(
            f"no query of {options.run_dir} gives a template; lower --min-episodes, or give a run whose queries found "
            "something and whose questions have a focus in train.jsonl"
        )
    library_of([{"name": each.name, "query": each.query} for each in library])  # what is written can be read
    print(f"{write_jsonl(options.out, library)} templates in {options.out}, the most useful first:")
    for template in library:
        print(f"  {template.name}: {one_line(template.query)} ({template.reward:.2f}, {template.episodes})")


def distil(episodes: Iterable[Episode], questions: Sequence[Question], most: int, min_episodes: int) -> list[Distilled]:
    """The library: of all query shapes, those that together serve the questions best, the most useful first."""
    candidates = [each for each in merged(earnings(episodes, questions)) if each.episodes >= min_episodes]
    names: list[str] = []
    chosen = cover(candidates, shares_of(questions), most)
    for candidate in chosen:
        names.append(name_of(candidate.query, names))
    return [Distilled(name, c.query, c.episodes, c.reward) for name, c in zip(names, chosen, strict=True)]


def earnings(episodes: Iterable[Episode], questions: Sequence[Question]) -> Iterator[tuple[str, str, float]]:
    """(query shape, kind of question, what it earned) for each query shape of a well-formed episode.

    A query that did not find the answer earned nothing, whatever its episode did; one that did earned the episode's
    reward. Where it is not known which chunks answer, all queries of the episode earned its reward. An evaluation's
    episodes have no rewards: their queries earn 1 if they found the answer, and count only where that is known.
    """
    by_id = {question.id: question for question in questions}
    for episode in episodes:
        question = by_id.get(episode.question_id)
        if not question or not question.focus or not episode.well_formed:
            continue
        answers, earned = set(question.relevant_chunk_ids), dict[str, float]()
        if not (episode.rewards or answers):
            continue
        reward = episode.reward if episode.rewards else 1.0
        for search in episode.searches:
            found = not answers or not answers.isdisjoint(search.hits)
            shape = slotted(search.query, question.focus)
            earned[shape] = max(earned.get(shape, 0.0), reward if found else 0.0)
        yield from ((shape, kind_of(question), reward) for shape, reward in earned.items() if SLOT in shape)


def kind_of(question: Question) -> str:
    """The question's type in the data; where it has none, its shape."""
    return question.question_type or slotted(question.question, question.focus)


def shares_of(questions: Sequence[Question]) -> dict[str, float]:
    """The share of each kind among the questions that have a focus."""
    kinds = [kind_of(question) for question in questions if question.focus]
    return {kind: kinds.count(kind) / len(kinds) for kind in dict.fromkeys(kinds)}


def merged(earned: Iterable[tuple[str, str, float]]) -> list[Candidate]:
    """Shapes that differ in nothing but case, order and idle words become one, in the wording that was used most.

    Example: "symptoms of [topic]" and "[Topic] Symptoms".
    """
    wordings: dict[frozenset[str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    rewards: dict[frozenset[str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for shape, kind, reward in earned:
        words = frozenset(telling(shape))
        wordings[words][shape] += 1
        rewards[words][kind].append(reward)
    return [
        Candidate(min(several, key=lambda shape: (-several[shape], len(shape), shape)), dict(rewards[words]))
        for words, several in wordings.items()
    ]


def telling(shape: str) -> list[str]:
    """The words of a query beside its slot and idle ones. Example: "Signs of [topic]" gives "signs"."""
    return [word for word in re.findall(r"\w+", shape.replace(SLOT, " ").lower()) if word not in IDLE]


def cover(candidates: Sequence[Candidate], shares: Mapping[str, float], most: int) -> list[Candidate]:
    """Candidates chosen one by one, each the one that adds most to what the best template for each kind is worth.

    The best dozen by reward might all be for the same easy kind of question. Example: kinds a and b with equal shares;
    x is worth .8 for a, y .7 for a, z .2 for b. First comes x (+.4), then z (+.1); y adds nothing to x and is left out.
    """
    left = sorted(candidates, key=lambda each: (-each.reward * each.episodes / (each.episodes + 1), each.query))
    best, chosen = dict.fromkeys(shares, 0.0), list[Candidate]()

    def gain(candidate: Candidate) -> float:
        return sum(share * max(0.0, candidate.worth(kind) - best[kind]) for kind, share in shares.items())

    while left and len(chosen) < most and gain(next_one := max(left, key=gain)) > 0:
        left.remove(next_one)
        chosen.append(next_one)
        best = {kind: max(worth, next_one.worth(kind)) for kind, worth in best.items()}
    return chosen


def name_of(query: str, taken: Sequence[str]) -> str:
    """The query's first telling word, and as many more as tell it from the names that are taken.

    Example: "[topic] symptoms signs" is "symptoms", or if that is taken, "symptoms_signs"; "[topic]" alone is "topic".
    """
    words = telling(query) or ["topic"]
    names = ["_".join(words[:count]) for count in range(1, len(words) + 1)]
    names += [f"{names[-1]}_{number}" for number in range(2, len(taken) + 3)]
    return next(name for name in names if name not in taken)


if __name__ == "__main__":
    run_script(main, __doc__)
