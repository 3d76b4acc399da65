"""Whom a chat asks and what it searches, and what is refused before anything is loaded."""

import pytest

from forage.chat.options import ChatOptions
from forage.errors import UserError


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"policy": ("a", "b", "c")}, "--policy a b c: give one policy, or two to compare"),
        ({"base_url": "http://h"}, "--base-url and --model go together"),
        ({"model": "m"}, "--base-url and --model go together"),
        ({"base_url": "h:80", "model": "m"}, "give an address as http://HOST:PORT/v1"),
        ({"question": " "}, "--question is empty"),
    ],
)
def test_what_is_refused(given, says):
    with pytest.raises(UserError, match=says):
        ChatOptions(**given).check()


def test_whom_it_asks_and_over_which_data(tmp_path):
    assert ChatOptions().sources == ("models/warm",)
    assert ChatOptions(policy=("a", "b")).sources == ("a", "b")
    assert ChatOptions(base_url="http://h", model="m").sources == ()
    for folder in ("demo/run", "demo/data", "alone"):
        (tmp_path / folder).mkdir(parents=True)
    for folder in ("demo/run", "alone"):
        (tmp_path / folder / "model.json").write_text("{}")
    demo = ChatOptions(policy=(str(tmp_path / "demo"),))
    assert demo.sources == (str(tmp_path / "demo/run"),)
    assert demo.searched == tmp_path / "demo/data"
    assert str(ChatOptions(policy=(str(tmp_path / "alone"),)).searched) == "data"
