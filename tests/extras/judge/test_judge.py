"""A judge behind a real HTTP server: what it costs, what survives a kill, and what happens when it does not answer."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from forage.agent.rewards import reward_matrix
from forage.extras.judge.judge import Judge, prompt_of, read_grade
from tests import ROOT
from tests.extras.questions.chat_server import chat_server
from tests.factories import QUESTION, answering


def by_length(prompt, number):
    """As many points as the answer has letters."""
    return str(len(prompt.rpartition("Answer to grade: ")[2]))


def judge_of(chat, folder, **more):
    settings = {"max_judged": 100, "timeout": 60.0, "patience": 60.0} | more
    return Judge("m", chat.url, folder / "judged.jsonl", **settings)


def judged(judge, *answers, question=QUESTION):
    return judge(answering(*answers), [question] * len(answers))


def test_scores_and_what_is_asked(tmp_path):
    with chat_server(by_length) as chat:
        assert judged(judge_of(chat, tmp_path), "a", "abcdefgh", " ") == [0.1, 0.8, 0.0]
    assert sorted(chat.asked) == [prompt_of(QUESTION, "a"), prompt_of(QUESTION, "abcdefgh")]
    body = chat.bodies[0]
    assert (body.model, body.max_tokens, body.temperature) == ("m", 16, 0)
    assert "Question: What is gout?\n\nReference answer: A disease.\n\nAnswer to grade: a" in chat.asked


def test_the_same_answer_is_judged_once(tmp_path):
    with chat_server(by_length) as chat:
        assert judged(judge_of(chat, tmp_path), "ab", "ab", " ab\n") == [0.2] * 3
        assert judged(judge_of(chat, tmp_path), "ab") == [0.2]  # another start
        assert len(chat.asked) == 1
        judged(replace(judge_of(chat, tmp_path), model="other"), "ab")
        assert len(chat.asked) == 2
    rows = [json.loads(line) for line in (tmp_path / "judged.jsonl").read_text().splitlines()]
    assert [(row.get("score"), row.get("reply")) for row in rows] == [(None, None), (0.2, "2")] * 2


def test_beyond_the_bound_a_question_has_no_reward(tmp_path, capsys):
    questions = [replace(QUESTION, id=f"q{n}", question=f"What is disease {n}?") for n in range(3)]
    with chat_server(by_length) as chat:
        judge = judge_of(chat, tmp_path, max_judged=3)
        episodes = [replace(e, question_id=q.id) for q in questions for e in answering("a", "ab")]
        asked = [question for question in questions for _ in range(2)]
        assert judge(episodes, asked) == [0.1, 0.2, None, None, None, None]
        assert judge(episodes[2:3], asked[2:3]) == [0.1]  # one more there was room for
        assert judge([replace(episodes[4], answer="")], asked[4:5]) == [0.0]  # costs nothing
        assert len(chat.asked) == 3
        assert "max_judged is 3: questions with new answers do not" in capsys.readouterr().out
        raised = judge_of(chat, tmp_path, max_judged=6)
        assert reward_matrix({"judge": raised}, episodes, asked)[:, 0].tolist() == [0.1, 0.2] * 3


def test_processes_that_share_a_file_share_its_bound(tmp_path):
    code = (
        "import sys; from pathlib import Path; from forage.extras.judge.judge import Judgements\n"
        "one = Judgements(Path(sys.argv[1]))\n"
        "print(sum(one.take_on([sys.argv[2] + str(n)], 60) for n in range(50)))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "judged.jsonl")]
    processes = [subprocess.Popen([*command, name], cwd=ROOT, stdout=subprocess.PIPE, text=True) for name in ("a", "b")]
    assert sum(int(process.communicate()[0]) for process in processes) == 60
    assert len((tmp_path / "judged.jsonl").read_text().splitlines()) == 60


def test_a_killed_judge_asks_nothing_twice(tmp_path):
    """Killed while three of six replies were still to come, its last line cut off."""
    code = (
        "import sys; from pathlib import Path; from forage.extras.judge.judge import Judge\n"
        "from tests.factories import QUESTION, answering\n"
        "judge = Judge('m', sys.argv[1], Path(sys.argv[2]), max_judged=6)\n"
        "judge(answering(*'abcdef'), [QUESTION] * 6)"
    )
    path = tmp_path / "judged.jsonl"
    with chat_server(lambda prompt, number: "5" if prompt[-1] in "abc" else None) as chat:
        process = subprocess.Popen([sys.executable, "-c", code, chat.url, str(path)], cwd=ROOT)
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline and not (path.exists() and path.read_text().count('"score"') == 3):
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
    path.write_text(path.read_text() + '{"key": "to')
    with chat_server(by_length) as chat:
        assert judged(judge_of(chat, tmp_path, max_judged=6), *"abcdef") == [0.5] * 3 + [0.1] * 3
        assert sorted(prompt[-1] for prompt in chat.asked) == ["d", "e", "f"]
        assert judged(judge_of(chat, tmp_path, max_judged=6), "g") == [None]


def test_what_can_not_be_judged_has_no_reward(tmp_path):
    def reply(prompt, number):
        return {"a": "7", "b": "It depends.", "c": (400, {"error": {"message": "too long"}})}[prompt[-1]]

    other = replace(QUESTION, id="other", question="What else?")
    episodes = [*answering("a"), *(replace(e, question_id="other") for e in answering("a", "b", "c"))]
    with chat_server(reply) as chat:
        judge = judge_of(chat, tmp_path)
        assert judge(episodes, [QUESTION, other, other, other]) == [0.7, None, None, None]
        assert judged(judge_of(chat, tmp_path), "a") == [0.7]
        assert len(chat.asked) == 4
    replies = {row.get("reply") for row in map(json.loads, (tmp_path / "judged.jsonl").read_text().splitlines())}
    assert {"It depends.", "refused: status 400: too long"} < replies


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        (" 10.\n", 1.0), ("Score: 8/10", 0.8), ("<think>8 or 9?</think>\n9", 0.9), ("11", None), ("8 or 9", None),
        ("<think>8", None), ("10/100", None),
    ],
)  # fmt: skip
def test_what_counts_as_a_grade(reply, score):
    assert read_grade(reply) == score
