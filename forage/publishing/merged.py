"""Merges an adapter into its full base by PEFT, giving one plain checkpoint with a model card, and proves the merge.

The merged folder has to predict what base + adapter predicts, on fixed texts. Both are loaded in fp32, one after the
other.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import torch
from huggingface_hub import ModelCardData
from torch import Tensor

from forage.agent.options import AGENT_FILE, AgentSettings, read_agent
from forage.agent.protocol import Protocol
from forage.errors import UserError, first_line
from forage.evaluation.options import MANIFEST
from forage.files import check_apart, check_replaceable
from forage.machine import hub_reachable
from forage.policy.adapters import newest_adapter, versions, weights_digest
from forage.policy.base_models import check_folder, folder_of, resolve_model, same_base
from forage.policy.manifest import full_base_of
from forage.publishing.chat_template import says_prompt
from forage.rollout.agreement import read_run

WEIGHT_ENDINGS = (
    ".safetensors", ".bin", ".gguf", ".pth", ".pt", ".ckpt", ".h5", ".msgpack", ".onnx", ".index.json",
)  # fmt: skip
CARD_MARK = "merged into its base by `merge_lora.py`"  # a line of each merged model's card
# Beside the base's own files.
WRITTEN = ("agent.json", "chat_template.jinja", "config.json", "generation_config.json", "model*.safetensors*")


def find_adapter(folder: Path) -> Path:
    """The folder itself if it holds an adapter, else its newest version under adapters/."""
    if (folder / "adapter_config.json").is_file():
        return folder
    if not versions(folder):
        raise UserError(f"{folder} has neither adapter_config.json nor adapters/v000000; name an adapter's folder")
    newest = newest_adapter(folder)
    print(f"adapter: {newest}, the newest of {len(versions(folder))}")
    return newest


def adapter_config(adapter: Path) -> dict[str, Any]:
    return json.loads((adapter / "adapter_config.json").read_text())


def find_base(asked: str, adapter: Path, models_dir: Path, *, allow_other: bool = False) -> tuple[str, Path]:
    """Name and folder of the base that the user asked for, or else of the one that the adapter names.

    Refuses a base other than the adapter's, unless `allow_other`.
    """
    named = adapter_config(adapter).get("base_model_name_or_path") or ""
    if not (asked or named):
        raise UserError(f"{adapter} names no base; name one with --base-model")
    name = resolve_model(full_base_of(Path(asked or named))[0] or asked or named, models_dir)
    folder = Path(name) if Path(name).is_dir() else hub_folder(name)
    if "quantization_config" in json.loads((folder / "config.json").read_text()):
        # A 4-bit base made by create_lora_model.py lies inside its policy folder.
        full = full_base_of(folder.resolve().parent)[0] or "MODEL, the one it was made from"
        raise UserError(f"{name} is quantised; merge into its full base: --base-model {full}")
    if named and not allow_other:
        check_same(name, adapter, named)
    return name, folder


def check_same(name: str, adapter: Path, named: str) -> None:
    """Refuse a base that is not the adapter's, or that can't be compared with it."""
    digest = full_base_of(adapter.parent.parent)[1]  # a policy's or a run's folder, if it lies in one
    if same_base(name, named, digest):
        return
    if digest or folder_of(named):
        raise UserError(
            f"{adapter} was made for {named}, and {name} has other weights than that had; "
            "give --base-model a copy of the one it was made for"
        )
    raise UserError(
        f"{adapter} was made for {named}, which is not here to be compared with {name}; "
        "add --allow-other-base if they are the same"
    )


def hub_folder(name: str) -> Path:
    """The hub's cached copy of a model, downloaded first if it isn't complete."""
    from huggingface_hub import snapshot_download

    folder = folder_of(name)
    if folder is None:
        if not hub_reachable():
            raise UserError(f"model {name!r} is not complete in the cache, and the hub can't be reached")
        folder = Path(snapshot_download(name, ignore_patterns=[f"*{ending}" for ending in WEIGHT_ENDINGS[1:-1]]))
        check_folder(folder)
    return folder


def other_files(base: Path) -> Iterator[Path]:
    """Everything but weights and model card: tokenizer, chat templates, settings, licence."""
    for path in sorted([*base.iterdir(), *base.glob("additional_chat_templates/*")]):
        skipped = path.name.startswith(".") or path.name == "README.md" or path.name.endswith(WEIGHT_ENDINGS)
        if path.is_file() and not skipped:
            yield path


def check_output(output: Path, adapter: Path, base: Path) -> None:
    """Refuse an output that would replace its own sources, or what is not a merged model."""
    for source in (base, adapter):
        check_apart("--output-path", output, {"the base or adapter": source})
    if output.exists():
        card = output / "README.md"
        if not (card.is_file() and CARD_MARK in card.read_text(encoding="utf-8", errors="replace")):
            raise UserError(f"--output-path {output} was not made by merge_lora.py; choose another --output-path")
        written = {path.relative_to(base).parts[0] for path in other_files(base)} | {*WRITTEN}
        check_replaceable("--output-path", output, "README.md", written)


# Writing


def write_merged(base: Path, adapter: Path, folder: Path, dtype: str, texts: Sequence[Tensor]) -> Proof | None:
    """The base's files, and its weights with the adapter merged into them in fp32 and rounded once.

    Returns how well that is base + adapter, on some texts if there are any.
    """
    from transformers import AutoModelForCausalLM

    for path in other_files(base):
        target = folder / path.relative_to(base)
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, target)
    policy = load(base, adapter)
    wanted = text_logprobs(policy, texts)
    with policy.disable_adapter():
        plain = text_logprobs(policy, texts)
    merged = policy.merge_and_unload().to(getattr(torch, dtype))
    merged.save_pretrained(folder)
    del policy, merged  # before the next model is loaded
    if not texts:
        return None
    found = text_logprobs(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), texts)
    return compare(torch.cat(plain), torch.cat(wanted), torch.cat(found))


def load(base: Path, adapter: Path) -> Any:
    """Base + adapter in fp32."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        full = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        return PeftModel.from_pretrained(full, str(adapter))
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(
            f"{adapter} can't be loaded over {base} ({first_line(error)}); are they for each other?"
        ) from error


