"""Model card: README.md of a merged model: how to ask it, what its run measured, and how it was made."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from forage.agent.options import AGENT_FILE, AgentSettings, read_agent
from forage.agent.protocol import CALL_OPENING, Protocol
from forage.evaluation.published import Scores, interval, results_of, scores_table
from forage.manifest import flat
from forage.policy.adapters import version_name
from forage.policy.full_base import FullBase
from forage.policy.merge_proof import Proof
from forage.policy.merging import CARD_MARK
from forage.policy.peft_adapter import Adapter
from forage.publishing.chat_template import says_prompt
from forage.rollout.agreement import read_run
from forage.runs.stats import read_evaluations


@dataclass(frozen=True)
class About:
    """What a card says that nothing on the disk tells."""

    base: str = ""
    """The base's name on the hub, if it was read from a folder."""
    datasets: tuple[str, ...] = ()
    licence: str = ""
    """Empty: the base's own."""
    scores: Scores | None = None


def model_card(
    title: str, adapter: Adapter, base: FullBase, dtype: str, proof: Proof | None, tokenizer: Any | None = None,
    about: About = About(),
) -> str:  # fmt: skip
    """README.md. It will be published, so it shows only the last parts of this machine's paths.

    Without a tokenizer, or one with a chat template, the model can't be asked as its policy was, and the card doesn't
    say how.
    """
    name = about.base or (base.name if base.folder != Path(base.name) else base.folder.resolve().name)
    policy = adapter.folder.resolve().parent.parent  # where the adapter is one of a policy's or a run's
    licence = licence_of(base.folder)
    parts = [f"{front_matter(title, name, licence, about)}\n# {title}\n\nA LoRA adapter {CARD_MARK}."]
    if tokenizer is not None and tokenizer.chat_template and (policy / AGENT_FILE).is_file():
        settings = read_agent(policy)
        parts.append(usage(title, Protocol.playing(tokenizer, settings), settings))
    parts += [scores_table(about.scores)] if about.scores else []
    said = (evaluations(policy, adapter.folder.name), rewarded(policy), rights(policy, licence, about))
    parts += [part for part in said if part]
    return "\n\n".join([*parts, making(adapter, name, dtype, proof), *run_figures(adapter.folder.resolve())]) + "\n"


def front_matter(title: str, base: str, licence: str, about: About) -> str:
    """What the hub reads: base, data, licence, and scores if there are any."""
    from huggingface_hub import ModelCardData

    dataset = about.datasets[0] if about.datasets else ""
    data = ModelCardData(
        base_model=base, datasets=list(about.datasets) or None, license=about.licence or licence or None,
        library_name="transformers", pipeline_tag="text-generation", model_name=title if about.scores else None,
        eval_results=results_of(about.scores, dataset) if about.scores else None,
    )  # fmt: skip
    return f"---\n{data.to_yaml().strip()}\n---\n"


# How to ask it

USAGE = Template("""## How to ask it

The model searches and answers in turns, and does so only after the system prompt that it was trained with:

```
$system
```

It searches by writing `<tool_call>{"name": "search", "arguments": {"query": "..."}}</tool_call>`. What was found comes
in a user turn, between `<tool_response>` and `</tool_response>`. It was trained with a $mode search that shows $k
passages of up to $passage_tokens tokens, each as `[1] title: text`.$begun$described$others$served

```python
$code
```""")
BEGUN = " Its first turn was begun for it with a call, up to the query."
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

from transformers import AutoModelForCausalLM, AutoTokenizer

MODEL = $title  # its folder, or its name on the hub
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
${begins}    prompt = tokenizer.apply_chat_template(messages, ${given}add_generation_prompt=True, tokenize=False)$then
    ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")["input_ids"]
    said = model.generate(ids, max_new_tokens=$max_turn_tokens, do_sample=False)[0, ids.shape[1] :]
    text = ${first}tokenizer.decode(said, skip_special_tokens=True)
    print(text)
    calls = re.findall(r"<tool_call>(.*?)</tool_call>", text, re.DOTALL)
    if "<answer>" in text or not calls:
        break
    found = "\n".join(f"<tool_response>\n{respond(call)}\n</tool_response>" for call in calls)
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": found}]""")


def usage(title: str, protocol: Protocol, settings: AgentSettings) -> str:
    """The system prompt, and code that asks the model as training did."""
    tools = f"TOOLS = {json.dumps(protocol.described_tools)}\n" if protocol.describes_tools else ""
    has_system = [message["role"] for message in protocol.opening("")] == ["system", "user"]
    opening = '{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}'
    merged = r'{"role": "user", "content": f"{SYSTEM}\n\n{question}"}'
    searched = f'" ".join([question] * {settings.question_weight} + [query])' if settings.question_weight else "query"
    code = CODE.substitute(
        title=json.dumps(title), system=json.dumps(protocol.system_prompt, ensure_ascii=False), tools=tools,
        k=settings.k, searched=searched,
        opening=opening if has_system else merged, given="tools=TOOLS, " if tools else "",
        max_turns=settings.max_turns, max_turn_tokens=settings.max_turn_tokens,
        begins=f"    begun = {CALL_OPENING!r} if turn == 0 else ''\n" if settings.force_search else "",
        then=" + begun" if settings.force_search else "", first="begun + " if settings.force_search else "",
    )  # fmt: skip
    served = says_prompt(protocol.tokenizer.chat_template) and not settings.force_search  # which no server begins
    return USAGE.substitute(
        system=protocol.system_prompt, mode=settings.mode, k=settings.k, passage_tokens=settings.passage_tokens,
        begun=BEGUN if settings.force_search else "", described=DESCRIBED if tools else "",
        others=OTHERS.format(", ".join(map(repr, settings.tools))) if settings.tools else "", code=code,
        served=SERVED.substitute(tools=json.dumps(protocol.described_tools)) if served else "",
    )  # fmt: skip


