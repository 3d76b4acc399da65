"""Provenance: whether adapters and episodes are this run's own, by the digests of the weights that it published."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file

from forage.agent.episode import Episode
from forage.errors import UserError
from forage.grpo.run import Run
from forage.policy.adapters import DIGITS, adapter_path, sampled_by, version_name, weights_digest


def check_adapter(run: Run, version: int) -> None:
    """Refuse an adapter that is missing or that is not the one this run published."""
    path = adapter_path(run.options.run_dir, version)
    published = run.digests.get(path.name)
    if not path.exists():
        raise UserError(f"{path} is missing, which the run has to go back to; put it back, or give --on-collapse warn")
    if published and weights_digest(path) != published:
        raise UserError(f"{path} has other weights than this run published; put its own back, or move it away")


def same_weights(first: Path, second: Path) -> bool:
    """Whether two adapters have the same numbers, even where libraries of two versions wrote them differently."""
    if weights_digest(first) == weights_digest(second):
        return True
    name = "adapter_model.safetensors"
    try:
        one, other = load_file(first / name), load_file(second / name)
    except (SafetensorError, FileNotFoundError):
        return False
    return one.keys() == other.keys() and all(bool((one[key] == other[key]).all()) for key in one)


def check_sampled(run: Run, episodes: Iterable[Episode]) -> None:
    """Refuse episodes that none of this run's adapters sampled.

    Episodes of earlier versions of this program name no digest; of those only the version can be checked.
    """
    for adapter in dict.fromkeys(episode.adapter for episode in episodes):
        version, digest = sampled_by(adapter)
        if version > run.step or (digest and digest not in digests_of(run, version)):
            raise UserError(
                f"{run.options.run_dir / 'episodes'} holds episodes of {adapter}, which is no adapter of this run up "
                f"to step {run.step}; move those files out of the run folder, then re-run the same command"
            )


def digests_of(run: Run, version: int) -> set[str]:
    """The digests that episodes of a version may name."""
    # Checkpoints of earlier versions of this program name no digests.
    published = run.digests.get(version_name(version)) or weights_digest(adapter_path(run.options.run_dir, version))
    # A worker may have played before the trainer published its first adapter.
    start = run.card.adapter_weights if version == 0 else ""
    return {digest[:DIGITS] for digest in (published, start) if digest}
