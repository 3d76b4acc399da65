"""Run card: run.json in a run folder, which says what makes a run's figures comparable from its first step to its last.

grpo_train.py writes it when a run starts. Whoever resumes the run, and every worker that plays for it, must agree: the
same start policy, data, rewards and embedder. A worker takes from it how to sample.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from forage.agent.combination import MakeRewards, rewards_of, weights_by_name
from forage.agent.fingerprint import fingerprints
from forage.agent.options import AgentSettings
from forage.agent.protocol import NO_TOOLS
from forage.agent.searcher import Searcher
from forage.agent.tools import Spec, functions_for
from forage.errors import UserError
from forage.files import replacing
from forage.manifest import file_digest
from forage.policy.adapters import adapter_path, newest_adapter, weights_digest
from forage.rollout.options import RUN_FILE, RolloutOptions
from forage.store.card import NO_EMBEDDER, StoreCard
from forage.store.embedder import Embedder, locate
from forage.store.opening import card_at, open_place

FORMAT = 1
Part = Literal["policy", "data", "embedder", "tools", "rewards"]


@dataclass(frozen=True)
class RunCard:
    """What every start and every worker of a run must agree on."""

    adapter: str
    """Version of the policy's adapter that the run started with."""
    adapter_weights: str
    """Digest of its weights."""
    data: Mapping[str, str]
    """Digests of the questions of both splits and of the store, by their names in the data folder."""
    embedder: str
    """The rewards' embedder: the store's, or one chosen when the run started."""
    embedder_weights: str
    """Digest of its weights; empty if it is a model of the hub's, which only its name identifies."""
    rewards: Mapping[str, str]
    """Fingerprint of each reward's source."""
    weights: Mapping[str, float]
    """Weight of each reward."""
    num_rollouts: int
    batch_size: int
    seed: int
    temperature: float
    top_p: float
    top_k: int
    since: Mapping[str, int] = field(default_factory=dict)
    """With rewards changed in mid-run: the first adapter version whose evaluation knows the reward as it is now."""
    tools: Mapping[str, str] = field(default_factory=dict)
    """Fingerprint of each tool's source."""
    format: int = FORMAT


def make_run_card(
    options: RolloutOptions,
    make_rewards: MakeRewards,
    known: RunCard | None = None,
    tools: Mapping[str, Spec] = NO_TOOLS,
) -> RunCard:
    """The card of a run with these options, as things are now. What is chosen only once is taken from the known one."""
    store, fingerprint = card_at(options.place, options.data)
    embedder = open_embedder(store, known.embedder if known else "")
    # Only their names and sources are read here, so this searcher is never asked.
    searcher = Searcher(lambda: open_place(options.place, options.data), AgentSettings())
    functions = rewards_of(make_rewards, embedder, searcher)
    start = adapter_of(options.policy, known)
    # A reward more or less than in the run is told first, by its name.
    other_names = known is not None and known.rewards.keys() != functions.keys()
    weights = {} if other_names else weights_by_name(functions, options.weights)
    return RunCard(
        start.name, weights_digest(start), data_digests(options.data, fingerprint), embedder.name,
        embedder_digest(embedder.name), fingerprints(functions), weights,
        options.num_rollouts, options.batch_size, options.seed, options.sampling.temperature, options.sampling.top_p,
        options.sampling.top_k, tools=fingerprints(functions_for(tools)),
    )  # fmt: skip


def open_embedder(store: StoreCard, known: str = "") -> Embedder:
    """The rewards' embedder: the store's, else the one that the run chose first, else one chosen now.

    No other takes its place if it can't be loaded: a similarity from another model is another reward.
    """
    if store.options.embedder != NO_EMBEDDER:
        return Embedder(store.options.embedder)
    if known:
        return Embedder(known, way_out="the run was begun with it: make it available here, or start another --run-dir")
    return Embedder()


def embedder_digest(name: str) -> str:
    return weights_digest(Path(locate(name)[0]))


def data_digests(folder: Path, store: str) -> dict[str, str]:
    """Digests of what is played, empty for a missing file, and the fingerprint of the store that is searched."""
    return {name: file_digest(folder / name) for name in ("train.jsonl", "eval.jsonl")} | {"store": store}


def adapter_of(policy: Path, known: RunCard | None) -> Path:
    """The adapter that a run starts with: the policy's newest when it began, even if there are newer ones by now."""
    if known and adapter_path(policy, int(known.adapter[1:])).is_dir():
        return adapter_path(policy, int(known.adapter[1:]))
    return newest_adapter(policy)


def disagreement(run: RunCard, own: RunCard, options: RolloutOptions) -> tuple[Part, str] | None:
    """The first thing in which `own` is not as in the run: its part of the card, and words for what the run has."""
    if (own.adapter, own.adapter_weights) != (run.adapter, run.adapter_weights):
        return "policy", f"other weights in {options.policy / 'adapters' / run.adapter}"
    for name, digest in run.data.items():
        if own.data.get(name, "") != digest:
            return "data", f"another {place_of(name, options)}"
    if own.embedder != run.embedder:
        return "embedder", f"embedder {run.embedder}, not {own.embedder}"
    if own.embedder_weights != run.embedder_weights and own.embedder_weights and run.embedder_weights:
        return "embedder", f"other weights of embedder {run.embedder}"
    for name in run.tools:
        if own.tools.get(name) != run.tools[name]:
            return "tools", f"another definition of tool {name!r}"
    words = changed_reward(run, own)
    return ("rewards", words) if words else None


def place_of(name: str, options: RolloutOptions) -> str:
    """Where a part of the data is. Example: data/train.jsonl, or the address of the store's server."""
    return options.place.store if name == "store" and options.place.store else str(options.data / name)


def changed_reward(run: RunCard, own: RunCard) -> str:
    """Words for the first reward that is not as in the run."""
    for name in dict.fromkeys((*run.rewards, *own.rewards)):
        if name not in own.rewards:
            return f"reward {name!r}, which is gone"
        if name not in run.rewards:
            return f"no reward {name!r}"
        if own.rewards[name] != run.rewards[name]:
            return f"another definition of reward {name!r}"
    for name in run.rewards:
        if own.weights[name] != run.weights[name]:
            return f"weight {run.weights[name]:g}, not {own.weights[name]:g}, of reward {name!r}"
    return ""


# The file


def write_run_card(run_dir: Path, card: RunCard) -> None:
    with replacing(run_dir / RUN_FILE) as file:
        json.dump(asdict(card), file, indent=1)
        file.write("\n")


def read_run_card(run_dir: Path) -> RunCard | None:
    """The card of a run; None if it has none, as it was begun by an earlier version or not at all."""
    path = run_dir / RUN_FILE
    if not path.exists():
        return None
    try:
        row: dict[str, Any] = {"tools": {}} | json.loads(path.read_text())  # 0.3.0 had none
        number = int(row["format"])
        card = RunCard(**{item.name: row[item.name] for item in fields(RunCard)}) if number <= FORMAT else None
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is broken ({type(error).__name__}: {error}); restore it, or start another --run-dir"
        ) from error
    if card is None:
        raise UserError(f"{path} has format {number}, this code reads up to {FORMAT}; update the code")
    return card
