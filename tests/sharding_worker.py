"""What every process of tests/grpo/test_sharding.py does.

    torchrun tests/sharding_worker.py FOLDER NAME...      two processes
    python -m tests.sharding_worker FOLDER NAME...        one, by itself

A name is a sharding, with +OFFLOAD and -FORM where wanted: zero3, zero3+all, zero3+all-4bit, none-split.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from safetensors.torch import save_file
from transformers import BitsAndBytesConfig, LlamaForCausalLM

from forage.grpo.gain import likelihoods
from forage.grpo.learner import BASE, REFERENCE, TEACHER, Learner
from forage.grpo.sharding import ShardedLearner
from forage.grpo.teacher import Teacher
from forage.policy.packing import Row, pack, pack_trees
from forage.processes import all_gather, is_first, join_processes
from tests.factories import Sequence, tiny_model

RATE = 0.01
TOTAL = 40


def tiny_policy(seed=1, *, checkpointing=True, four_bit=None):
    """Rank 3, so that two processes can't share its rows evenly. `four_bit` is a base's folder."""
    if four_bit:
        bits = BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
            bnb_4bit_quant_storage=torch.uint8, bnb_4bit_compute_dtype=torch.float32,
        )  # fmt: skip
        base = LlamaForCausalLM.from_pretrained(four_bit, dtype=torch.float32, quantization_config=bits)
    else:
        base = tiny_model(tie_word_embeddings=True)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    policy = get_peft_model(base, LoraConfig(r=3, lora_alpha=6, target_modules=targets, task_type="CAUSAL_LM"))
    torch.manual_seed(seed)
    for weight in policy.parameters():
        if weight.requires_grad:
            torch.nn.init.normal_(weight, std=0.1)
    if checkpointing:
        policy.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    return policy.train()


def micro_batches(step):
    """Three, so that one of two processes has one less."""
    return [batch for group in sequences(step) for batch in pack(group, budget=100)]


def sequences(step):
    draw = torch.Generator().manual_seed(step)
    for group in [(9, 7), (11,), (5, 6, 4)]:
        rows = [tuple(torch.randint(1, 61, (length,), generator=draw).tolist()) for length in group]
        yield [Sequence(row, (0, 0) + (1,) * (len(row) - 2)) for row in rows]


def marks(learner, start):
    """A teacher's, of rows in three micro-batches."""
    learner.keep(TEACHER, start)
    rows = [row for group in sequences(3) for row in group]
    return Teacher().logprobs(learner, rows, 1.0, lambda read: pack(read, budget=18))


def likely(learner):
    """How likely the marked tokens of rows in three micro-batches are."""
    rows = [Row(tuple(row.ids), tuple(row.mask)) for group in sequences(3) for row in group]
    return torch.tensor(likelihoods(rows, learner, 1.0, lambda rows: pack(rows, budget=18)))


def of_base(learner):
    """Log-probabilities by the base alone, of the same rows."""
    rows = [row for group in sequences(3) for row in group]
    return learner.table(rows, 1.0, lambda rows: pack(rows, budget=18), BASE)


def update(learner, step):
    """One update; its norm."""
    share = learner.shard(micro_batches(step))
    for number, batch in enumerate(share):
        learner.backward(-learner.score(batch, 1.0).logprobs_BT.sum() / TOTAL, last=number == len(share) - 1)
    return learner.step(RATE)


def prompt_updates(learner, packing=pack_trees):
    """Norms of two updates, each by three batches of three rows behind one prompt, all of other lengths."""
    draw = torch.Generator().manual_seed(7)
    norms = []
    for _ in range(2):
        batches = []
        for lengths in ((9, 4, 6, 3), (9, 2, 3, 2), (5, 7, 8, 6)):
            prompt, *rests = (torch.randint(1, 61, (length,), generator=draw).tolist() for length in lengths)
            rows = [Sequence((*prompt, *rest), (0,) * len(prompt) + (1,) * len(rest)) for rest in rests]
            batches += packing(rows, budget=300)
        assert len(batches) == 3
        share = learner.shard(batches)
        for batch in share:
            loss = -learner.score(batch, 1.0).logprobs_BT.sum() / TOTAL
            learner.backward(loss, last=batch is share[-1])
        norms.append(learner.step(RATE))
    return norms


def own_parts(learner, sharding):
    """What this process holds of each weight."""
    for weight in learner.policy.parameters():
        yield weight.ds_tensor if sharding == "zero3" else weight.to_local() if sharding == "fsdp2" else weight


def held(learner, sharding):
    """How many numbers this process holds of the whole model, and of AdamW's state."""
    model = sum(part.numel() for part in own_parts(learner, sharding))
    state = [s["exp_avg"] for s in learner.strategy.states]
    return model, sum((m.to_local() if sharding == "fsdp2" else m).numel() for m in state)


def keep(learner, folder, found, tensors=()):
    if is_first():
        whole = {name: tensor.contiguous() for name, tensor in dict(tensors).items()}
        save_file(whole, folder / "tensors.safetensors")
        (folder / "found.json").write_text(json.dumps(found))


