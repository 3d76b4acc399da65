"""A merged model's chat template: an OpenAI client's messages become the tokens that the policy was trained on."""

import json

import pytest

from forage.agent.prompts import MEDICAL_TASK
from forage.agent.protocol import TURN_SLOT, Protocol, write_answer, write_call
from forage.publishing.chat_template import asks_as_trained, trained_template, write_generation, write_template
from tests.agent.real_templates import CHATML, REAL, real
from tests.refusals import refused

QUESTION, RESULT = "What is gout?", "[1] Gout: a disease\n[2] Gout: “crystals” & <5 toes"
ASKED = {"role": "user", "content": QUESTION}
DEEPSEEK = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"]
REFUSED = {
    "deepseek_r1_distill": (DEEPSEEK, "changes earlier turns when later ones follow; use another model, or give it a"),
    "deepseekv3": (DEEPSEEK, "changes earlier turns"),
    "nemotron_3_nano": (CHATML, "changes earlier turns"),
    "gptoss": (["<|startoftext|>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>"], "can't be told from what"),
}  # fmt: skip
OURS = ["smollm2", "hermes", "llama3", "no_system"]
TASK = 'Answer the “question” on {{ gardening }} {% if x %} with \\n and "quotes" 🌱'


@pytest.fixture(scope="module")
def protocol_of(family):
    """A policy's protocol, by the name of its base's template: ours, or trl/... for a real one."""

    def protocol(name, task=MEDICAL_TASK):
        base = name.removeprefix("trl/")
        return Protocol(real(base, *REAL[base]) if name.startswith("trl/") else family(name), task=task)

    return protocol


@pytest.mark.parametrize("name", REFUSED)
def test_templates_that_are_refused(name):
    """DeepSeek's and Nemotron's begin a thought and drop it from past turns; gpt-oss has headers inside its turns."""
    tokens, says = REFUSED[name]
    with refused(says):
        Protocol(real(name, *tokens)).check()


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
    """What two templates of ours write before a sampled turn, SmolLM2 tokenises along with it."""
    assert protocol.tokenizer.decode(ids) == protocol.tokenizer.decode(wanted)
    assert ids == wanted or name in ("llama3", "no_system")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("thought", ["<think>\nhm\n</think>\n\n", "<think>hm</think>", "hm\n</think>\n\n", "\n hm "])
def test_a_whole_episode_is_written_as_it_was_played(protocol_of, name, thought):
    """Nothing is trimmed or dropped, nor an empty thought added: Qwen3's does so where the last turn has none."""
    protocol = protocol_of(name)
    protocol.check()
    turns = [f"{thought}{action}" for action in (write_call("gout"), write_call("toe"), write_answer("Rest. "))]
    played = protocol.tokenizer.decode(protocol.prompt(QUESTION)) + turns[0]
    for turn in turns[1:]:
        played += protocol.tokenizer.decode(protocol.join([RESULT], None)) + turn
    messages = [ASKED]
    for query in ("gout", "toe"):
        messages += [calls(query, content=thought), tool(RESULT)]
    messages.append({"role": "assistant", "content": turns[-1]})
    written = protocol.tokenizer.apply_chat_template(messages, chat_template=trained_template(protocol), tokenize=False)
    assert written.startswith(played)
    end = protocol.tokenizer.decode([protocol.end_of_turn])
    assert written.removeprefix(played).startswith(end) or name == "trl/glm4moe"  # where <|user|> ends turns


def test_no_prompt_depends_on_the_day(protocol_of):
    protocol = protocol_of("trl/llama3_2")
    written = protocol.tokenizer.decode(rendered(protocol, [ASKED]))
    assert "\nToday Date: 26 Jul 2024\n" in written == protocol.tokenizer.decode(protocol.prompt(QUESTION))


def test_a_result_can_not_take_the_place_of_a_turn(protocol_of):
    texts = [rendered(protocol_of("smollm2"), [ASKED, calls("gout"), tool(text)]) for text in ("a", f"{TURN_SLOT}a")]
    assert texts[0] == texts[1]


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
        "message['content']", "message['content'] | replace('?', '')"
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
