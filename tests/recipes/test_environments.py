"""docs/recipes/environments.md: its files, in the real verifiers and OpenEnv, give the rewards worked out by hand."""

import asyncio
import gc
import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager

import httpx
import pytest

import grpo_rollout
from forage.agent.episode import read_episodes
from forage.agent.options import AgentSettings, write_agent
from forage.agent.protocol import Protocol, write_call
from forage.agent.rewards import get_own_reward
from forage.data.records import read_questions
from forage.extras.gateway.own_agent import handed_out
from tests import ROOT
from tests.extras.gateway.own_agents import Spelling, agent_over
from tests.extras.questions.chat_server import chat_server
from tests.installed import installed
from tests.pages import command_lines, fenced
from tests.ports import free_port
from tests.recipes.run import RECIPES, calls_of, run
from tests.tiny import CHAT_TEMPLATE, make_base, make_data, make_policy, make_tokenizer
from tests.tiny_training import TINY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.usefixtures("no_plots")]

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


def seeing(package, folder):
    """The environment of programs that see the package, its own dependencies first, and the page's files."""
    if not (folder / package).exists():
        installed(folder / package, package)
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
    env = seeing("verifiers", folder)
    program = "from verifiers.v1.cli.eval.main import main; main()"
    for policy, replies, limit in (("describing", CALLS, 9), ("policy", TEXTS, 3)):
        with chat_server(lambda prompt, number, replies=replies: replies[number - 1]) as server:
            here = {"Qwen/Qwen2.5-7B-Instruct": "m", "http://localhost:8000/v1": server.url}
            words = [here.get(word, word) for word in command_lines(fenced(PAGE, "sh")[0])[0][1:]]
            more = {
                "env.taskset.policy": folder / policy, "env.agent.max-turns": limit, "output-dir": folder / "out",
                "run.name": policy,
            }  # fmt: skip
            words += [word for name, value in more.items() for word in (f"--{name}", str(value))]
            command = [sys.executable, "-c", program, *words, "-n", "1", "--no-rich"]
            ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        [trace] = json.loads((folder / "out" / policy / "traces.jsonl").read_text())["traces"]
        assert trace["ok"], trace["errors"]
        cut = {"mrr": 1 / 2, "answer_similarity": 0, "format": (1 + 2 / 3) / 3}  # before it answers
        whole = cut if policy == "policy" else PARTS
        assert trace["metrics"] == pytest.approx(whole, abs=1e-6)
        assert trace["rewards"]["forage"]["score"] == pytest.approx(sum(whole.values()) / 3, abs=1e-6)
        asked = server.bodies[-1]
        shown = [each["content"] for each in asked.messages if each["role"] in ("user", "tool")][1:]
        if policy == "describing":
            assert [tool["function"]["name"] for tool in asked.tools] == ["search"]
            assert shown == [FOUND[0], f"<tool_response>\n{FOUND[1]}\n</tool_response>", FOUND[2]]
        else:
            assert not hasattr(asked, "tools")
            assert shown == [f"<tool_response>\n{text}\n</tool_response>" for text in FOUND[:2]]
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
    env, port = seeing("openenv", folder), free_port()
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
    (begun, other, *steps), count = map(json.loads, ran.stdout.splitlines()[2:])
    assert begun[0]["messages"][-1] == {"role": "user", "content": "What mends disease 6?"}
    assert other[0]["messages"][-1] != begun[0]["messages"][-1]  # a question to train on
    answered = [f"<tool_response>\n{text}\n</tool_response>" for text in FOUND]
    assert [[each["content"] for each in shown["messages"]] for shown, _, _ in steps] == [[t] for t in answered] + [[]]
    assert [(reward, done) for _, reward, done in steps[:-1]] == [(None, False)] * 3
    observation, reward, done = steps[-1]
    assert (reward, done, count) == (pytest.approx(REWARD, abs=1e-6), True, 4)
    assert observation["rewards"] == pytest.approx(PARTS, abs=1e-6)


