"""What each process of test_processes.py runs: TRL's updates. Arguments: the folder to save the trained weights in, one
file a process; the rewrites per update of all."""

import sys
from pathlib import Path

from safetensors.torch import save_file

from forage.extras.rewriter.actors import with_padding
from forage.extras.rewriter.options import ActorOptions, PPOOptions
from forage.extras.rewriter.ppo import Training, make_optimizer
from forage.extras.rewriter.trl_backend import train_trl
from forage.policy.checkpoint import trained_tensors
from forage.processes import join_processes, leave_processes, rank, world
from tests.tiny_rewriter import batches_of, tiny_actors, tiny_rows

if __name__ == "__main__":
    folder, size = Path(sys.argv[1]), int(sys.argv[2])
    if world() > 1:
        join_processes()
    actors, tokenizer = tiny_actors(ActorOptions(value="separate"))
    training = Training(
        actors, make_optimizer(actors, 0.01, []), PPOOptions(batch_size=size),
        lambda rows, responses: [sum(token % 2 for token in tokens) / len(tokens) for tokens in responses],
        lambda figures: None,
    )  # fmt: skip
    batches = batches_of(tiny_rows(), actors.policy.pad_id, size // world())
    train_trl(training, batches, 2, padded_tokenizer=with_padding(tokenizer), run_dir=folder)
    save_file({name: weight.contiguous() for name, weight in trained_tensors(actors).items()},
              folder / f"{world()}-{rank()}.safetensors")  # fmt: skip
    leave_processes()
