"""Every causal language model of transformers on a tiny configuration: is what this project computes with it right?

python -m tests.policy.model_kinds [model_type ...]     prints right, refused, or what is wrong, one line a kind
"""

import asyncio
import json
import os
import signal
import sys
import warnings

import torch
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.utils import logging

from forage.engines.base import Request, Sampling
from forage.engines.local import LocalEngine
from forage.errors import UserError
from forage.policy.logprobs import check_scores, token_logprobs
from forage.policy.packing import pack, pack_trees

# Small enough to run at once, with a window shorter than the sequences.
SIZES = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 8, "max_position_embeddings": 128, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
    "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "n_inner": 48, "d_model": 32, "n_layers": 2,
    "n_heads": 4, "ffn_hidden_size": 48, "num_layers": 2, "attention_window": 8, "window_size": 8,
    "num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
    "n_routed_experts": 4, "shared_expert_intermediate_size": 16, "moe_num_experts": 4, "moe_k": 2,
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
    "use_cache": True, "attention_dropout": 0.0, "hidden_dropout": 0.0, "use_sliding_window": True,
    "initializer_range": 0.3,
}  # fmt: skip
LONGEST = 120  # seconds for a kind, on a busy machine
PROMPT = tuple(range(10, 30))
ENDS = ((40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50), (60, 61, 62, 63, 64, 65, 66))


class Row:
    def __init__(self, ids):
        self.ids, self.mask = ids, (0,) * len(PROMPT) + (1,) * (len(ids) - len(PROMPT))


ROWS = [Row((*PROMPT, *end)) for end in ENDS]


def tiny(kind, window):
    """A random model of a kind, with a sliding window where it has any, or none."""
    sizes = SIZES if window else SIZES | {"sliding_window": None, "use_sliding_window": False}
    named = CONFIG_MAPPING[kind]().to_dict()
    config = CONFIG_MAPPING[kind](**{name: value for name, value in sizes.items() if name in named})
    torch.manual_seed(0)
    return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)](config).eval().float()


def plain(model, row):
    """Log-probabilities of a row alone, by the model's own forward pass."""
    ids = torch.tensor([row.ids])
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits.float()
    return logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[len(PROMPT) - 1 :, 0]


def packed(model, how):
    """The same by token_logprobs, of both rows in one batch."""
    [batch] = how(ROWS, 1000)
    with torch.no_grad():
        values = token_logprobs(model, batch)
    found = {}
    for row, place in zip(*(batch.predicted_BT.nonzero(as_tuple=True)), strict=True):
        found.setdefault(int(batch.sequence_BT[row, place]), []).append(values[row, place])
    return [torch.stack(found[number]) for number in range(len(ROWS))]


def greedy(model, ids, count):
    ids = list(ids)
    with torch.no_grad():
        for _ in range(count):
            ids.append(int(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
    return tuple(ids[-count:])


def sampled(model, count):
    """By LocalEngine: two sequences at once, of which the second goes on with what the first computed."""
    engine = LocalEngine(model, 2)

    async def play():
        asked = [Request(row.ids, count, (), sampling=Sampling(0.0), episode=str(n)) for n, row in enumerate(ROWS)]
        return await asyncio.gather(*map(engine.generate, asked))

    return [sample.ids for sample in asyncio.run(play())]


def verdicts(kind, window):
    """{"rows": ..., "trees": ..., "engine": ...}, each right, refused: why, or wrong: how."""
    model = tiny(kind, window)
    wanted, told = [plain(model, row) for row in ROWS], {}
    if (made := verdict(lambda: check_scores(model) or "")) != "right":
        return {"made": made}
    for name, how in (("rows", pack), ("trees", pack_trees)):
        told[name] = verdict(lambda how=how: off(packed(model, how), wanted))
    expected = [greedy(model, row.ids, 6) for row in ROWS]
    told["engine"] = verdict(lambda: "" if sampled(model, 6) == expected else "other tokens")
    return told


def off(found, wanted):
    distance = max((one - other).abs().max().item() for one, other in zip(found, wanted, strict=True))
    return "" if distance < 1e-3 else f"off by {distance:.2g}"


def verdict(check):
    try:
        return f"wrong: {wrong}" if (wrong := check()) else "right"
    except UserError as error:
        return f"refused: {error}"
    except Exception as error:  # noqa: BLE001 - whatever a kind of model does is what is wanted to be known
        return f"wrong: {type(error).__name__}: {str(error)[:90]}"


def kinds():
    return [config.model_type for config in MODEL_FOR_CAUSAL_LM_MAPPING]


def apart(kind, window):
    """The verdicts on a kind by a process of its own, as some kinds end theirs or never end."""
    left, right = os.pipe()
    if not (child := os.fork()):
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # not pytest's: this process ends
            signal.alarm(LONGEST)
            try:
                found = verdicts(kind, window)
            except Exception as error:  # noqa: BLE001 - likewise
                found = {"made": f"not: {type(error).__name__}: {str(error)[:90]}"}
            os.write(right, json.dumps(found).encode())
        finally:
            os._exit(0)
    os.close(right)
    os.waitpid(child, 0)
    with os.fdopen(left) as told:
        return json.loads(told.read() or '{"made": "not: it ended its process, or takes too long"}')


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    for kind in sys.argv[1:] or kinds():
        for window in (True, False):
            print(kind, "with a window" if window else "without", apart(kind, window), flush=True)
