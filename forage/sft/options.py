"""Options of the warm start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from forage.agent.episode import is_written
from forage.agent.options import SearchOptions
from forage.errors import UserError, check_at_least_one
from forage.files import check_apart, check_replaceable
from forage.optimizer import MemoryOptions
from forage.policy.adapters import adapter_path
from forage.sft.teacher import TeacherOptions
from forage.store.options import StoreAddress

WRITTEN = (  # what sft_train.py writes into its output folder beside config.json
    "model.json", "agent.json", "adapters", "demonstrations.jsonl", ".demonstrations.jsonl", "stats.jsonl",
    "code.diff", "environment.json", "state", "best",
)  # fmt: skip

FREE = (
    "max_steps", "overwrite", "address.store_patience", "memory.token_budget",
    "memory.gradient_checkpointing",
)  # fmt: skip


@dataclass(frozen=True)
class SFTOptions:
    """The warm start."""

    data: Path = Path("data")
    """Folder that data_prep.py wrote."""
    policy: Path = Path("models/policy")
    """Policy folder to start from. Its newest adapter is trained."""
    output_dir: Path = Path("models/warm")
    """Policy folder to create."""
    num_demonstrations: int = 200
    """Random training questions for which the teacher plays a demonstration; 0: none."""
    demonstrations: tuple[Path, ...] = ()
    """Files of episodes to imitate as well. None may be about a question of eval.jsonl."""
    teacher: TeacherOptions = TeacherOptions()
    search: SearchOptions = SearchOptions()
    address: StoreAddress = StoreAddress()
    max_steps: int = 100
    """Maximum number of updates. The learning rate falls to zero until then, also where a resumed run changes it."""
    batch_size: int = 4
    """Questions per update, with all their demonstrations."""
    learning_rate: float = 0.0
    """Learning rate of AdamW at its peak. 0: 1e-3 for a base below a billion parameters, else 2e-4."""
    memory: MemoryOptions = MemoryOptions()
    eval_share: float = 0.1
    """Share of the demonstrations to hold out, only to measure their loss."""
    eval_every: int = 20
    """Updates between measurements of the held-out loss. A checkpoint follows each, and is made every 15 seconds."""
    early_stop: int = 3
    """Stop after this many measurements without a lower held-out loss. Not with --keep last."""
    keep: Literal["best", "last"] = "best"
    """Which adapter to keep: the one with the lowest held-out loss (best), or the one after all updates (last). Use
    last for episodes that the policy played itself: they are likely already, so their loss hardly falls."""
    seed: int = 0
    """Seed for choosing and ordering questions."""
    overwrite: bool = False
    """Replace the output folder if it exists."""

    def check(self) -> None:
        """Fail before anything is loaded."""
        for part in (self.teacher, self.memory, self.address):
            part.check()
        check_at_least_one(self, "max_steps", "batch_size", "eval_every", "early_stop")
        if not 0 < self.eval_share < 1:
            raise UserError(f"--eval-share {self.eval_share} must lie between 0 and 1")
        missing = next((path for path in self.demonstrations if not is_written(path)), None)
        if missing:
            raise UserError(
                f"--demonstrations {missing} does not exist; it takes files of episodes, and the number of questions "
                "the teacher answers is --num-demonstrations"
            )
        if not (self.num_demonstrations or self.demonstrations):
            raise UserError("nothing to learn from: --num-demonstrations 0 and no --demonstrations")
        # No output goes over an input, over what another script made, or over a finished policy.
        files = {f"--demonstrations {path}": path for path in self.demonstrations}
        check_apart("--output-dir", self.output_dir, {"--data": self.data, "--policy": self.policy} | files)
        if adapter_path(self.output_dir, 0).exists() and not self.overwrite:
            raise UserError(f"{self.output_dir} is finished already; choose another --output-dir, or --overwrite")
        if self.overwrite:
            check_replaceable("--output-dir", self.output_dir, "config.json", WRITTEN)
