"""Played: training questions with the episodes that answered them, as files of evaluate.py or of a run have them.

Held-out questions are refused: what learns from episodes learns from the reference answers by which they are rewarded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from forage.agent.episode import Episode, episode_files, is_written, read_episodes
from forage.agent.protocol import Protocol
from forage.data.records import Question
from forage.data.splits import read_train
from forage.errors import UserError


@dataclass(frozen=True)
class Played:
    """A training question and its episodes."""

    question: Question
    episodes: tuple[Episode, ...]


def read_played(paths: Sequence[Path], data: Path, protocol: Protocol) -> list[Played]:
    """The episodes by question, in the order of train.jsonl, each once; not what the engine gave up on."""
    known = {question.id: question for question in read_train(data)}
    by_question: dict[str, dict[tuple[object, ...], Episode]] = {}
    for path in files_of(paths):
        episodes = list(read_episodes(path))
        if foreign := [episode.question_id for episode in episodes if episode.question_id not in known]:
            raise UserError(
                f"{path}: {len(set(foreign))} of its questions are not in {data / 'train.jsonl'}, such as "
                f"{foreign[0]}; give episodes of training questions, as evaluate.py --split train plays them"
            )
        if any(e.transcript and e.transcript != protocol.tokenizer.decode(e.ids) for e in episodes[:1]):
            raise UserError(f"{path}: its tokens are of another tokenizer; name the --policy that played it")
        for episode in episodes:
            if episode.stop != "engine":
                by_question.setdefault(episode.question_id, {}).setdefault((episode.id, episode.ids), episode)
    several = [Played(known[name], tuple(by_question[name].values())) for name in known if name in by_question]
    if not several:
        raise UserError("no episode is left to learn from; give files of whole episodes")
    return several


def files_of(paths: Sequence[Path]) -> list[Path]:
    """The files of episodes, those in folders included."""
    files = [file for path in paths for file in (episode_files(path) if path.is_dir() else [path])]
    if missing := [path for path in files if not is_written(path)] or (not files and [Path("no file of episodes")]):
        raise UserError(f"{missing[0]} is missing; name files or folders of episodes, such as those evaluate.py writes")
    return files