# Says "Are you sure?" once, and looks at the second reply: three quarters for the sum, a quarter by how few words.
SUMS = """
import verifiers.v1 as vf
from openai import AsyncOpenAI

__all__ = ["Sums", "Unsure"]


class SumData(vf.TaskData):
    total: str


class Sum(vf.Task[SumData]):
    @vf.reward(weight=0.75)
    async def right(self, task, trace):
        return float(task.total in trace.last_reply)

    @vf.reward(weight=0.25)
    async def short(self, trace):
        return 1 / max(1, len(trace.last_reply.split()))

    @vf.reward
    async def calm(self, trace):
        return -float("No!" in trace.last_reply)


class Sums(vf.Taskset[Sum, vf.TasksetConfig]):
    def load(self):
        for number in range(6):
            yield Sum(SumData(prompt=f"What is {number} + 2?", total=str(number + 2)))


class Unsure(vf.Harness[vf.HarnessConfig]):
    EXECUTES_CODE = NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        messages, heat = [{"role": "user", "content": self.resolve_prompt(data)[1]}], {}
        async with AsyncOpenAI(base_url=endpoint, api_key=secret) as client:
            for _ in range(2):
                reply = await client.chat.completions.create(model=ctx.model, messages=messages, **heat)
                message = reply.choices[0].message.model_dump(exclude_none=True)
                messages += [message, {"role": "user", "content": "Are you sure?"}]
                heat = {"temperature": 0.3} if message["content"] == "Is it hot?" else {}
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")
"""


def test_our_policy_plays_an_environment_of_verifiers(folder, tmp_path, monkeypatch):
    env, port = seeing("verifiers", folder), free_port()
    monkeypatch.chdir(tmp_path)
    program = fenced(PAGE, "py")[3].replace("8200", str(port)).replace("my_tasks", "sums").replace("null", "sums")
    (folder / "sums.py").write_text(SUMS)
    (folder / "play_verifiers.py").write_text(program.replace("sleep(1)", "sleep(.05)"))
    play = [sys.executable, folder / "play_verifiers.py"]
    (tmp_path / "tasks.jsonl").write_text(subprocess.check_output([*play, "tasks"], env=env, text=True))
    prepare, _, train = calls_of("environments.md")
    run(prepare, "--embedder", "none")
    asked = {q.id: q for name in ("train", "eval") for q in read_questions(tmp_path / f"data/tasks/{name}.jsonl")}
    assert {q.id: q.question for q in asked.values()} == {f"task-{n}": f"What is {n} + 2?" for n in range(6)}
    # A program for each: where the first server ends, a program that asks for an episode then ends too.
    with beside(play, env):
        says = (("Four.", "5"), ("5", "I said four."), ("5", "No!"), ("Is it hot?",))
        right, wrong, unfit, refused = asyncio.run(played(handed_out(port), asked["task-3"], says))
        gc.collect()  # connections of the closed loop: collected while it parses, Python 3.11 fails
    monkeypatch.setattr(grpo_rollout, "get_agent", lambda: handed_out(port))
    with beside(play, env):
        given = ("--policy", str(folder / "policy"), "--override-agent", "--max-steps", "1", "--eval-every", "0")
        run(train, *TINY, *given, make_rewards=lambda embedder: {"own": get_own_reward})
    assert (right.answer, right.own_reward, right.stop) == ("5", 0.75 + 0.25, "answer")
    assert (wrong.answer, wrong.own_reward, wrong.stop) == ("I said four.", 0.25 / 3, "answer")
    assert (unfit.stop, "reward: Input should be greater" in unfit.cause) == ("agent", True)
    assert (refused.stop, "temperature 0.3: this run samples at 1" in refused.cause) == ("agent", True)
    # A token for each character and one for the end of a turn, as they were sampled, in one segment.
    assert make_tokenizer().decode(right.ids) == (
        "<|im_start|>user\nWhat is 3 + 2?<|im_end|>\n<|im_start|>assistant\nFour.<|im_end|>\n"
        "<|im_start|>user\nAre you sure?<|im_end|>\n<|im_start|>assistant\n5<|im_end|>"
    )
    sampled = [each for each, mask in zip(right.logprobs, right.mask, strict=True) if mask]
    assert (sampled, right.earlier) == ([-0.5, -1.5, -2.5, -3.5, -4.5, -5.5, -0.5, -1.5], ())
    learnt = list(read_episodes(tmp_path / "runs/tasks/episodes/000000/trainer.jsonl"))
    assert len(learnt) == 12
    for episode in learnt:
        total = str(int(asked[episode.question_id].question[8]) + 2)
        words = max(1, len(episode.answer.split()))
        assert episode.reward == episode.own_reward == pytest.approx(0.75 * (total in episode.answer) + 0.25 / words)
    assert len({episode.reward for episode in learnt}) > 1


@contextmanager
def beside(command, env):
    """A program that runs meanwhile."""
    program = subprocess.Popen(command, env=env)
    try:
        yield
    finally:
        program.kill()
        program.wait()


async def played(player, question, each_says):
    """Its episodes, one after the other, in each of which the policy says so."""
    protocol = Protocol(make_tokenizer())
    engine = Spelling(protocol, *(said for says in each_says for said in says))
    policy = agent_over(engine)
    return [await player(policy, question, number, 7) for number in range(len(each_says))]
