"""Model card: README.md of a merged model: how to ask it, what was measured of it, and how it was made."""

from __future__ import annotations

import json
import re
from pathlib import Path
from string import Template
from typing import Any

from huggingface_hub import ModelCardData

from forage.agent.options import AGENT_FILE, AgentSettings, read_agent
from forage.agent.protocol import Protocol
from forage.errors import UserError
from forage.evaluation.options import MANIFEST
from forage.policy.adapters import weights_digest
from forage.publishing.chat_template import says_prompt
from forage.publishing.merged import CARD_MARK, Proof, adapter_config
from forage.rollout.agreement import read_run


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
