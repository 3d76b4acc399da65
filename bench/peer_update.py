"""One update of the same stored episodes by us and by TRL's GRPOTrainer: tokens/s and peak memory.

    make bench-env
    python -m bench.peer_update --policy runs/demo/warm --episodes runs/demo/run/episodes/000000/trainer.jsonl

Base and adapter are loaded in the same number types. TRL is measured with several numbers of episodes a micro-batch, we
with several token budgets; the best speed and the least memory of each count. Each measurement is a process of its own,
and is of the second update. Tokens/s counts the episodes' tokens, however many were computed.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

from bench.processes import PEERS, check_peers, output_of
from bench.report import Bar, finish
from bench.update import WAYS
from forage.agent.episode import read_episodes, write_episodes
from forage.cli import run_script
from forage.errors import UserError
from forage.machine import compute_dtype
from forage.policy.adapters import newest_adapter
from forage.policy.card import read_policy_card

FASTER, LEANER = 3.0, 2.0  # bars: tokens/s over TRL's, and TRL's peak over ours


@dataclass(frozen=True)
class BenchOptions:
    """What to measure on."""

    policy: Path = Path("runs/demo/warm")
    """Policy folder; one whose base is not quantised."""
    episodes: Path = Path("runs/demo/run/episodes/000000/trainer.jsonl")
    """File of a step's episodes."""
    batches: tuple[int, ...] = (1, 4)
    """TRL's per_device_train_batch_size."""
    ways: tuple[str, ...] = ("shared 2048", "shared 512")
    """How we pack, by names in bench/update.py."""

    def check(self) -> None:
        check_peers(PEERS)
        unknown = [way for way in self.ways if way not in WAYS]
        if unknown or not self.ways:
            raise UserError(f"--ways {' '.join(unknown)}: choose among {', '.join(WAYS)}")


def main(bench: BenchOptions) -> None:
    bench.check()
    card = read_policy_card(bench.policy)
    if card.quantized:
        raise UserError(
            f"{bench.policy} is in 4 bits, which the two unpack differently; give one made with --no-quantize"
        )
    episodes = list(read_episodes(bench.episodes))
    questions = len({episode.question_id for episode in episodes})
    print(f"{len(episodes)} episodes of {questions} questions, {sum(len(e.ids) for e in episodes)} tokens", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "episodes.jsonl"
        write_episodes(path, episodes)  # plain, whatever was given
        ours = [
            measured(f"ours, {way}", [
                sys.executable, "-m", "bench.update", "--policy", bench.policy, "--episodes", path, "--way", way,
                "--questions", questions,
            ])
            for way in bench.ways
        ]  # fmt: skip
        dtype = str(compute_dtype(card.dtype)).removeprefix("torch.")
        theirs = [
            measured(f"TRL, {batch} a micro-batch", [
                PEERS, "bench/peers/trl_update.py", "--episodes", path, "--base", card.base, "--adapter",
                newest_adapter(bench.policy), "--dtype", dtype, "--batch", batch,
            ])
            for batch in bench.batches
        ]  # fmt: skip
    finish([
        Bar("ours / TRL tokens/s, the fastest of each", max(map(rate, ours)) / max(map(rate, theirs)), FASTER),
        Bar("TRL / our peak memory, the leanest of each", min(map(mib, theirs)) / min(map(mib, ours)), LEANER),
    ])  # fmt: skip


rate, mib = itemgetter("rate"), itemgetter("mib")


def measured(name: str, command: list[object]) -> dict[str, float]:
    """The figures that a process prints as its last line."""
    figures: dict[str, float] = json.loads(output_of(name, command).splitlines()[-1])
    print(f"{name:24} {figures['rate']:7.1f} tokens/s, peak {figures['mib']:6.0f} MiB above", flush=True)
    return figures


if __name__ == "__main__":
    run_script(main, __doc__)
