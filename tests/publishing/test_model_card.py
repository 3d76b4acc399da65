"""The merged model's card: its code asks the model as training did, and it says how it was made."""

import contextlib
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, GenerationConfig, LlamaForCausalLM

from forage.agent.options import AgentSettings, write_agent
from forage.agent.protocol import Protocol, write_answer, write_call
from forage.publishing.merged import usage
from forage.rollout.agreement import write_run
from merge_lora import Options, main
from tests.factories import MANIFEST
from tests.scripted_engine import Hit

# Quotes and a backslash, which the code must not trip over.
GARDEN = AgentSettings(task="Answer the question about '''gardening''' \\n\"x\"", k=2, max_turns=3, max_turn_tokens=8)
TURNS = (write_call("When plant garlic"), "I think. " + write_call("sow beans") + '<tool_call>{"name": </tool_call>',
         "It says so. " + write_answer("In October."))  # fmt: skip


@pytest.fixture(scope="module")
def merged(tiny, tmp_path_factory):
    """A merged model of a run, in a folder of the name garden."""
    folder = tmp_path_factory.mktemp("card")
    run = folder / "run"
    shutil.copytree(tiny / "policy" / "adapters" / "v000000", run / "adapters" / "v000008")
    write_agent(GARDEN, run)
    options = {"rollout": {"data": "/home/someone/plants"}}
    write_run(run, replace(MANIFEST, options=options))
    with contextlib.chdir(folder):
        main(Options(lora_model=run, output_path=Path("models/garden"), base_model=str(tiny / "base"), dtype="float32",
                     prove=False))  # fmt: skip
    return folder / "models" / "garden"


def code_of(card):
    return card.partition("```python\n")[2].partition("\n```")[0]


def run_code(merged, where, monkeypatch):
    monkeypatch.chdir(where)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code_of((merged / "README.md").read_text()), "card", "exec"), {})
    return printed.getvalue()


@pytest.mark.parametrize("where", ["..", ".", "garden"])
def test_the_code_asks_token_for_token_as_training_did(merged, where, monkeypatch):
    """Where merge_lora.py was run, beside the folder, and in it."""
    protocol = Protocol(AutoTokenizer.from_pretrained(merged), GARDEN.passage_tokens, GARDEN.task)
    asked, turns = [], iter(TURNS)

    def generate(self, ids, max_new_tokens, do_sample):
        asked.append((ids[0].tolist(), max_new_tokens, do_sample))
        return torch.cat([ids, torch.tensor([protocol.turn_ids(next(turns))])], dim=1)

    monkeypatch.setattr(LlamaForCausalLM, "generate", generate)
    assert run_code(merged, merged.parent / where, monkeypatch) == "".join(f"{turn}\n" for turn in TURNS)
    first = protocol.prompt("When is garlic planted?")
    garlic, carrots, beans = (
        Hit("", "Garlic", "plant the cloves in October."), Hit("", "Carrots", "sow them from March on."),
        Hit("", "Beans", "sow in May."),
    )  # fmt: skip
    turn = protocol.turn_ids(TURNS[0])
    second = first + turn + protocol.join([protocol.show([garlic, carrots])], turn[-1])
    turn = protocol.turn_ids(TURNS[1])
    results = [protocol.show([carrots, beans]), "error: the call is not valid JSON"]
    third = second + turn + protocol.join(results, turn[-1])
    assert asked == [(ids, 8, False) for ids in (first, second, third)]


def test_a_server_asks_it_as_training_did(merged, tiny_tokenizer):
    """By the folder alone, as vLLM reads it: the prompt, the end of a turn, and no way of sampling of the base's."""
    tokenizer = AutoTokenizer.from_pretrained(merged)
    trained = Protocol(tiny_tokenizer, GARDEN.passage_tokens, GARDEN.task)
    asked = [{"role": "user", "content": "When is garlic planted?"}]
    ids = tokenizer.apply_chat_template(
        asked, tools=trained.described_tools, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert ids == trained.prompt("When is garlic planted?")
    known = GenerationConfig.from_pretrained(merged)
    assert (known.eos_token_id, known.temperature, known.repetition_penalty) == (2, None, None)
    card = (merged / "README.md").read_text()
    assert "--enable-auto-tool-choice --tool-call-parser hermes" in card
    assert json.loads(card.partition("```json\n")[2].partition("\n")[0]) == trained.described_tools


def test_a_template_without_a_system_turn_says_it_in_the_question(tiny_tokenizer):
    tiny_tokenizer.chat_template = (
        "{% for m in messages %}{% if m.role != 'system' %}{{ '<|im_start|>' + m.role + '\n' + m.content "
        "+ '<|im_end|>\n' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    text = usage(Path("garden"), Protocol(tiny_tokenizer), AgentSettings())
    assert r'messages = [{"role": "user", "content": f"{SYSTEM}\n\n{question}"}]' in text
