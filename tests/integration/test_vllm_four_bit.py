"""A 4-bit base on a real vLLM server, in 4 bits and as a copy: its log-probabilities are the trainer's."""

import asyncio
from dataclasses import replace

import pytest
import torch

from forage.engines.base import EngineOptions, Sampling
from forage.engines.vllm import VLLMEngine, Wanted
from forage.policy.adapters import adapter_path, newest_adapter, publish_adapter
from forage.policy.manifest import AdapterOptions, read_policy_manifest, write_policy_manifest
from forage.policy.policy import create_policy, load_policy
from forage.policy.served_base import Options, serve_base
from tests.factories import stir
from tests.integration.agreement import differences, requests_of

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
# --serve, what trainer and server compute in, and the bound of the mean difference. The plugin serves in bf16 only. In
# bf16 sampler and trainer round differently; in fp32 only another order of sums is left.
WAYS = {"in 4 bits": ("nf4", "bfloat16", 0.08), "as a copy in fp32": ("bf16", "float32", 1e-3)}


@pytest.fixture(scope="module")
def made(model_folder, tmp_path_factory):
    """A policy over SmolLM2 in 4 bits, with a fresh adapter and two that say something else."""
    folder = tmp_path_factory.mktemp("four_bit") / "policy"
    adapter = AdapterOptions(r=8, alpha=8)
    create_policy(str(model_folder), folder, adapter, quantize=True, dtype="bfloat16")
    for version in (1, 2):
        policy = load_policy(read_policy_manifest(folder), adapter_path(folder, 0))
        torch.manual_seed(version)
        stir(policy, 0.05)
        publish_adapter(policy, folder, version)
    assert newest_adapter(folder) == adapter_path(folder, 2)
    return folder


@pytest.mark.parametrize("way", WAYS)
def test_log_probabilities_are_the_trainers_before_and_after_a_swap(start_server, made, protocol, tmp_path, way):
    serve, dtype, bound = WAYS[way]
    write_policy_manifest(manifest := replace(read_policy_manifest(made), dtype=dtype), made)
    link = tmp_path / "served"
    serve_base(Options(made, link, serve))
    requests = requests_of(protocol, count=8, tokens=24, sampling=Sampling())

    async def play():
        wanted, samples = Wanted(manifest, 49152, 2048), {}
        async with VLLMEngine(EngineOptions(urls=(server.url,), patience=600.0), wanted) as engine:
            for version in (0, 1, 2):
                if version:
                    await engine.load_adapter(f"v{version:06d}-four-bit", adapter_path(made, version))
                samples[version] = await asyncio.gather(*map(engine.generate, requests))
        return samples

    server = start_server(link, DTYPE=dtype)
    try:
        samples = asyncio.run(play())
    finally:
        server.kill()
    for version in (0, 1, 2):  # the fresh adapter v000000 changes nothing
        policy = load_policy(manifest, adapter_path(made, version)).eval()
        apart = {of: differences(policy, requests, sampled) for of, sampled in samples.items()}
        means = {of: float(values.mean()) for of, values in apart.items()}
        others = ", ".join(f"v{of} {mean:.3f}" for of, mean in means.items() if of != version)
        own = f"mean {means[version]:.2e}, most {apart[version].max():.2e}"
        print(f"{way}, adapter v{version}: {len(apart[version])} tokens, {own}; tokens of {others}")
        assert means[version] < bound
        assert all(mean > 2 * means[version] for of, mean in means.items() if of != version)
