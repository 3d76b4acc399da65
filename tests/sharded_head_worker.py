"""What every process of tests/grpo/test_sharded_head.py does."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from forage.grpo.sharding import ShardedLearner
from forage.processes import join_processes
from tests.sharding_worker import micro_batches, tiny_policy, update


def bf16_policy():
    """Its base in bf16, with logits so large that rounding them shows."""
    policy = tiny_policy()
    for name, weight in policy.named_parameters():
        if "lora_" not in name:
            weight.data = weight.data.bfloat16() * (6 if "embed" in name else 1)
    return policy


def main(folder, names):
    torch.set_num_threads(1)
    join_processes()
    for sharding in names:
        learner = ShardedLearner(bf16_policy(), sharding=sharding, chunk=4)
        before = learner.score(micro_batches(1)[0], 1.0).logprobs_BT.tolist()
        norms = [update(learner, step) for step in (1, 2)]
        if learner.rank == 0:
            (folder / f"{sharding}.json").write_text(json.dumps({"before": before, "norms": norms}))
    dist.barrier()  # or one takes the other's connections down while it still works
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
