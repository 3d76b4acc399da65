"""Options of a rollout."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from forage.agent.options import Limits
from forage.engines.base import Sampling
from forage.engines.options import EngineChoice, ServerOptions
from forage.errors import check_at_least_one, check_at_least_zero
from forage.store.options import Mode


@dataclass(frozen=True)
class RolloutOptions:
    """How episodes are played and rewarded."""

    data: Path = Path("data")
    """Folder that data_prep.py wrote."""
    policy: Path = Path("models/policy")
    """Policy folder of create_lora_model.py or sft_train.py."""
    engine: EngineChoice = "auto"
    """What samples: vLLM servers, or this process; auto takes the servers where one answers."""
    server: ServerOptions = field(default_factory=ServerOptions)
    sampling: Sampling = field(default_factory=Sampling)
    limits: Limits = field(default_factory=Limits)
    num_rollouts: int = 8
    """Episodes of each question: a group, within which they are compared."""
    batch_size: int = 8
    """Questions of a step."""
    at_once: int = 8
    """Questions a worker plays at the same time, --num-rollouts episodes each; of an evaluation, where they have one
    each, as many episodes. Fewer where several workers share a step."""
    weights: tuple[float, ...] = ()
    """Weight of each reward, in the order of get_reward_functions; all equal if none is given."""
    k: int = 3
    """Passages a search shows."""
    passage_tokens: int = 64
    """Tokens of each passage shown."""
    mode: Mode = "hybrid"
    """How the store is searched."""
    question_weight: int = 0
    """Search for the question, so many times, and the policy's query behind it: it need only add what helps, and BM25
    counts words. 0: its query alone."""
    seed: int = 0
    """Of the choice of questions and of sampling."""

    @property
    def episodes_at_once(self) -> int:
        return self.at_once * self.num_rollouts

    def check(self) -> None:
        """Fail before anything is loaded."""
        self.limits.check()
        self.sampling.check()
        check_at_least_one(self, "num_rollouts", "batch_size", "at_once", "k", "passage_tokens")
        check_at_least_zero(self, "question_weight")
