"""Demonstrations of planning: which of a library's templates find the answers to training questions.

    python -m forage.extras.planning.teaching library.jsonl --data data --policy models/policy --out plans.jsonl
    python sft_train.py --data data --policy models/policy --num-demonstrations 0 --demonstrations plans.jsonl

The teacher tries every template with each question's focus (its subject), and plays the plan that ranks the answer
highest.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from forage.agent.agent import SearchMany
from forage.agent.episode import Episode, write_episodes
from forage.agent.options import AgentSettings, SearchOptions
from forage.agent.protocol import Protocol
from forage.agent.searcher import searching
from forage.arguments import POSITIONAL, run_script
from forage.data.records import Question
from forage.data.splits import draw_questions
from forage.errors import UserError
from forage.extras.planning.tool import PLAN, Library, about, read_library, write_plan
from forage.policy.manifest import read_policy_manifest
from forage.sft.teacher import (
    Scripts,
    TeacherOptions,
    causes_of,
    first_relevant,
    leave_room,
    recited,
    search_candidates,
    write_turns,
)
from forage.store.opening import open_address
from forage.store.options import StoreAddress
from forage.text import whole_words


@dataclass(frozen=True)
class Options:
    """Demonstrations of planning."""

    library: Annotated[Path, POSITIONAL]
    """Template library, from python -m forage.extras.planning.library."""
    data: Path = Path("data")
    """Folder that data_prep.py wrote."""
    policy: Path = Path("models/policy")
    """Policy that will learn from the demonstrations. Only its tokenizer and settings are used."""
    out: Path = Path("plans.jsonl")
    """File to write."""
    num_demonstrations: int = 200
    """Random training questions for which the teacher plans."""
    seed: int = 0
    """Seed for these choices."""
    teacher: TeacherOptions = TeacherOptions()
    search: SearchOptions = SearchOptions()
    address: StoreAddress = StoreAddress()


def main(options: Options) -> None:
    options.teacher.check()
    library, settings = read_library(options.library), options.search.settle(options.policy)
    if PLAN not in settings.tools:
        raise UserError(f'the agent has no tool {PLAN!r}; put "{PLAN}": planner(...) into get_tools of grpo_rollout.py')
    protocol = Protocol.of_policy(read_policy_manifest(options.policy), settings)
    search_many = searching(open_address(options.address, options.data), settings)
    chosen = draw_questions(options.data, options.num_demonstrations, options.seed)
    plans, without = asyncio.run(teach(chosen, library, search_many, protocol, settings, options.teacher, options.seed))
    if not plans:
        raise UserError(f"{options.library} gives no demonstration{causes_of(without)}; build it from other episodes")
    write_episodes(options.out, plans)
    print(f"{len(plans)} demonstrations for {len(chosen)} questions in {options.out}{causes_of(without)}")


async def teach(
    questions: Sequence[Question], library: Library, search_many: SearchMany, protocol: Protocol,
    settings: AgentSettings, teacher: TeacherOptions, seed: int,
) -> tuple[list[Episode], Counter[str]]:  # fmt: skip
    """An episode with a plan for each question that a template finds the answer to; why others have none, counted."""
    choose, scripts = random.Random(seed), Scripts()
    topics = {question.id: protocol.harmless(topic_of(question)) for question in questions}
    queries = {name: [about(query, topic) for query in library.values()] for name, topic in topics.items() if topic}
    with_topic = [question for question in questions if question.id in queries]
    hits_of = search_candidates(with_topic, queries, search_many, settings.question_weight)
    for question in with_topic:
        hits = dict(zip(library, (hits_of[question.id][query] for query in queries[question.id]), strict=True))
        ranks = {name: rank for name, found in hits.items() if (rank := first_relevant(found, question)) is not None}
        if ranks and leave_room(1, settings):
            name = choose.choice([name for name, rank in ranks.items() if rank == min(ranks.values())])
            plan = write_plan(topics[question.id], name)
            scripts[question, 0] = write_turns(question, [plan], hits[name], protocol, settings, teacher)
    taught, broken = await recited(scripts, search_many, protocol, settings)
    return taught, broken + Counter({"no template finds what answers it": len(questions) - len(scripts)})


def topic_of(question: Question) -> str:
    """The question's focus, as the question spells it, so that a policy can learn to copy it.

    Example: "What is gout?" with focus "Gout" gives "gout"; a focus that the question does not say stays as it is.
    """
    words = whole_words(question.focus)
    said = re.search(words, question.question, re.IGNORECASE) if words else None
    return " ".join((said[0] if said else question.focus).split())


if __name__ == "__main__":
    run_script(main, __doc__)
