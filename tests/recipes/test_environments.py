"""docs/recipes/environments.md: its files, in the real verifiers and OpenEnv, give the rewards worked out by hand."""

import json
import os
import subprocess
import sys
import time

import httpx
import pytest

from forage.agent.options import AgentSettings, write_agent
from forage.agent.protocol import write_call
from tests import ROOT
from tests.pages import command_lines, fenced
from tests.ports import free_port
from tests.questions.chat_server import chat_server
from tests.recipes.run import RECIPES
from tests.tiny import CHAT_TEMPLATE, make_base, make_data, make_policy, make_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

PAGE = RECIPES / "environments.md"
DESCRIBED = '{% for tool in tools or [] %}{{ tool | tojson }} <tool_call>\n{"name": ...{% endfor %}' + CHAT_TEMPLATE
FIRST, SECOND = write_call("remedy 3"), write_call("remedy 6")
BROKEN, ANSWER = '<tool_call>{"name": "search"</tool_call>', "<answer>Remedy 6.</answer>"
FOUND = ["[1] Disease 3: Disease 3 is mended by rest and by remedy 3.", "error: the call is not valid JSON",
         "[1] Disease 6: Disease 6 is mended by rest and by remedy 6."]  # fmt: skip
# The first chunk that answers came second; the answer is the reference; one turn of four was faulty.
PARTS = {"mrr": 1 / 2, "answer_similarity": 1.0, "format": (1 + 1 + 3 / 4) / 3}
REWARD = (1 / 2 + 1 + 11 / 12) / 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Data, a policy, and one whose template describes tools; both page files, which name these folders."""
    folder = tmp_path_factory.mktemp("environments")
    make_data(folder / "data")
    for name, template in (("policy", CHAT_TEMPLATE), ("describing", DESCRIBED)):
        base, tokenizer = make_base(folder / f"{name}_base"), make_tokenizer()
        tokenizer.chat_template = template
        tokenizer.save_pretrained(base)
        write_agent(AgentSettings(mode="sparse", k=1), make_policy(folder / name, base))
    for name, text in zip(("forage_search.py", "forage_server.py"), fenced(PAGE, "py"), strict=False):
        named = text.replace("models/warm", str(folder / "policy")).replace('Path("data")', f'Path("{folder}/data")')
        assert named != text
        (folder / name).write_text(named)
    return folder


def installed(package, folder):
    """The environment of programs that see the package, its own dependencies first, and the page's files."""
    install = [sys.executable, "-m", "pip", "install", "-q", "--target", folder / package, package]
    done = subprocess.run(list(map(str, install)), capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"left out: {package} can't be installed here ({done.stderr.strip().splitlines()[-1]})")
    return os.environ | {"PYTHONPATH": f"{folder / package}:{folder}:{ROOT}"}


def reply(content=None, *calls):
    message = {"role": "assistant", "content": content}
    if calls:
        made = [{"name": "search", "arguments": arguments} for arguments in calls]
        message["tool_calls"] = [{"id": f"c{n}", "type": "function", "function": call} for n, call in enumerate(made)]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
    used = {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18}
    head = {"id": "r", "object": "chat.completion", "created": 0, "model": "m"}
    return 200, {**head, "choices": [choice], "usage": used}


TEXTS = [reply(FIRST), reply(BROKEN), reply(SECOND), reply(ANSWER)]
CALLS = [reply(None, '{"query": "remedy 3"}'), reply(BROKEN), reply("I see.", '{"query": "remedy 6"}'), reply(ANSWER)]


