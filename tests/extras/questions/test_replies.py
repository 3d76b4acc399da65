import asyncio
import json

import pytest

from forage.data.chunking import Chunk
from forage.engines.chat_endpoint import RefusedError
from forage.extras.questions.making import MALFORMED, ChatWriter, candidate_of
from forage.extras.questions.vetting import Candidate
from tests.refusals import refused

CHUNK = Chunk("nets", "Nets", "Heat harms. Wax keeps salt out of twine.", 0, 40, 0, 1)


@pytest.mark.parametrize(
    "reply",
    [
        '{"question": "Why wax?", "answer": "It keeps salt out."}',
        'Sure!\n```json\n{"question": "Why\\n wax?", "answer": "It keeps salt out.", "level": 3}\n```',
        '<think>{"question": "no", "answer": "no"}</think>{"question": "Why wax?", "answer": "It keeps salt out."}',
        '{of} {"q": 1} {"question": "Why wax?", "answer": "It keeps salt out."}',
    ],
)
def test_replies_that_say_it(reply):
    assert candidate_of(CHUNK, reply) == Candidate("model", CHUNK, "Why wax?", "It keeps salt out.")


@pytest.mark.parametrize(
    "reply",
    [
        "", "I can't.", '{"question": "Why wax?"}', '{"question": "", "answer": "x"}',
        '{"question": "Why wax?", "answer": "It ke', "{" * 100_000, '{"question": "?!", "answer": "..."}',
        '<think>{"question": "Why?", "answer": "So."}', json.dumps({"question": "x" * 2001, "answer": "y"}),
    ],
)  # fmt: skip
def test_replies_that_do_not(reply):
    assert candidate_of(CHUNK, reply).fault == MALFORMED


class Model:
    """Says "yes" and half of an emoji, or refuses; counts."""

    instruction = "Write."

    def __init__(self, name, refuses=False):
        self.model, self.refuses, self.asked = name, refuses, 0
        self.said = lambda number: "yes \ud83d"

    async def reply(self, prompt):
        self.asked += 1
        if self.refuses:
            raise RefusedError("too long")
        said = self.said(self.asked)
        await asyncio.sleep(0.002 * self.asked)
        return said


def written(model, path, *passages):
    return asyncio.run(ChatWriter(model, path)(passages))


def test_replies_are_kept_by_model_and_passage(tmp_path):
    path, model, other = tmp_path / "asked.jsonl", Model("m"), Model("n")
    [made] = written(model, path, CHUNK)
    with path.open("ab") as file:
        file.write(b'{"key": "torn')
    assert written(model, path, CHUNK) == [made]
    assert (made.answer, model.asked) == ("yes ?", 1)
    written(other, path, CHUNK)
    assert (other.asked, len(path.read_bytes().splitlines())) == (1, 2)


def test_a_model_that_refuses_all_is_an_error(tmp_path):
    with refused(r"--make-questions m refused all of the first 1 passages \(too long\)"):
        written(Model("m", refuses=True), tmp_path / "asked.jsonl", CHUNK)


def test_a_model_that_is_too_small_is_told_after_a_few_replies(tmp_path):
    model = Model("m")
    passages = [Chunk(f"d{n}", "Nets", f"Twine {n}.", 0, 9, 0, 1) for n in range(64)]
    with refused(r"first 16 replies.*'yes \?'.*larger model, or leave --make-questions out"):
        written(model, tmp_path / "asked.jsonl", *passages)
    assert 16 <= len((tmp_path / "asked.jsonl").read_bytes().splitlines()) < 32
    replies = iter(["yes", '{"question": "Why wax?", "answer": "Salt."}'])
    model.said = lambda number: next(replies, "yes")
    made = written(model, tmp_path / "more.jsonl", *passages)
    assert sum(not one.fault for one in made) == 1
