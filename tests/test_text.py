"""Text from elsewhere, by hand: what files can hold, and what terminals are shown."""

import ast
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forage.text import (
    cut_to_words,
    encodable,
    encodable_values,
    from_json,
    printable,
    say,
    whole_words,
    without_passwords,
    words_of,
)
from tests import ROOT


def test_halves_of_emoji_become_question_marks():
    assert encodable("toe \ud83d pain \U0001f9b6") == "toe ? pain \U0001f9b6"
    assert encodable_values({"\ud800": ["a", {"b": "\udfff", "c": 1.5}], "d": None}) == {
        "?": ["a", {"b": "?", "c": 1.5}], "d": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[" * 100_000, b'{"a":' * 900 + b'"\\ud83d"' + b"}" * 900, b"\xff", b"9" * 5_000]
)
def test_what_is_no_json_is_a_value_error(content):
    with pytest.raises(ValueError):
        from_json(content)


def test_what_comes_as_json_can_be_written():
    assert from_json(b'{"a": ["toe \\uD83D", 1]}') == {"a": ["toe ?", 1]}


ELSEWHERE = {"error", "why", "said", "cause", "note", "query", "text", "lines", "others"}


def test_what_quotes_a_text_from_elsewhere_is_said_in_one_place():
    for path in (*ROOT.glob("*.py"), *(ROOT / "forage").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print":
                inside = {getattr(part, "id", getattr(part, "attr", "")) for part in ast.walk(node)}
                assert not inside & ELSEWHERE, f"{path}, line {node.lineno}: use say()"


def test_a_line_is_said_and_not_obeyed(capsys):
    say("the agent failed: \x1b[2J\rall is well\nat http://me:secret@gpu1/")
    assert capsys.readouterr().out == "the agent failed: \\x1b[2J all is well at http://gpu1/\n"


def test_an_address_loses_its_password_by_hand():
    for text, left in {
        "http://me:secret@host:80/a": "http://host:80/a",
        "(https://secret@host) http://a:b@c@d/e": "(https://host) http://d/e",
        '["http://host", "me@home"]': '["http://host", "me@home"]',
        "http://host/@name?to=a@b": "http://host/@name?to=a@b",
        "me@host.example": "me@host.example",
    }.items():
        assert without_passwords(text) == left


def test_a_text_is_cut_to_words_by_hand():
    assert [cut_to_words("It  hurts. Rest", most) for most in range(5)] == ["", "It", "It  hurts."] + 2 * [
        "It  hurts. Rest"
    ]
    assert [cut_to_words("Bei 痛风 hilft", most) for most in (1, 2, 3, 4)] == [
        "Bei", "Bei 痛", "Bei 痛风", "Bei 痛风 hilft",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "words", "runs"),
    [
        ("It's a_b Gout-2", ["it", "s", "a_b", "gout", "2"], ["it", "s", "a_b", "gout", "2"]),
        ("हिन्दी की कि", ["हिन्दी", "की", "कि"], ["हिन्दी", "की", "कि"]),
        ("กินaกาน", ["กิ", "น", "a", "ก", "า", "น"], ["กิน", "a", "กาน"]),
        ("Bei 痛风。", ["bei", "痛", "风"], ["bei", "痛风"]),
        ("Crohn\u00b4s \ufb01n™ FÜSSE in\u00adfant", ["crohn", "s", "fin", "füsse", "infant"], []),
        ("\u0301 \u093f", [], []),
    ],
)
def test_words_of_any_script_by_hand(text, words, runs):
    assert words_of(text) == words
    assert words_of(text, whole_runs=True) == (runs or words)


def test_a_text_is_found_as_whole_words():
    for text, within, found in (
        ("rye bread", "Rye  bread?", True), ("rye bread", "rye breads", False), ("राम", "राम।", True),
        ("राम", "रामी", False), ("राम", "कीराम", False), ("c++", "C++?", True),
    ):  # fmt: skip
        assert bool(re.search(whole_words(text), within, re.IGNORECASE)) is found
    assert whole_words(" ") == ""


def test_letters_of_every_script_stay():
    for text in ("Müller, 3 µg", "می\u200cخواهم", "क्\u200dष", "👩\u200d⚕️", "e\u0301", "[red] <b> $x$"):
        assert encodable(text) == printable(text) == text


@given(st.text())
def test_whatever_comes_can_be_written_and_is_calm(text):
    encodable(text).encode()
    printable(text).encode()
    assert "\x1b" not in printable(text)
    assert printable(printable(text)) == printable(text)