def adapter_state(learner):
    """The full adapter under the names that PEFT writes."""
    weights = dict(zip(learner.names, (value[0] for value in learner.strategy.gather()), strict=True))
    return get_peft_model_state_dict(learner.policy, weights, save_embedding_layers=False)


def put_through(sharding, offload, folder):
    start, first = folder.parent / "start", micro_batches(1)[0]
    kind = {"sharding": sharding, "offload": offload, "chunk": 4}  # chunks that are not as many for each
    learner = ShardedLearner(tiny_policy(), **kind)
    learner.keep(REFERENCE, start)
    found = {"held": all_gather(held(learner, sharding)), "title": learner.strategy.title}
    tensors = {}
    with torch.no_grad():
        tensors["before"], tensors["likely"] = learner.score(first, 1.0).logprobs_BT, likely(learner)
    found["norms"] = [update(learner, 1)]
    tensors |= {f"first.{name}": weight for name, weight in adapter_state(learner).items()}
    tensors["reference"] = learner.kept(REFERENCE, first, 1.0)
    tensors["marks"], tensors["base"] = marks(learner, start), of_base(learner)
    learner.save(folder / "state", 1, {"extra": 1})
    drawn = torch.rand(3)
    # A gradient that is none leaves no trace.
    learner.backward(learner.score(first, 1.0).logprobs_BT.sum() * float("nan"), last=True)
    found["bad norm"] = str(learner.step(RATE))
    found["norms"].append(update(learner, 2))
    second = adapter_state(learner)
    tensors |= {f"second.{name}": weight for name, weight in second.items()}
    learner.publish(folder, 2)

    again = ShardedLearner(tiny_policy(seed=2), **kind)
    found["nothing yet"] = again.load(folder / "nothing")
    found["loaded"] = again.load(folder / "state")
    found["random"] = all(all_gather(torch.equal(torch.rand(3), drawn)))
    update(again, 2)
    resumed = adapter_state(again)
    found["resumed"] = all(torch.equal(resumed[name], second[name]) for name in second)
    again.load_adapter(start)
    update(again, 1)
    tensors |= {f"rolled back.{name}": weight for name, weight in adapter_state(again).items()}

    keep(learner, folder, found, tensors)


def put_4_bit_through(sharding, offload, folder):
    policy = tiny_policy(four_bit=folder.parent / "base")
    learner = ShardedLearner(policy, sharding=sharding, offload=offload)
    with torch.no_grad():
        before_BT = learner.score(micro_batches(1)[0], 1.0).logprobs_BT
    norms = [update(learner, step) for step in (1, 2)]
    held_bytes = sum(part.numel() * part.element_size() for part in own_parts(learner, sharding))
    found = {"norms": norms, "bytes": all_gather(held_bytes)}
    tensors = {str(number): values[1] for number, values in enumerate(learner.strategy.gather())}
    keep(learner, folder, found, tensors | {"before": before_BT})


def put_split_through(sharding, offload, folder):
    """Both processes share every row."""
    learner = ShardedLearner(tiny_policy(), sharding=sharding, offload=offload, chunk=4, sequence_parallel=2)
    batches = micro_batches(1)
    assert len(learner.shard(batches)) == len(batches)
    tensors = {"before": learner.score(batches[0], 1.0).logprobs_BT.detach()}
    tensors["entropy"] = learner.score(batches[0], 1.0).entropy_BT
    norms = [update(learner, step) for step in (1, 2)]
    tensors |= {f"second.{name}": weight for name, weight in adapter_state(learner).items()}
    sums = learner.sums({"tokens": torch.tensor(3.0)})["tokens"].item()
    keep(learner, folder, {"norms": norms, "sums": sums}, tensors)


def put_prompts_through(sharding, offload, folder):
    """The prompt of several rows is computed once."""
    learner = ShardedLearner(tiny_policy(), sharding=sharding, offload=offload, chunk=4)
    keep(learner, folder, {"norms": prompt_updates(learner)})


def bf16_policy():
    """Its base in bf16, with logits so large that rounding them shows."""
    policy = tiny_policy()
    for name, weight in policy.named_parameters():
        if "lora_" not in name:
            weight.data = weight.data.bfloat16() * (6 if "embed" in name else 1)
    return policy


def put_bf16_through(sharding, offload, folder):
    learner = ShardedLearner(bf16_policy(), sharding=sharding, chunk=4)
    before = learner.score(micro_batches(1)[0], 1.0).logprobs_BT.tolist()
    keep(learner, folder, {"before": before, "norms": [update(learner, step) for step in (1, 2)]})


FORMS = {
    "": put_through, "4bit": put_4_bit_through, "split": put_split_through,
    "prompts": put_prompts_through, "bf16": put_bf16_through,
}  # fmt: skip


def main(folder, names):
    torch.set_num_threads(1)
    join_processes()
    if dist.get_rank() == 0:
        Learner(tiny_policy()).policy.save_pretrained(folder / "start")
    dist.barrier()
    for name in names:
        (folder / name).mkdir(exist_ok=True)
        kind, _, form = name.partition("-")
        sharding, _, offload = kind.partition("+")
        FORMS[form](sharding, offload or "none", folder / name)
    dist.barrier()  # or one takes the other's connections down while it still works
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
