"""What the scripts will pick where nothing is said, asked of the very functions by which they decide."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from forage.doctor.hardware import Place
from forage.doctor.lines import GIB, Line
from forage.doctor.services import Hub
from forage.errors import UserError


@dataclass(frozen=True)
class Picked:
    """The defaults that other lines depend on."""

    base: str
    embedder: str
    quantized: bool
    gpu: bool


def pick(hub: Hub) -> Picked:
    import torch

    from forage.policy.base_models import model_choice, quantizes
    from forage.store.embedder import embedder_choice

    base, embedder = model_choice(), embedder_choice(lambda: hub.reachable)
    return Picked(base.name, embedder.name, quantizes(), torch.cuda.is_available())


def default_lines(hub: Hub) -> list[Line]:
    """Base, embedder, number type, 4 bits, engine and sharding, each with the rule and the option that changes it."""
    from forage.engines.choice import uses_servers, with_key
    from forage.engines.options import EngineOptions
    from forage.grpo.options import TrainOptions
    from forage.machine import compute_dtype, has_bf16
    from forage.policy.base_models import model_choice
    from forage.store.embedder import embedder_choice

    picked, base, embedder = pick(hub), model_choice(), embedder_choice(lambda: hub.reachable)
    device, engine = "cuda" if picked.gpu else "cpu", with_key(EngineOptions())
    dtype = str(compute_dtype()).removeprefix("torch.")
    units = f"the {'GPU' if picked.gpu else 'processor'} has {'' if has_bf16(device) else 'no '}bf16 units"
    four = "bfloat16 compute over 4 bits" if picked.quantized else "the base as it is"
    served = uses_servers(engine)
    sharding = TrainOptions().sharding

    def chosen(name: str, value: str, why: str, option: str) -> Line:
        return Line("choice", f"{name}: {value}", why, option, figures={"name": name, "value": value})

    return [
        chosen("base model", base.name, base.why, "python create_lora_model.py --base-model NAME"),
        chosen("4 bits", "yes" if picked.quantized else "no", f"there is {'a' if picked.gpu else 'no'} GPU: {four}",
               "python create_lora_model.py --quantize, --no-quantize"),
        chosen("number type", dtype, units, "python create_lora_model.py --dtype TYPE"),
        chosen("embedder", embedder.name, embedder.why, "python data_prep.py --embedder NAME"),
        chosen("engine", "vllm" if served else "local",
               f"{'a' if served else 'no'} vLLM server answers at {engine.urls[0]}",
               "python grpo_train.py --engine NAME"),
        chosen("sharding", sharding, "the default of grpo_train.py; the stack takes SHARDING of .env",
               "python grpo_train.py --sharding NAME"),
        *(plan_lines(picked) if picked.gpu else ()),
    ]  # fmt: skip


def plan_lines(picked: Picked) -> list[Line]:
    """How the first GPU would hold trainer and server, as python -m forage.policy.memory plans it."""
    import torch

    from forage.policy.memory import Work, plan
    from forage.policy.shapes import shape_of

    total = torch.cuda.get_device_properties(0).total_memory / GIB
    command = f"python -m forage.policy.memory --gpu-gib {total:.0f}"
    try:
        found = plan(shape_of(picked.base), total, Work(precision="nf4" if picked.quantized else "bf16"))
    except UserError as error:
        return [Line("problem", f"memory plan for {total:.0f} GiB", str(error), command)]
    return [Line("choice", f"memory plan: {found.arrangement}", found.training.flags, command,
                 figures={"name": "memory plan", "value": found.arrangement})]  # fmt: skip


# Where the default models come from


def model_lines(hub: Hub) -> list[Line]:
    """The embedded models' packages, and the hub's models in the cache."""
    from huggingface_hub.constants import HF_HUB_CACHE

    from forage.policy.base_models import HUB_MODEL
    from forage.policy.identity import folder_of
    from forage.store.embedder import HUB_EMBEDDER

    picked, lines = pick(hub), packaged_lines(pick(hub))
    for name in (HUB_MODEL, HUB_EMBEDDER):
        wanted = name in (picked.base, picked.embedder)
        cached = folder_of(name) is not None
        figures = {"model": name, "cached": cached}
        if cached:
            lines.append(Line("ok", name, f"it is in the cache {HF_HUB_CACHE}", figures=figures))
        elif wanted and hub.reachable:
            lines.append(Line("choice", name, f"to be downloaded into {HF_HUB_CACHE}", figures=figures))
        else:
            why = f"not in the cache {HF_HUB_CACHE}" + (", and the hub can't be reached" if wanted else "")
            lines.append(Line("missing", name, f"{why}; only with a GPU it is the default" if not wanted else why,
                              f"hf download {name}", needed=wanted, figures=figures))  # fmt: skip
    return lines


def packaged_lines(picked: Picked) -> list[Line]:
    from forage.policy.base_models import PACKAGED_MODEL, gguf_path
    from forage.store.embedder import PACKAGED_EMBEDDER, locate

    lines = []
    finders: dict[str, Callable[[], Path]] = {
        PACKAGED_MODEL: gguf_path, PACKAGED_EMBEDDER: lambda: Path(locate(PACKAGED_EMBEDDER)[0])
    }  # fmt: skip
    for name, find in finders.items():
        needed, figures = name in (picked.base, picked.embedder), {"model": name}
        try:
            path = find()
        except UserError as error:
            why, _, command = str(error).partition(": ")
            lines.append(Line("missing", name, why, command, needed=needed, figures=figures))
            continue
        if path.exists():
            lines.append(Line("ok", name, "its package is installed", figures=figures))
        else:
            lines.append(Line("problem", name, f"its package lacks {path.name}",
                              f"pip install --force-reinstall --no-deps {name}", needed=needed,
                              figures=figures))  # fmt: skip
    return lines


# Room on disks


def places(picked: Picked | None) -> list[Place]:
    """The folders that the scripts write to by default, and what the default base will take there.

    Without torch nothing is picked, and only the room is told.
    """
    from forage.grpo.options import TrainOptions
    from forage.rollout.options import RolloutOptions

    rollout = RolloutOptions()
    models = rollout.policy.parent
    found = [Place("data", rollout.data), Place("run", TrainOptions().run_dir)]
    if picked is None:
        return [*found, Place("models", models)]
    from huggingface_hub.constants import HF_HUB_CACHE

    in_models, in_cache = room_for(picked, models)
    short = Path(picked.base).name
    return [
        *found, Place("models", models, in_models, f"{short} {'in 4 bits' if picked.quantized else ''}".strip()),
        Place("hub cache", Path(HF_HUB_CACHE), in_cache, short),
    ]  # fmt: skip


def room_for(picked: Picked, models: Path) -> tuple[float, float]:
    """Bytes that the default base will take in the models' folder, and in the hub's cache."""
    from forage.policy.base_models import CONVERTED, PACKAGED_MODEL
    from forage.policy.footprint import weight_bytes
    from forage.policy.identity import folder_of
    from forage.policy.shapes import shape_of

    shape = shape_of(picked.base)
    whole = weight_bytes(shape, "bf16")
    packed = weight_bytes(shape, "nf4") if picked.quantized else 0.0
    if picked.base == PACKAGED_MODEL:
        return packed + (0.0 if (models / CONVERTED).is_dir() else whole), 0.0
    return packed, 0.0 if folder_of(picked.base) else whole
