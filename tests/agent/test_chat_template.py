"""A merged model's chat template: an OpenAI client's messages become the tokens that the policy was trained on."""

import json
from importlib.resources import files

import pytest

from forage.agent.prompts import MEDICAL_TASK
from forage.agent.protocol import Protocol, write_call
from forage.publishing.chat_template import asks_as_trained, trained_template, write_generation, write_template

QUESTION, RESULT = "What is gout?", "[1] Gout: a disease\n[2] Gout: “crystals” & <5 toes"
ASKED = {"role": "user", "content": QUESTION}
# Templates as their makers write them, which come with TRL, and the tokens that they need beside SmolLM2's.
REAL = {
    "qwen2_5": [], "qwen3_instruct_2507": [],
    "llama3": ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
    "llama3_1": ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
    "gemma": ["<start_of_turn>", "<end_of_turn>"],
}  # fmt: skip
OURS = ["smollm2", "hermes", "llama3", "no_system"]
TASK = 'Answer the “question” on {{ gardening }} {% if x %} with \\n and "quotes" 🌱'


@pytest.fixture(scope="module")
def protocol_of(family, model_folder):
    """A policy's protocol, by the name of its base's template: ours, or trl/... for a real one."""
    from transformers import AutoTokenizer

    def protocol(name, task=MEDICAL_TASK):
        if not name.startswith("trl/"):
            return Protocol(family(name), task=task)
        name = name.removeprefix("trl/")
        tokenizer = AutoTokenizer.from_pretrained(model_folder)
        tokenizer.add_special_tokens({"additional_special_tokens": REAL[name]})
        tokenizer.chat_template = (files("trl") / "chat_templates" / f"{name}.jinja").read_text()
        return Protocol(tokenizer, task=task)

    return protocol


def rendered(protocol, messages, tools=True, template=None):
    """Tokens of a conversation under the merged model's template."""
    text = protocol.tokenizer.apply_chat_template(
        messages, tools=protocol.described_tools if tools else None, add_generation_prompt=True, tokenize=False,
        chat_template=template or trained_template(protocol),
    )  # fmt: skip
    return protocol.tokenizer(text, add_special_tokens=False)["input_ids"]


def calls(*queries, content="", as_text=False):
    """A reply with tool calls as a client sends it back: vLLM parses the arguments, other servers leave the text."""
    arguments = [{"query": query} for query in queries]
    functions = [{"name": "search", "arguments": json.dumps(a) if as_text else a} for a in arguments]
    made = [{"id": f"c{n}", "type": "function", "function": function} for n, function in enumerate(functions)]
    return {"role": "assistant", "content": content, "tool_calls": made}


def tool(text, number=0):
    return {"role": "tool", "tool_call_id": f"c{number}", "content": text}


NAMES = [*OURS, *(f"trl/{name}" for name in REAL)]


@pytest.mark.parametrize("name", NAMES)
def test_a_question_alone_becomes_the_prompt_of_training(protocol_of, name):
    protocol = protocol_of(name, TASK)
    assert TASK in protocol.tokenizer.decode(protocol.prompt(QUESTION))
    assert rendered(protocol, [ASKED]) == rendered(protocol, [ASKED], tools=False) == protocol.prompt(QUESTION)
    base = protocol.tokenizer.chat_template
    assert rendered(protocol, [ASKED], template=base) != protocol.prompt(QUESTION)  # what a server would do otherwise


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("as_text", [False, True])
def test_calls_and_results_become_the_turns_of_training(protocol_of, name, as_text):
    protocol = protocol_of(name)
    first, second = write_call("gout"), "I look. " + write_call("sore toe") + "\n" + write_call("crystals")
    wanted = [*protocol.prompt(QUESTION), *protocol.turn_ids(first), *protocol.join([RESULT], protocol.end_of_turn)]
    messages = [ASKED, calls("gout", as_text=as_text), tool(RESULT)]
    check_same(name, protocol, rendered(protocol, messages), wanted)
    wanted += [*protocol.turn_ids(second), *protocol.join(["nothing found", RESULT], protocol.end_of_turn)]
    both = calls("sore toe", "crystals", content="I look. ", as_text=as_text)
    messages += [both, tool("nothing found"), tool(RESULT, 1)]
    check_same(name, protocol, rendered(protocol, messages), wanted)
    assert asks_as_trained(protocol, trained_template(protocol))


def check_same(name, protocol, ids, wanted):
    """White space around past turns differs in three templates: see asks_as_trained."""
    texts = ["".join(protocol.tokenizer.decode(tokens).split()) for tokens in (ids, wanted)]
    assert texts[0] == texts[1]
    assert ids == wanted or name in ("llama3", "trl/llama3", "trl/llama3_1", "no_system")


@pytest.mark.parametrize("name", NAMES)
def test_the_policy_is_still_played_as_before(protocol_of, name):
    """evaluate.py, chat.py and a further training read the template of the merged folder."""
    before = protocol_of(name)
    ids = before.prompt(QUESTION), before.join([RESULT], None), before.stop_ids, before.describes_tools
    template, base = trained_template(before), before.tokenizer.chat_template
    before.tokenizer.chat_template = template
    try:
        after = Protocol(before.tokenizer, task=MEDICAL_TASK)
        assert (after.prompt(QUESTION), after.join([RESULT], None), after.stop_ids, after.describes_tools) == ids
        assert trained_template(after) == template  # merged again, it is no longer
        other = Protocol(before.tokenizer, task="Answer another question")
        assert rendered(other, [ASKED]) == other.prompt(QUESTION) != ids[0]
    finally:
        before.tokenizer.chat_template = base


def test_a_base_whose_template_drops_what_is_said_is_left_as_it_is(tiny_tokenizer, tmp_path):
    """Its turns would not be those of the episode."""
    protocol = Protocol(tiny_tokenizer)
    tiny_tokenizer.chat_template = tiny_tokenizer.chat_template.replace(
        "message['content']", "message['content'] | upper"
    )
    assert not asks_as_trained(protocol, trained_template(protocol))
    assert not write_template(tmp_path, protocol)
    tiny_tokenizer.chat_template = {"default": "a", "tool_use": "b"}
    assert not write_template(tmp_path, protocol)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("known", "written"),
    [
        (
            {
                "_from_model_config": True,
                "eos_token_id": 0,
                "temperature": 0.7,
                "top_p": 0.8,
                "repetition_penalty": 1.05,
                "pad_token_id": 2,
            },
            {"eos_token_id": [0, 2], "pad_token_id": 2},
        ),
        (None, {"bos_token_id": 1, "eos_token_id": 2}),
    ],
)
def test_servers_end_turns_as_the_policy_does_and_sample_by_no_recommendation(tiny_protocol, tmp_path, known, written):
    (tmp_path / "config.json").write_text('{"bos_token_id": 1, "eos_token_id": null, "vocab_size": 512}')
    if known:
        (tmp_path / "generation_config.json").write_text(json.dumps(known))
    write_generation(tmp_path, tiny_protocol)
    assert json.loads((tmp_path / "generation_config.json").read_text()) == written
