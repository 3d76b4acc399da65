"""Demonstrations: the episodes that the warm start imitates, by the teacher or from files."""

from __future__ import annotations

import asyncio
import random

from forage.agent.episode import Episode, read_episodes, write_episodes
from forage.agent.options import AgentSettings
from forage.agent.protocol import Protocol
from forage.agent.searcher import searching
from forage.agent.vetting import Vetting
from forage.data.splits import read_training_questions
from forage.errors import UserError
from forage.sft.options import SFTOptions
from forage.sft.teacher import causes_of, demonstrate
from forage.store.opening import open_address


def get_demonstrations(options: SFTOptions, protocol: Protocol, settings: AgentSettings) -> list[Episode]:
    """Load the demonstrations of an interrupted run, or make and save new ones."""
    path, vetting = options.output_dir / "demonstrations.jsonl", Vetting.over(options.data, protocol, settings)
    if not path.exists():  # files first: one may be refused
        given = [episode for file in options.demonstrations for episode in vetting.read(file)]
        write_episodes(path, [*play_demonstrations(options, protocol, settings), *given])
    demonstrations = list(read_episodes(path))
    vetting.check(path, demonstrations)
    if len(demonstrations) < 2:
        raise UserError(f"{len(demonstrations)} demonstrations are too few to train on and to measure by")
    return demonstrations


def play_demonstrations(options: SFTOptions, protocol: Protocol, settings: AgentSettings) -> list[Episode]:
    """The teacher's."""
    questions = read_training_questions(options.data)
    chosen = random.Random(options.seed).sample(questions, min(options.num_demonstrations, len(questions)))
    search = searching(open_address(options.address, options.data), settings)
    print(f"the teacher searches for {len(chosen)} questions", flush=True)
    taught, without = asyncio.run(demonstrate(chosen, search, protocol, settings, options.teacher, options.seed))
    print(f"{len(taught)} demonstrations by the teacher for {len(chosen)} questions{causes_of(without)}")
    return taught