# What was measured


def evaluations(run: Path, version: str) -> str:
    """The held-out rewards at the run's start and at this adapter, or the last before it; empty if it has none."""
    rows = {number: row for number, row in read_evaluations(run).items() if number <= number_of(version)}
    if not rows:
        return ""
    first, last = min(rows), max(rows)
    card, config = read_run(run), run_config(run)
    since = card.since if card else {}
    names = [name for name in rows[first] if name in rows[last] and since.get(name, 0) <= first]
    most = f" ({config['eval_questions']} at most)" if "eval_questions" in config else ""
    sampled = f"sampled at temperature {config['eval_temperature']}" if config.get("eval_temperature") else "greedily"
    lines = [f"## What was measured\n\nRewards on held-out questions{most}, answered {sampled}, with 95 % intervals:\n"]
    if first == last:
        lines += [f"| | {version_name(last)} |", "|---|---|"]
        lines += [f"| {name} | {interval(rows[last][name])} |" for name in names]
    else:
        lines += [f"| | before ({version_name(first)}) | after ({version_name(last)}) |", "|---|---|---|"]
        lines += [f"| {name} | {interval(rows[first][name])} | {interval(rows[last][name])} |" for name in names]
    return "\n".join(lines)


def number_of(version: str) -> int:
    """Example: v000012 gives 12."""
    return int(version[1:]) if re.fullmatch(r"v\d+", version) else 0


def rewarded(run: Path) -> str:
    """The rewards of the adapter's run and their weights; empty if it is of no run."""
    card, combined = read_run(run), run_config(run).get("combine", "uniform")
    if card is None or not card.weights:
        return ""
    rows = {f"`{name}`": f"{weight:g}" for name, weight in card.weights.items()}
    return f"## What it was rewarded for\n\nRewards and their weights, combined by `{combined}`:\n\n{table(rows)}"


# Licence and data


def licence_of(base: Path) -> str:
    """The licence that the base's own card names."""
    path = base / "README.md"
    head = path.read_text(encoding="utf-8", errors="replace").split("---")[1:2] if path.is_file() else []
    found = re.search(r"^license:\s*(\S+)", head[0], re.MULTILINE) if head else None
    return found[1] if found else ""


def rights(run: Path, licence: str, about: About) -> str:
    """What licence and data are known. The data's own licence is for its owner to add."""
    own = f"This model's licence is {about.licence}. " if about.licence else ""
    base = f"The base's licence is {licence}." if licence else "The base's licence holds for this model, too."
    folder = Path(run_config(run).get("data", "")).name
    data = ", ".join(about.datasets) or (f"`{folder}`" if folder else "")
    learnt = f" It learnt from the training questions of {data}, whose licence may hold, too." if data else ""
    return f"## Licence and data\n\n{own}{base}{learnt}"


def run_config(run: Path) -> dict[str, Any]:
    """All options of the adapter's run by their own names; empty if it is of no run."""
    known = read_run(run)
    options = flat(known.options) if known else {}
    return {name.rpartition(".")[2]: value for name, value in options.items()}


# How it was made


def making(adapter: Adapter, base: str, dtype: str, proof: Proof | None) -> str:
    config = adapter.config
    kind = ("rsLoRA" if config.get("use_rslora") else "LoRA") + (" with DoRA" if config.get("use_dora") else "")
    modules = config.get("target_modules")
    rows = {
        "base": base,
        "adapter": "/".join(adapter.folder.resolve().parts[-3:]),
        "kind": kind,
        "r, alpha": f"{config['r']}, {config['lora_alpha']}",
        "modules": modules if isinstance(modules, str) else " ".join(sorted({m.split(".")[-1] for m in modules or ()})),
        "weights": dtype,
        "proof": str(proof or "not made (--no-prove)"),
    }
    return f"## How it was made\n\n{table(rows)}"


def run_figures(adapter: Path) -> list[str]:
    """Tables of the last step's statistics and of the settings of the adapter's run, if it lies in a run folder."""
    if adapter.parent.name != "adapters":
        return []
    run = adapter.parent.parent
    stats = sorted(run.glob("training_stats_*.json"), key=lambda path: (len(path.name), path.name))
    said = dict.fromkeys(stats[-1:], "the last step of training, a batch and no measurement")
    said |= dict.fromkeys(run.glob("run.json"), "the run's settings")
    return [f"`{path.name}`: {what}\n\n{table(numbers(json.loads(path.read_text())))}" for path, what in said.items()]


def table(rows: dict[str, Any]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])


def numbers(record: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The numbers in a JSON record, nested ones as outer.inner. Texts are left out: they may be paths."""
    found: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, dict):
            found |= numbers(value, f"{prefix}{name}.")
        elif isinstance(value, int | float):
            found[prefix + name] = f"{value:.4g}" if isinstance(value, float) else value
    return found
