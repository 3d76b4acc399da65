"""The compose files, read without Docker: which service gets which settings, and that no service gets another's key."""

import os
import re
import subprocess

import pytest
import yaml

from forage.stack_settings import NUMBERS
from tests import ROOT
from tests.stand_ins import machine_with

# The services that use each key.
KEYS = {
    "VLLM_API_KEY": {"vllm", "rollout"},
    "HF_TOKEN": {"prepare"},
    "WANDB_API_KEY": {"train"},
    "OPENAI_API_KEY": {"rollout"},
}
FILES = (["docker-compose.yml"], ["docker-compose.yml", "docker-compose.cpu.yml"])


class Loader(yaml.SafeLoader):
    """YAML with Compose's tag `!reset`, which empties what an earlier file says."""


Loader.add_constructor("!reset", lambda loader, node: None)


def services_of(files):
    """Each service's settings; a later file adds to an earlier one."""
    services = {}
    for file in files:
        for name, service in yaml.load((ROOT / file).read_text(), Loader)["services"].items():
            before = services.setdefault(name, {})
            both = {**(before.get("environment") or {}), **(service.get("environment") or {})}
            services[name] = {**before, **service, "environment": both}
    return services


def resolved(environment, settings):
    """What a container sees, by Compose's rules: `NAME:` passes NAME on if it is set; ${NAME:-default} is replaced."""
    seen = {}
    for name, value in environment.items():
        if value is not None:
            seen[name] = re.sub(r"\$\{(\w+)(?::[-?]([^}]*))?\}", lambda m: settings.get(m[1]) or m[2] or "", str(value))
        elif name in settings:
            seen[name] = settings[name]
    return seen


def settings_of_the_example():
    """Every setting, with a value of its own that it may have."""
    names = re.findall(r"^(?:# )?([A-Z][A-Z0-9_]+)=", (ROOT / ".env.example").read_text(), re.MULTILINE)
    numbers = {name: str(7 + place) for place, name in enumerate(NUMBERS)}
    cards = {"VLLM_GPUS": "0", "TRAIN_GPUS": "1,2,3", "TRAIN_PROCESSES": "2", "VLLM_GPU_MEMORY": "0.7", "CARD": "24"}
    choices = {"SHARDING": "zero3", "OFFLOAD": "all", "SERVE": "nf4", "QUANTIZE": "1", "REPORT_TO": "trackio"}
    choices |= {"ENGINE": "local"}
    choices |= {"NODE_RANK": ""}  # of a node among several, which a container is not
    base = {"BASE_MODEL": "Qwen/Qwen2.5-7B-Instruct"}
    return {name: f"own-{name.lower()}" for name in names} | numbers | choices | cards | base


@pytest.mark.parametrize("files", FILES, ids=["GPU", "CPU"])
def test_no_service_gets_a_key_that_it_does_not_use(files):
    settings, services = settings_of_the_example(), services_of(files)
    assert settings.keys() >= KEYS.keys()
    assert set(services) == {"prepare", "vllm", "rollout", "train", "chroma"}
    for name, service in services.items():
        assert ("env_file" in service) == (name == "prepare")  # it alone gets all of .env, to check it
        seen = (settings if "env_file" in service else {}) | resolved(service["environment"], settings)
        for key, users in KEYS.items():
            has = settings[key] in str(seen) + str(service.get("command")) + str(service.get("entrypoint"))
            assert has == (name in users), f"{name}: {key}"


@pytest.mark.parametrize("service", ["prepare", "rollout", "train"])
def test_every_setting_reaches_the_services_as_it_reaches_terminals(service, tmp_path):
    """scripts/stack.sh in a container, which has no .env, prints the commands that it prints beside one."""
    gpus = machine_with(tmp_path / "bin", 4)
    settings = {name: value for name, value in settings_of_the_example().items() if name not in KEYS}
    settings |= {"VLLM_URLS": "http://one:1 http://two:2"}
    (tmp_path / "env").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    inside = resolved(services_of(FILES[0])[service]["environment"], settings)
    shown = commands({"ENV_FILE": str(tmp_path / "none")} | inside | gpus)
    in_terminals = commands({"ENV_FILE": str(tmp_path / "env")} | gpus)
    assert shown[service] == in_terminals[service]


def commands(environment):
    """What `stack.sh show` prints for each service."""
    plain = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    done = subprocess.run(
        ["bash", ROOT / "scripts" / "stack.sh", "show"], capture_output=True, text=True, check=True,
        env=plain | environment,
    )  # fmt: skip
    parts = re.split(r"\n# pane: (\w+)\n", done.stdout)
    return {"prepare": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}