# The proof


# About twice the largest mean difference that rounding alone made on SmolLM2-135M: 0.051 (a trained policy), 0.003,
# 0.000012 (r 16, alpha 32 on every linear layer, B of std 0.002 to 0.05, LoRA and DoRA). At std 0.02, half the scale
# made 0.17, twice the scale 0.36.
TOLERANCES = {"bfloat16": 0.1, "float16": 0.006, "float32": 1e-4}
TEXTS = (
    "Asthma is a long-term disease in which the airways of the lungs become inflamed and narrow.",
    "A person with type 1 diabetes makes little or no insulin, so that sugar stays in the blood.",
    "Question: What are the symptoms of gout?\nAnswer: Sudden, severe pain in a joint, often the big toe.",
    "The capital of France is Paris, which lies on the Seine.",
    '<tool_call>{"name": "search", "arguments": {"query": "treatment of iron deficiency"}}</tool_call>',
    "def square(number):\n    return number * number\n",
)


@dataclass(frozen=True)
class Proof:
    """Log-probabilities of the merged model compared with those of base + adapter, over the whole vocabulary."""

    positions: int
    mean: float
    effect: float
    """Mean difference between base + adapter and the base alone."""
    carried: float
    """How much of that effect the merged model has: 1 is all of it, 0 is a base without its adapter."""

    def __str__(self) -> str:
        return (
            f"log-probabilities at {self.positions} positions differ by {self.mean:.2g} on average; the adapter moves "
            f"them by {self.effect:.2g}, and the merged model has {self.carried:.1%} of that effect"
        )


