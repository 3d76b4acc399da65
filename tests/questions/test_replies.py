import json

import pytest

from forage.data.chunking import Chunk
from forage.errors import UserError
from forage.questions.candidates import Candidate, Dropped
from forage.questions.chat_writer import MALFORMED, candidate_of, completed
from forage.questions.replies import ReplyFile, Written, prompt_of, read_reply

GOOD = Written("Why wax?", "It keeps salt out.")
CHUNK = Chunk("nets", "Nets", "Heat harms. Wax keeps salt out of twine.", 0, 40, 0, 1)


@pytest.mark.parametrize(
    "reply",
    [
        '{"question": "Why wax?", "answer": "It keeps salt out."}',
        'Sure!\n```json\n{"question": "Why\\n wax?", "answer": "It keeps salt out.", "level": 3}\n```',
        '<think>{"question": "no", "answer": "no"}</think>{"question": "Why wax?", "answer": "It keeps salt out."}',
        '{of} {"q": 1} {"question": "Why wax?", "answer": "It keeps salt out."}',
        "**Question:** Why wax?\n\n**Answer:** It keeps salt out.",
    ],
)
def test_replies_that_say_it(reply):
    written = read_reply(reply)
    assert written is not None
    assert (written.question.strip("* "), written.answer.strip("* ")) == (GOOD.question, GOOD.answer)


@pytest.mark.parametrize(
    "reply",
    [
        "", "I can't.", '{"question": "Why wax?"}', '{"question": "", "answer": "x"}',
        '{"question": ["a"], "answer": 1}',
        '{"question": "Why wax?", "answer": "It ke', "{" * 100_000, '{"question": "?!", "answer": "..."}',
        '<think>{"question": "Why?", "answer": "So."}', json.dumps({"question": "x" * 401, "answer": "y"}),
    ],
)  # fmt: skip
def test_replies_that_do_not(reply):
    assert read_reply(reply) is None
    assert isinstance(candidate_of(CHUNK, reply), Dropped)
    assert candidate_of(CHUNK, reply).reason == MALFORMED


def test_a_short_answer_is_a_term_with_its_sentence():
    made = candidate_of(CHUNK, '{"question": "What keeps salt out?", "answer": "Wax"}')
    assert made == Candidate("model", CHUNK, "What keeps salt out?", "Wax: Wax keeps salt out of twine.", "Wax")
    assert completed("tar", CHUNK.text) == "tar"
    long = candidate_of(CHUNK, '{"question": "Why wax?", "answer": "Wax keeps salt out."}')
    assert (long.answer, long.term) == ("Wax keeps salt out.", "")
    number = candidate_of(CHUNK, '{"question": "How many?", "answer": 3}')
    assert number.term == "3"


def test_replies_are_kept_by_model_and_passage(tmp_path):
    path, prompt = tmp_path / "asked.jsonl", prompt_of(CHUNK)
    assert prompt == "Nets: Heat harms. Wax keeps salt out of twine."
    first = ReplyFile(path, "m")
    assert first.get(prompt) is None
    first.put(prompt, "yes \ud83d")
    first.put("other", "no")
    first.close()
    with path.open("ab") as file:
        file.write(b'{"key": "torn')
    again = ReplyFile(path, "m")
    assert (again.get(prompt), again.get("other"), again.get("third")) == ("yes ?", "no", None)
    assert ReplyFile(path, "n").get(prompt) is None
    again.put("third", "x")
    again.close()
    assert len(path.read_bytes().splitlines()) == 3
    path.write_text('{"key": 1}\n')
    with pytest.raises(UserError, match=r"asked.jsonl:1: not a reply of a model; delete that line"):
        ReplyFile(path, "m")
