"""A policy folder loads as it was made, in 4 bits or not, and is refused with one line where a part is missing."""

import json
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig

from create_lora_model import Options, main
from forage.policy.adapters import adapter_path, newest_adapter, publish_adapter, versions
from forage.policy.logprobs import check_scores, token_logprobs
from forage.policy.manifest import AdapterOptions, PolicyManifest, read_policy_manifest, write_policy_manifest
from forage.policy.packing import pack
from forage.policy.policy import check_length, load_base, load_policy
from tests.factories import Sequence, tiny_llama
from tests.refusals import refused


@pytest.fixture(scope="module", params=[True, False], ids=["4-bit", "whole"])
def made(request, tmp_path_factory, tiny_base):
    base = tmp_path_factory.mktemp("base") / "tiny"
    torch.manual_seed(0)
    tiny_llama().save_pretrained(base)
    AutoTokenizer.from_pretrained(tiny_base).save_pretrained(base)
    folder = tmp_path_factory.mktemp("policy") / "policy"
    adapter = AdapterOptions(r=4, alpha=8)
    main(Options(base_model=str(base), output_dir=folder, quantize=request.param, adapter=adapter, overwrite=True))
    return folder


def logprobs(model):
    [batch] = pack([Sequence((3, 4, 5, 6, 7), (0, 0, 1, 1, 1))], 10)
    with torch.no_grad():
        return token_logprobs(model, batch)


def test_only_the_adapter_is_trained_and_a_fresh_one_changes_nothing(made):
    manifest = read_policy_manifest(made)
    policy = load_policy(manifest)
    trained = [name for name, weight in policy.named_parameters() if weight.requires_grad]
    assert trained
    assert all("lora_" in name for name in trained)
    torch.testing.assert_close(logprobs(policy), logprobs(load_base(manifest)), atol=1e-4, rtol=1e-3)
    assert {weight.dtype for name, weight in policy.named_parameters() if "lora_" in name} == {torch.float32}


def test_what_was_measured_is_trained_by_the_same_gradients(made):
    """On processors with bf16 units bitsandbytes would repack 4-bit weights at the first pass without gradients."""
    policy = load_policy(read_policy_manifest(made))
    [batch] = pack([Sequence((3, 4, 5, 6, 7), (0, 0, 1, 1, 1))], 10)

    def gradients():
        policy.train()
        policy.zero_grad()
        token_logprobs(policy, batch).sum().backward()
        return {name: weight.grad.clone() for name, weight in policy.named_parameters() if weight.grad is not None}

    before = gradients()
    policy.eval()
    logprobs(policy)
    assert not any(getattr(module, "support_avx512bf16_for_cpu", False) for module in policy.modules())
    after = gradients()
    assert before
    assert all(torch.equal(gradient, after[name]) for name, gradient in before.items())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_policy_says_what_it_is_computed_in_whatever_the_machine_would_choose(tmp_path, tiny_base, dtype):
    torch.manual_seed(0)
    tiny_llama().save_pretrained(tmp_path / "tiny")
    AutoTokenizer.from_pretrained(tiny_base).save_pretrained(tmp_path / "tiny")
    main(Options(base_model=str(tmp_path / "tiny"), output_dir=tmp_path / "policy", quantize=False, dtype=dtype))
    manifest = read_policy_manifest(tmp_path / "policy")
    assert {weight.dtype for weight in load_base(manifest).parameters()} == {getattr(torch, dtype)}
    write_policy_manifest(manifest, tmp_path)
    assert read_policy_manifest(tmp_path).dtype == dtype  # also in the folder of a warm start or a run
    fields = json.loads((tmp_path / "model.json").read_text())
    (tmp_path / "model.json").write_text(json.dumps(fields | {"dtype": "int8"}))
    with refused(r"damaged \(dtype: Input should be .auto., .bfloat16. or .float32.\)"):
        read_policy_manifest(tmp_path)


def test_adapters_are_published_whole_under_their_version_and_name_the_full_base(made, tmp_path, monkeypatch):
    manifest = read_policy_manifest(made)
    policy = load_policy(manifest)
    write_policy_manifest(manifest, tmp_path)
    # PEFT would ask the hub for a base that is no folder here, each time.
    monkeypatch.setattr("peft.utils.save_and_load.check_file_exists_on_hf_hub", lambda *_: pytest.fail("asks the hub"))
    for version in (0, 12):
        assert publish_adapter(policy, tmp_path, version) == adapter_path(tmp_path, version)
    policy.peft_config["default"].base_model_name_or_path = "someone/a-base"
    publish_adapter(policy, tmp_path / "of-a-hub-name", 0)
    (tmp_path / "adapters" / ".v000013.part").mkdir()  # left by a killed process
    assert versions(tmp_path) == [0, 12]
    assert newest_adapter(tmp_path).name == "v000012"
    config = json.loads((newest_adapter(tmp_path) / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == manifest.full_base
    assert sorted(path.name for path in newest_adapter(tmp_path).iterdir()) == [
        "adapter_config.json", "adapter_model.safetensors", "contents.json",
    ]  # fmt: skip
    load_policy(read_policy_manifest(tmp_path))  # a run folder is a policy too, wherever its base lies


@pytest.mark.parametrize(
    ("rotations", "most"),
    [
        (None, 128),
        ({"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4, "original_max_position_embeddings": 64}, 64),
        ({"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}, 128),
    ],
)
def test_episodes_longer_than_the_base_takes_are_refused(tmp_path, rotations, most):
    """Rotations that depend on the length change all positions once a sequence is longer than in the first training."""
    more = {"rope_parameters": rotations} if rotations else {}
    LlamaConfig(max_position_embeddings=128, **more).save_pretrained(tmp_path)
    manifest = PolicyManifest(tmp_path, str(tmp_path), str(tmp_path), quantized=False)
    check_length(manifest, most)
    with refused(rf"--max-tokens {most + 1} is more than the {most} that .* takes; give {most}"):
        check_length(manifest, most + 1)


def test_a_model_that_makes_its_logits_in_a_way_of_its_own_is_refused():
    model = tiny_llama()
    check_scores(model)
    model.forward = lambda **given: SimpleNamespace(logits=type(model).forward(model, **given).logits * 3)
    with refused("llama models make their logits in a way of their own"):
        check_scores(model)


def test_a_model_that_looks_ahead_is_refused():
    model = tiny_llama()
    model.model.norm.register_forward_hook(lambda norm, given, states: states + states.mean(dim=1, keepdim=True))
    with refused("llama models make their logits in a way of their own"):
        check_scores(model)