def proof_texts(folder: Path) -> list[Tensor]:
    """The fixed texts' tokens, by a model's tokenizer."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise UserError(
            "the base has no tokenizer that can be loaded, which the proof needs; skip it with --no-prove"
        ) from error
    return [tokenizer(text, return_tensors="pt")["input_ids"] for text in TEXTS]


def compare(base_NV: Tensor, wanted_NV: Tensor, merged_NV: Tensor) -> Proof:
    """Log-probabilities of the base alone, of base + adapter, and of the merged model."""
    apart_NV = (merged_NV - wanted_NV).abs()
    effect_NV = wanted_NV - base_NV
    # Rounding errors point anywhere, a wrong scale along the effect: the projection onto the effect finds a wrong scale
    # even where the tolerance is larger than the effect.
    carried = float((effect_NV * (merged_NV - base_NV)).sum() / effect_NV.square().sum()) if effect_NV.any() else 1.0
    return Proof(len(apart_NV), float(apart_NV.mean()), float(effect_NV.abs().mean()), carried)


def check(proof: Proof, dtype: str) -> None:
    """Refuse a wrong merge."""
    if not proof.mean <= TOLERANCES[dtype]:  # written this way so that NaN is refused too
        raise UserError(
            f"the merged model is not base + adapter: mean difference {proof.mean:.2g}, over {TOLERANCES[dtype]}; "
            "--no-prove keeps it all the same"
        )
    # An effect below the resolution of fp32 can't be measured. At B of std 0.0002 bfloat16 keeps 58 % of it.
    if proof.effect > TOLERANCES["float32"] and not 0.5 < proof.carried < 1.5:
        raise UserError(
            f"the merged model has {proof.carried:.0%} of the adapter's effect: the merge is wrong, or {dtype} is too "
            "coarse for so small an adapter (try --dtype float32)"
        )


@torch.no_grad()
def text_logprobs(model: Any, texts: Sequence[Tensor]) -> list[Tensor]:
    """(positions, vocabulary) of each text."""
    return [model(input_ids=ids_1T).logits[0].float().log_softmax(-1) for ids_1T in texts]


# The model card: README.md, which says how to ask the model, what was measured of it, and how it was made


def model_card(
    folder: Path, adapter: Path, base_name: str, base: Path, dtype: str, proof: Proof | None,
    tokenizer: Any | None = None, measurements: str = "",
) -> str:  # fmt: skip
    """README.md. It will be published, so it shows only the last parts of this machine's paths.

    Without a tokenizer, or one with a chat template, the model can't be asked as its policy was, and the card doesn't
    say how. Its head, which the hub reads, is for the owner to complete: data, and the model's own licence.
    """
    name = base_name if base != Path(base_name) else base.resolve().name
    policy = adapter.resolve().parent.parent  # where the adapter is one of a policy's or a run's
    told = base / "README.md"
    top = told.read_text(encoding="utf-8", errors="replace").split("---")[1:2] if told.is_file() else []
    found = re.search(r"^license:\s*(\S+)", top[0], re.MULTILINE) if top else None
    licence = found[1] if found else ""
    head = ModelCardData(
        base_model=name, license=licence or None, library_name="transformers", pipeline_tag="text-generation"
    )
    parts = [f"---\n{head}\n---\n\n# {folder.name}\n\nA LoRA adapter {CARD_MARK}."]
    if tokenizer is not None and tokenizer.chat_template and (policy / AGENT_FILE).is_file():
        settings = read_agent(policy)
        parts.append(usage(folder, Protocol.playing(tokenizer, settings), settings))
    return "\n\n".join([*parts, *filter(None, [measurements]), making(adapter, name, licence, dtype, proof)]) + "\n"


# How to ask it

USAGE = Template("""## How to ask it

The model searches and answers in turns, and does so only after the system prompt that it was trained with:

```
$system
```

It searches by writing `<tool_call>{"name": "search", "arguments": {"query": "..."}}</tool_call>`. What was found comes
in a user turn, between `<tool_response>` and `</tool_response>`. It was trained with a $mode search that shows $k
passages of up to $passage_tokens tokens, each as `[1] title: text`.$described$others$served

```python
$code
```""")
BEGUN = """## How to ask it

Its first turn was begun for it with a call, up to the query, which no server does: ask it by chat.py."""
OTHERS = " It was trained with other tools as well, {}; `respond` must run them."
DESCRIBED = " The chat template describes the tool beside the system prompt, so give it `tools`."
SERVED = Template("""

`vllm serve` with `--enable-auto-tool-choice --tool-call-parser hermes` serves it to OpenAI clients. The chat template
says the system prompt where a conversation begins without one, and writes a client's tool calls and results as above.
Give these `tools`:

```json
$tools
```

Without a server:""")
CODE = Template(r"""import json
import re
import re
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

# Its folder, seen from here; or else its name on the hub.
MODEL = next((place for place in ($folder, $title, ".") if Path(place, "config.json").is_file()), $title)
SYSTEM = $system
${tools}LIBRARY = ["Garlic: plant the cloves in October.", "Carrots: sow them from March on.", "Beans: sow in May."]


def search(query):
    '''Your search goes here: the texts of the $k best passages.'''
    words = set(query.lower().split())
    return sorted(LIBRARY, key=lambda text: -len(words & set(text.lower().split())))[:$k]


def respond(call):
    try:
        query = json.loads(call)["arguments"]["query"]
    except (ValueError, KeyError, TypeError):
        return "error: the call is not valid JSON"
    return "\n".join(f"[{number}] {text}" for number, text in enumerate(search($searched), 1))


