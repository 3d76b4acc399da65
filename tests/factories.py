"""What tests of several modules make: an episode, a step's statistics, small models without a tokenizer."""

from dataclasses import dataclass, replace

import numpy as np

from forage.agent.episode import Episode, Search, Turn
from forage.data.records import Question
from forage.policy.adapters import adapter_path, list_contents
from forage.rollout.agreement import RunManifest
from forage.runs.stats import StepStats
from forage.store.document_store import DocumentStore
from forage.store.options import StoreOptions

# The example of Episode's docstring, the prompt's tokens 1 to 3.
EPISODE = Episode(
    id="q/0", question_id="q", ids=(1, 2, 3, 4, 5, 6, 7, 8, 9, 5), mask=(0, 0, 0, 1, 1, 0, 0, 0, 1, 1),
    logprobs=(0.0, 0.0, 0.0, -0.2, -0.1, 0.0, 0.0, 0.0, -0.7, 0.0), turns=(Turn(3, 5), Turn(8, 10)),
    searches=(Search(0, "gout", ("a", "b")), Search(0, "toe", ("b", "c"))), answer="Rest – and “ice”.", stop="answer",
    adapter="v000003", rewards={"mrr": 0.5}, reward=0.5, seconds={"total": 1.5},
)  # fmt: skip

STATS = StepStats(
    step=7,
    adapter="v000007",
    rewards={"overall": [0.5, 0.75], "mrr": [0.0, 1.0]},
    groups={"total": 1, "flat": 0, "replaced": 2},
    episodes={
        "count": 2, "well_formed": 0.5, "searches": 1.5, "turns": 2.0, "sampled_tokens": 40.0, "tokens": 300.0,
    },
    stops={"answer": 1, "turns": 1},
    faults={"bad_json": 1},
    training={"policy_loss": -0.01, "kl": 0.002, "ratio_max": 1.5},
    evaluation={"mrr": {"mean": 0.4, "low": 0.3, "high": 0.5}},
    notes=["half of the groups were flat"],
    seconds={"rollout": 20.5, "step": 31.0},
    memory_gib=1.5,
)  # fmt: skip

MANIFEST = RunManifest(
    adapter="v000000", adapter_weights="0123456789abcdef", data={}, embedder="", embedder_weights="", rewards={},
    weights={}, tools={}, options={},
)  # fmt: skip

QUESTION = Question("q1", "What is gout?", "A disease.")


def answering(*answers):
    """An episode for each answer."""
    return [replace(EPISODE, id=f"q/{n}", answer=answer) for n, answer in enumerate(answers)]


@dataclass
class Sequence:
    """As much of an episode as packing needs."""

    ids: tuple
    mask: tuple

    @property
    def sampled(self):
        return sum(self.mask)


def empty_adapter(run_dir, version):
    """An adapter that consists of nothing, whole."""
    adapter_path(run_dir, version).mkdir(parents=True)
    list_contents(adapter_path(run_dir, version))


def plain_store(folder, documents, **options):
    """A new store that is searched by words alone."""
    return DocumentStore.build(folder, documents, StoreOptions("none", **options))


class Clock:
    """A clock that stands still until a test sets it, in the place of time.perf_counter."""

    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        return self.seconds


def stir(policy, std):
    """Let an adapter, which begins as nothing, change what its base says."""
    import torch

    for name, weight in policy.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=std)


def tiny_llama(**settings):
    """61 tokens, two layers, random weights: for tests that make their token ids themselves."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=61, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, **settings,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def tiny_model(**settings):
    """tiny_llama with the same weights each time."""
    import torch

    torch.manual_seed(0)
    return tiny_llama(**settings)


def plain_logprobs(model, batch, temperature=1.0):
    """Log-probabilities of a batch's sampled tokens, by the formula as it stands in books."""
    import torch

    logits = model(input_ids=batch.ids_BT, attention_mask=batch.attention_BT).logits.float() / temperature
    chosen = logits.log_softmax(-1)[:, :-1].gather(2, batch.ids_BT[:, 1:, None]).squeeze(2)
    return torch.cat([torch.zeros(len(chosen), 1), chosen], dim=1) * batch.sampled_BT


def run_of(steps, **changes):
    """Statistics of steps 0, 1, ...: the overall reward rises, an evaluation each tenth step."""
    generator = np.random.default_rng(0)
    return [
        replace(
            STATS,
            step=step,
            rewards={
                "overall": generator.beta(1 + step / steps, 2, 8).tolist(),
                "mrr": generator.choice([0, 0.5, 1.0], 8).tolist(),
            },
            evaluation={"mrr": {"mean": 0.5, "low": 0.4, "high": 0.6}} if step % 10 == 0 else None,
            **changes,
        )
        for step in range(steps)
    ]