def test_verifiers_evaluates_it(folder):
    env = installed("verifiers", folder)
    program = "from verifiers.v1.cli.eval.main import main; main()"
    for policy, replies, limit in (("policy", TEXTS, 9), ("describing", CALLS, 9), ("policy", TEXTS, 3)):
        with chat_server(lambda prompt, number, replies=replies: replies[number - 1]) as server:
            run = f"{policy}{limit}"
            here = {"Qwen/Qwen2.5-7B-Instruct": "m", "http://localhost:8000/v1": server.url}
            words = [here.get(word, word) for word in command_lines(fenced(PAGE, "sh")[0])[0][1:]]
            more = {
                "env.taskset.policy": folder / policy, "env.agent.max-turns": limit, "output-dir": folder / "out",
                "run.name": run,
            }  # fmt: skip
            words += [word for name, value in more.items() for word in (f"--{name}", str(value))]
            command = [sys.executable, "-c", program, *words, "-n", "1", "--no-rich"]
            ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        [trace] = json.loads((folder / "out" / run / "traces.jsonl").read_text())["traces"]
        assert trace["ok"], trace["errors"]
        whole = {"mrr": 1 / 2, "answer_similarity": 0, "format": (1 + 2 / 3) / 3} if limit == 3 else PARTS
        assert trace["metrics"] == pytest.approx(whole, abs=1e-6)
        assert trace["rewards"]["forage"]["score"] == pytest.approx(sum(whole.values()) / 3, abs=1e-6)
        asked = server.bodies[-1]
        shown = [each["content"] for each in asked.messages if each["role"] in ("user", "tool")][1:]
        if policy == "describing":
            assert [tool["function"]["name"] for tool in asked.tools] == ["search"]
            assert "<tool_call>" not in asked.messages[0]["content"]
            assert shown == [FOUND[0], f"<tool_response>\n{FOUND[1]}\n</tool_response>", FOUND[2]]
        else:
            assert not hasattr(asked, "tools")
            assert "To search, write <tool_call>" in asked.messages[0]["content"]
            assert shown == [f"<tool_response>\n{text}\n</tool_response>" for text in FOUND[: limit - 1]]
        assert asked.max_tokens == AgentSettings.max_turn_tokens


PLAY = """
import json, sys
with GenericEnvClient(base_url=sys.argv[1]) as one, GenericEnvClient(base_url=sys.argv[1]) as other:
    seen = [one.reset(split="eval", index=0), other.reset(seed=7)]
    seen += [one.step({"text": text}) for text in json.loads(sys.argv[2])]
    print(json.dumps([[each.observation, each.reward, each.done] for each in seen]))
    print(json.dumps(one.state()["step_count"]))
"""


def test_openenv_serves_it(folder):
    env, port = installed("openenv", folder), free_port()
    words = [str(port) if word == "8001" else word for word in command_lines(fenced(PAGE, "sh")[1])[0]]
    command = [sys.executable, "-m", *words]
    server = subprocess.Popen(command, cwd=ROOT, env=env)
    try:
        url = f"http://127.0.0.1:{port}"
        while True:
            try:
                splits = httpx.get(f"{url}/forage/splits").json()
                break
            except httpx.ConnectError:
                assert server.poll() is None
                time.sleep(0.5)
        turns = json.dumps([FIRST, BROKEN, SECOND, ANSWER])
        program = fenced(PAGE, "py")[2].replace("http://localhost:8001", url) + PLAY
        ran = subprocess.run(
            [sys.executable, "-c", program, url, turns], capture_output=True, text=True, cwd=ROOT, env=env
        )
    finally:
        server.terminate()
        server.wait()
    assert ran.returncode == 0, ran.stderr
    assert [split["name"] for split in splits] == ["train", "eval"]
    lines = ran.stdout.splitlines()
    assert lines[0].startswith("[{'role': 'user', 'content': '<tool_response>")
    assert lines[1].endswith("'format': 1.0}")
    (begun, other, *steps), count = map(json.loads, lines[2:])
    assert begun[0]["messages"][-1] == {"role": "user", "content": "What mends disease 6?"}
    assert "To search, write <tool_call>" in begun[0]["messages"][0]["content"]
    assert other[0]["messages"][-1] != begun[0]["messages"][-1]  # a question to train on
    answered = [f"<tool_response>\n{text}\n</tool_response>" for text in FOUND]
    assert [[each["content"] for each in shown["messages"]] for shown, _, _ in steps] == [[t] for t in answered] + [[]]
    assert [(reward, done) for _, reward, done in steps[:-1]] == [(None, False)] * 3
    observation, reward, done = steps[-1]
    assert (reward, done, count) == (pytest.approx(REWARD, abs=1e-6), True, 4)
    assert observation["rewards"] == pytest.approx(PARTS, abs=1e-6)
