"""Agreement: run.json, a run's manifest, which every start of the run and every worker must agree with.

grpo_train.py writes it when a run starts. The policy it starts from, its data, rewards and tools are compared by
digest, so folders may move; a worker takes from it how to sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from forage.agent.options import AgentSettings
from forage.agent.rewards import MakeRewards, rewards_of, weights_by_name
from forage.agent.searcher import Searcher
from forage.agent.tools import functions_for, own_agent
from forage.errors import UserError
from forage.manifest import code_of, contradictions, made_of, plain, read_manifest_as, write_manifest
from forage.policy.adapters import adapter_path, newest_adapter, weights_digest
from forage.rollout.options import RolloutOptions
from forage.store.embedder import Embedder, locate
from forage.store.manifest import NO_EMBEDDER, StoreManifest
from forage.store.opening import Store, digests_of, manifest_at, open_address

RUN_FILE = "run.json"
SAMPLED = ("num_rollouts", "batch_size", "temperature", "seed")  # options that a worker takes from the run


@dataclass(frozen=True)
class RunManifest:
    """What makes a run's figures comparable from its first step to its last."""

    adapter: str
    """Version of the policy's adapter that the run started with."""
    adapter_weights: str
    """Digest of its weights."""
    data: Mapping[str, str]
    """Digests of the questions of both splits and of the store."""
    embedder: str
    """The rewards' embedder: the store's, or one chosen when the run started."""
    embedder_weights: str
    """Digest of its weights; empty if it is a model of the hub's, which only its name identifies."""
    rewards: Mapping[str, str]
    """Digest of which function each reward is, and of the values that it holds."""
    weights: Mapping[str, float]
    """Weight of each reward."""
    tools: Mapping[str, str]
    """The same of each tool, and of an agent that plays in our loop's place."""
    options: Mapping[str, Any]
    """The options that the run was begun with."""
    code: Mapping[str, str] = field(default_factory=dict)
    """Digest of each file that these rewards and tools, the loss and the advantage come from."""
    teacher: str = ""
    """Digest of the weights of --teacher's adapter; empty without one."""

    def compared(self) -> dict[str, Any]:
        """What is compared by content, under the names of errors."""
        names = ("adapter_weights", "data", "embedder", "embedder_weights", "rewards", "weights", "tools", "teacher")
        return {name: getattr(self, name) for name in (*names, "code") if getattr(self, name) != ""}


def manifest_now(
    options: RolloutOptions, settings: AgentSettings, make_rewards: MakeRewards, run_dir: Path,
    known: RunManifest | None, all_options: Any = None, own: Sequence[Any] = (),
) -> RunManifest:  # fmt: skip
    """The manifest of a run with these options, as things are now. What is chosen only once is taken from `known`.

    `own`: what else of the user's code the run is made of.
    """
    store, fingerprint = manifest_at(options.address, options.data)
    embedder = open_embedder(store, known.embedder if known else "")
    # Only their names and sources are read here, so this searcher is never asked.
    functions = rewards_of(
        make_rewards, embedder, Searcher(lambda: open_address(options.address, options.data), settings), options.weights
    )
    start, agent = adapter_of(options.policy, known, run_dir), own_agent()
    tools = functions_for(settings.tools) | ({"get_agent": agent} if agent else {})
    return RunManifest(
        known.adapter if known else start.name, weights_digest(start), digests_of(options.data, fingerprint),
        embedder.name, embedder_digest(embedder.name),
        {name: made_of(function) for name, function in functions.items()},
        # A reward more or less than in the run is told first, by its name.
        {} if known and known.rewards.keys() != functions.keys() else weights_by_name(functions, options.weights),
        {name: made_of(tool) for name, tool in tools.items()},
        plain(all_options) if all_options else {}, code_of(*functions.values(), *tools.values(), *own),
    )  # fmt: skip


def disagreements(run: RunManifest, own: RunManifest) -> list[str]:
    """Words for everything in which `own` is not as in the run. Example: ["another data.train", "no reward mrr"]."""
    gone = [f"a reward {name!r}" for name in run.rewards if name not in own.rewards]
    new = [f"no reward {name!r}" for name in own.rewards if name not in run.rewards]
    return [*gone, *new, *contradictions(own.compared(), run.compared())]


def check_opened(store: Store, run: RunManifest | None) -> None:
    """Refuse a store that was edited after its fingerprint was compared and before it was opened."""
    if run and store.fingerprint != run.data["store"]:
        raise UserError(f"{store.path} was changed just now; start the same command again")


def open_embedder(store: StoreManifest, known: str = "") -> Embedder:
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


def adapter_of(policy: Path, known: RunManifest | None, run_dir: Path) -> Path:
    """The adapter that a run starts with: the policy's newest when it began, even if there are newer ones by now.

    Where the policy doesn't have it any more, it is the run's first, which has the same weights.
    """
    if known and (start := adapter_path(policy, int(known.adapter[1:]))).is_dir():
        return start
    own = adapter_path(run_dir, 0)
    return own if known and weights_digest(own) == known.adapter_weights else newest_adapter(policy)


def write_run(run_dir: Path, manifest: RunManifest) -> None:
    write_manifest(run_dir / RUN_FILE, asdict(manifest))


def read_run(run_dir: Path) -> RunManifest | None:
    """The manifest of a run; None if it has not begun."""
    path, way_out = run_dir / RUN_FILE, "put it back, or give another --run-dir"
    return read_manifest_as(RunManifest, path, way_out) if path.exists() else None


def run_options(manifest: RunManifest, names: Sequence[str] = SAMPLED) -> dict[str, Any]:
    """What a run's manifest says about options that a worker has too."""
    rollout = manifest.options["rollout"]
    return {name: rollout[name] for name in names} | {"weights": tuple(rollout["weights"])}
