"""Options of a rollout."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from forage.agent.options import SearchOptions, weights_named
from forage.arguments import TRUST
from forage.engines.base import EngineOptions, Sampling
from forage.errors import UserError, check_at_least_one
from forage.policy.manifest import full_base_of
from forage.store.options import StoreAddress


def made_last(models: Path = Path("models")) -> Path:
    """Where the stages before leave a policy: sft_train.py's folder, else create_lora_model.py's.

    A warm start of another base than the policy's is an older one, and is not taken. A default must not raise, so that
    --help and --policy work beside a damaged model.json: the first folder with one is named, and reading it says so.
    """
    warm, policy = models / "warm", models / "policy"
    if not (warm / "model.json").is_file():
        return policy
    try:
        policy_base = full_base_of(policy)
    except UserError:
        return policy
    try:
        return warm if policy_base in (("", ""), full_base_of(warm)) else policy
    except UserError:
        return warm


@dataclass(frozen=True)
class RolloutOptions:
    """Episodes and their rewards."""

    data: Path = Path("data")
    """Folder that data_prep.py wrote."""
    policy: Path = field(default_factory=made_last)
    """Policy folder from sft_train.py or create_lora_model.py. Left out: models/warm if it is there and has the same
    base as models/policy, else models/policy."""
    engine: EngineOptions = EngineOptions()
    search: SearchOptions = SearchOptions()
    address: StoreAddress = StoreAddress()
    temperature: float = 1.0
    """Sampling temperature. There is no top-p or top-k: training computes a token's probability among all tokens."""
    num_rollouts: int = 8
    """Episodes per question. They form the group whose rewards are compared."""
    batch_size: int = 8
    """Questions per step."""
    concurrency: int = 8
    """Questions a process plays at once, each with --num-rollouts episodes. Lower it if several workers share a
    step."""
    weights: Annotated[tuple[str, ...], TRUST] = ()
    """What is rewarded and how much it counts, such as mrr=2 format=1: rewards of get_reward_functions
    (grpo_rollout.py), of forage/agent/rewards.py, such as best_search, or a function of your own, as module:name. Left
    out: all of the first, equally."""
    seed: int = 0
    """Seed for question order and sampling."""

    @property
    def concurrent_episodes(self) -> int:
        return self.concurrency * self.num_rollouts

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature)

    def check(self) -> None:
        """Fail before anything is loaded."""
        self.address.check()
        weights_named(self.weights)
        check_at_least_one(self, "num_rollouts", "batch_size", "concurrency")


@dataclass(frozen=True)
class WorkerOptions:
    """The run and this worker."""

    run_dir: Path = Path("runs/grpo")
    """Run folder, shared with grpo_train.py."""
    follow: bool = False
    """Keep playing what grpo_train.py --rollouts service plans, until its run finishes."""
    worker: str = ""
    """Unique name of this worker. Restart a worker under its old name to resume its work. Left out: the host's name,
    and NAME-2, NAME-3 and so on for more workers on one host."""