tokenizer, model = AutoTokenizer.from_pretrained(MODEL), AutoModelForCausalLM.from_pretrained(MODEL)
question = "When is garlic planted?"
messages = [$opening]
for turn in range($max_turns):
    prompt = tokenizer.apply_chat_template(messages, ${given}add_generation_prompt=True, tokenize=False)
    ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")["input_ids"]
    said = model.generate(ids, max_new_tokens=$max_turn_tokens, do_sample=False)[0, ids.shape[1] :]
    text = tokenizer.decode(said, skip_special_tokens=True)
    print(text)
    calls = re.findall(r"<tool_call>(.*?)</tool_call>", text, re.DOTALL)
    if "<answer>" in text or not calls:
        break
    found = "\n".join(f"<tool_response>\n{respond(call)}\n</tool_response>" for call in calls)
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": found}]""")


def usage(folder: Path, protocol: Protocol, settings: AgentSettings) -> str:
    """The system prompt, and code that asks the model as training did."""
    if settings.force_search:
        return BEGUN
    tools = f"TOOLS = {json.dumps(protocol.described_tools)}\n" if protocol.describes_tools else ""
    has_system = [message["role"] for message in protocol.opening("")] == ["system", "user"]
    opening = '{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}'
    merged = r'{"role": "user", "content": f"{SYSTEM}\n\n{question}"}'
    searched = f'" ".join([question] * {settings.question_weight} + [query])' if settings.question_weight else "query"
    code = CODE.substitute(
        title=json.dumps(folder.name), folder=json.dumps(folder.name if folder.is_absolute() else str(folder)),
        system=json.dumps(protocol.system_prompt, ensure_ascii=False), tools=tools,
        k=settings.k, searched=searched,
        opening=opening if has_system else merged, given="tools=TOOLS, " if tools else "",
        max_turns=settings.max_turns, max_turn_tokens=settings.max_turn_tokens,
    )  # fmt: skip
    served = says_prompt(protocol.tokenizer.chat_template)
    return USAGE.substitute(
        system=protocol.system_prompt, mode=settings.mode, k=settings.k, passage_tokens=settings.passage_tokens,
        described=DESCRIBED if tools else "",
        code=code, others=OTHERS.format(", ".join(map(repr, settings.tools))) if settings.tools else "",
        served=SERVED.substitute(tools=json.dumps(protocol.described_tools)) if served else "",
    )  # fmt: skip


# What was measured


def measured(folder: Path, adapter: Path) -> str:
    """A section with the tables of evaluate.py's output folder; refused unless these very weights answered held-out
    questions."""
    path = folder / "eval.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        known = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        split, policies = found["split"], {row["name"]: row["policy"] for row in found["systems"]}
        own = [name for name, policy in policies.items() if known[f"policy {policy}"] == weights_digest(adapter)]
        tables = (folder / "table.md").read_text(encoding="utf-8").strip()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{folder} is no evaluation ({type(error).__name__}: {error}); give --evaluation the --output-dir of "
            "evaluate.py"
        ) from error
    if split != "eval":
        raise UserError(f"{path} measured training questions; evaluate with --split eval")
    if not own:
        raise UserError(
            f"{path} measured {', '.join(policies)}, none of which has the weights of {adapter}; evaluate this adapter"
        )
    names = ", ".join(f"`{name}`" for name in own)
    return f"## Held-out questions\n\nBy evaluate.py. This model is {names}.\n\n{tables}"


# How it was made


def making(adapter: Path, base: str, licence: str, dtype: str, proof: Proof | None) -> str:
    config, run = adapter_config(adapter), read_run(adapter.resolve().parent.parent)
    kind = ("rsLoRA" if config.get("use_rslora") else "LoRA") + (" with DoRA" if config.get("use_dora") else "")
    rows = {
        "base": base,
        "its licence": licence or "see its card",
        "adapter": "/".join(adapter.resolve().parts[-3:]),
        "kind": kind,
        "r, alpha": f"{config['r']}, {config['lora_alpha']}",
        "weights": dtype,
        "proof": str(proof or "not made (--no-prove)"),
    }
    if run:
        rows["learnt from"] = Path(run.options["rollout"]["data"]).name
        rows["rewards"] = " + ".join(f"{weight:g} {name}" for name, weight in run.weights.items())
    lines = ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())]
    return "\n".join(["## How it was made\n", *lines])
