"""What a sampler serves in the place of the adapter in training, and that nothing is learnt from it."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file, save_file

from forage.engines.local import LocalEngine, inverse_cdf
from forage.grpo.learner import BASE, PREVIOUS, Learner
from forage.grpo.served import of_each_sampler, on_the_way
from tests.factories import EPISODE
from tests.refusals import refused
from tests.tiny_training import adapter_bytes, tiny_options, train

LOAD, GENERATE, TABLE = LocalEngine.load_adapter, LocalEngine.generate, Learner.table


def edited(folder, scratch, change, **config):
    """A copy of an adapter, whose weights `change` keeps or alters by name, with other settings."""
    target = shutil.copytree(folder, scratch / folder.name)
    weights = {name: change(name, weight) for name, weight in load_file(folder / "adapter_model.safetensors").items()}
    save_file({n: w for n, w in weights.items() if w is not None}, target / "adapter_model.safetensors")
    settings = json.loads((target / "adapter_config.json").read_text())
    (target / "adapter_config.json").write_text(json.dumps(settings | config))
    return target


def same(name, weight):
    return weight


def before(engine, folder, scratch):
    return folder.with_name("v000003")


def base(engine, folder, scratch):
    return edited(folder, scratch, lambda name, weight: weight * ("lora_B" not in name))


def half(engine, folder, scratch):
    alpha = json.loads((folder / "adapter_config.json").read_text())["lora_alpha"]
    return edited(folder, scratch, same, lora_alpha=alpha / 2)


def without_values(engine, folder, scratch):
    return edited(folder, scratch, lambda name, weight: weight * ("v_proj.lora_B" not in name))


def half_of_its_ranks(engine, folder, scratch):
    def first(name, weight):
        return weight * (torch.arange(len(weight)) < len(weight) / 2)[:, None] if "lora_A" in name else weight

    return edited(folder, scratch, first)


def of_another_run(engine, folder, scratch):
    """As far from the base, elsewhere."""
    draw = torch.Generator().manual_seed(1)

    def other(name, weight):
        size = weight.norm() if "lora_B" in name else 0
        drawn = torch.randn(weight.shape, generator=draw)
        return weight + 3 * size * drawn / drawn.norm()

    return edited(folder, scratch, other)


def with_another_base(engine, folder, scratch):
    """... as one that was trained further."""
    draw = torch.Generator().manual_seed(1)
    for weight in engine.model.parameters():
        weight.data += 0.5 * weight.std() * torch.randn(weight.shape, generator=draw)
    return folder


def in_4_bits(engine, folder, scratch):
    """Its base's products by 15 levels for each 64 weights."""
    for name, weight in engine.model.named_parameters():
        if "proj" in name:
            groups = weight.data.reshape(-1, min(64, weight.shape[-1]))
            level = groups.abs().amax(1, keepdim=True) / 7
            weight.data = ((groups / level).round() * level).reshape(weight.shape)
    return folder


def serving(attack, scratch, noise=0.0):
    """The local engine, which serves `attack`'s folder in the place of version 4, and rounds as much."""

    async def load_adapter(self, name, folder):
        await LOAD(self, name, attack(self, folder, scratch) if attack and folder.name == "v000004" else folder)

    draw = torch.Generator().manual_seed(1)

    async def generate(self, request):
        sample = await GENERATE(self, request)
        off = (noise * torch.randn(len(sample.logprobs), generator=draw)).tolist()
        return type(sample)(sample.ids, tuple(x + e for x, e in zip(sample.logprobs, off, strict=True)), sample.finish)

    return patch.multiple(LocalEngine, load_adapter=load_adapter, generate=generate)


