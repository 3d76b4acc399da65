"""Shards: examples on disk, a file for every few questions, so that a killed training embeds none of them again.

A shard is named after all that its numbers depend on: the code of features and rewards, the embedder, the questions
and their episodes. It is there whole or not at all, and is computed in one go, so a resumed training has the very
numbers of an undisturbed one. Shards stay when the training is done: another training with other options embeds
nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from forage.agent.combination import RewardFunction
from forage.agent.episode import to_json
from forage.errors import UserError
from forage.evaluation.preference.examples import Examples, Played, examples_of, joined
from forage.evaluation.preference.features import features
from forage.files import replacing
from forage.manifest import source_digest
from forage.progress import counting

FOLDER = "features"
QUESTIONS = 8  # of a shard


@dataclass(frozen=True)
class Shards:
    """The shards in an output folder, by an embedder of this name whose weights have this digest."""

    folder: Path
    embedder: str
    weights: str

    def examples(
        self, played: Sequence[Played], functions: Mapping[str, RewardFunction],
        compute: Callable[[Sequence[Played]], Examples],
    ) -> Examples:  # fmt: skip
        """The examples of all questions; `compute` makes those of a shard that is missing."""
        groups = [played[start : start + QUESTIONS] for start in range(0, len(played), QUESTIONS)]
        code = [*functions, source_digest(*functions.values(), features, examples_of)]
        made_by = json.dumps([self.embedder, self.weights, code])
        parts = []
        with counting("embedding", len(played), "question") as bar:
            for group in groups:
                path = self.folder / FOLDER / f"{key_of(group, made_by)}.safetensors"
                if not path.exists():
                    write(path, compute(group))
                parts.append(read(path))
                bar.update(len(group))
        return joined(parts, [len(group) for group in groups])


def key_of(group: Sequence[Played], made_by: str) -> str:
    digest = hashlib.sha256(made_by.encode())
    for played in group:
        digest.update(json.dumps(asdict(played.question)).encode())
        digest.update("".join(map(to_json, played.episodes)).encode())
    return digest.hexdigest()[:32]


def write(path: Path, examples: Examples) -> None:
    with replacing(path) as file:
        file.buffer.write(save(examples.tensors()))


def read(path: Path) -> Examples:
    try:
        return Examples(**load_file(path))
    except (SafetensorError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error}); delete it, and run the same command again") from error