@pytest.mark.parametrize("noise", [0.0, 0.03])
@pytest.mark.parametrize(("attack", "words"), [
    (before, "served v000003 as v000004"),
    (base, "served the base as v000004"),
    (half, r"served an adapter of \d\d% of its effect as v000004"),
    (without_values, r"served an adapter of \d\d% of its effect as v000004"),
    (half_of_its_ranks, r"served an adapter of \d\d% of its effect as v000004"),
    (of_another_run, "served another model as v000004"),
    (with_another_base, "served another model as v000004"),
])  # fmt: skip
def test_another_policy_than_the_adapter_is_noticed_before_anything_is_learnt(tiny, tmp_path, attack, words, noise):
    options = tiny_options(tiny, tmp_path / "run", eval_every=0, max_steps=5)
    with (
        serving(attack, tmp_path, noise),
        refused("trainer's engine " + words + "; start it and all workers again, then re-run"),
    ):
        train(options)
    assert not (tmp_path / "run" / "training_stats_4.json").exists()
    assert [path.name for path in (tmp_path / "run" / "stale" / "000" / "episodes").iterdir()] == ["000004"]
    train(options)  # with an engine that serves it
    whole = tiny_options(tiny, tmp_path / "whole", eval_every=0, max_steps=5)
    if not noise:
        train(whole)
        assert adapter_bytes(tmp_path / "run", 5) == adapter_bytes(tmp_path / "whole", 5)


@pytest.mark.parametrize(("base", "noise"), [(None, 0.0), (None, 1e-4), (None, 0.03), (None, 0.3), (in_4_bits, 0.0)])
def test_rounding_alone_raises_no_alarm(tiny, tmp_path, base, noise):
    with serving(base, tmp_path, noise):
        train(tiny_options(tiny, tmp_path / "run", eval_every=0, max_steps=5))


def test_other_adapters_are_scored_once_while_a_sampler_rounds_as_before(tiny, tmp_path):
    """... and again once it is further off, as one that loads the fifth adapter by half."""
    scored = []

    def table(self, *rest, name="", **named):
        scored.append(name)
        return TABLE(self, *rest, name=name, **named)

    with patch.object(Learner, "table", table), serving(half, tmp_path, 0.01), refused("an adapter of .* as v000004"):
        train(tiny_options(tiny, tmp_path / "run", eval_every=0, max_steps=5))
    assert Counter(scored) == {"": 5, PREVIOUS: 1, BASE: 2}


def test_the_most_uncertain_episodes_of_a_version_are_scored():
    """Of questions a (-1 on average), b (-2) and c, whose only episode is of the version before; 40 tokens each."""

    def played(name, logprob, version=4, server="gpu1:8100"):
        ids = (1,) * 41
        given = (0.0, *[logprob] * 40)
        adapter = f"run-v00000{version}-0123abcd"
        return replace(EPISODE, id=name, question_id=name[0], ids=ids, mask=(0, *[1] * 40), logprobs=given, turns=(),
                       adapter=adapter, server=server, worker="w", credits=(), earlier=())  # fmt: skip

    given = {"a/0": -1.5, "a/1": -0.5, "b/0": -1.2, "b/1": -2.8}
    episodes = [
        *(played(*each) for each in given.items()),
        played("c/0", -9.0, version=3),
        played("d/0", -1.0, server=""),
    ]
    found = of_each_sampler(episodes, 4)
    assert {name: [each.id for each in some] for name, some in found.items()} == {
        "gpu1:8100": ["b/1", "b/0"], "w's engine": ["d/0"],
    }  # fmt: skip


def test_a_share_of_the_way_by_hand():
    own, other = torch.tensor([-1.0, -1.0]), torch.tensor([-3.0, -1.0])
    way = on_the_way(own, other, torch.tensor([-2.0, -1.0]))
    assert (way.share, way.surely, way.rest) == (0.5, 0.5, 0)
    assert way.size == pytest.approx(2**0.5)
    # Beside the way by 2: a rest of sqrt(4/2); its error is sqrt(2) * sqrt(2) / 2, of which there are four.
    way = on_the_way(own, other, torch.tensor([-2.0, 1.0]))
    assert way.share == 0.5
    assert way.rest == pytest.approx(2**0.5)
    assert way.surely == pytest.approx(0.5 - 4)
    assert on_the_way(own, own, other).surely == 0  # two versions that are the same can't be told apart


def test_a_sampler_that_takes_the_likeliest_tokens_alone_is_noticed(tiny, tmp_path):
    """Its log-probabilities are right; only the tokens are no draws."""

    def cut(weights_RV, draws_R):
        _, totals_R = inverse_cdf(weights_RV, draws_R)
        return inverse_cdf(weights_RV * (weights_RV >= weights_RV.topk(10).values[:, -1:]), draws_R)[0], totals_R

    with patch("forage.engines.local.inverse_cdf", cut), refused("likelier than draws from the policy, by [01].*top-k"):
        train(tiny_options(tiny, tmp_path / "run", eval_every=0, on_collapse="stop"))
