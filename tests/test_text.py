"""Text from elsewhere, by hand: what files can hold, and what terminals are shown."""

from hypothesis import given
from hypothesis import strategies as st

from forage.text import count_words, cut_to_words, encodable, encodable_values, printable


def test_halves_of_emoji_become_question_marks():
    assert encodable("toe \ud83d pain \U0001f9b6") == "toe ? pain \U0001f9b6"
    assert encodable_values({"\ud800": ["a", {"b": "\udfff", "c": 1.5}], "d": None}) == {
        "?": ["a", {"b": "?", "c": 1.5}], "d": None,
    }  # fmt: skip


def test_a_text_is_cut_to_words_by_hand():
    assert [cut_to_words("It  hurts. Rest", most) for most in range(5)] == ["", "It", "It  hurts."] + 2 * [
        "It  hurts. Rest"
    ]
    assert [cut_to_words("Bei 痛风 hilft", most) for most in (1, 2, 3, 4)] == [
        "Bei", "Bei 痛", "Bei 痛风", "Bei 痛风 hilft",
    ]  # fmt: skip


@given(st.text(st.sampled_from("ab 痛风\n.")), st.integers(0, 9))
def test_what_is_cut_counts_as_many_words_as_were_asked_for(text, most):
    cut = cut_to_words(text, most)
    assert text.startswith(cut)
    assert count_words(cut) == min(most, count_words(text))


def test_letters_of_every_script_stay():
    for text in ("Müller, 3 µg", "می\u200cخواهم", "क्\u200dष", "👩\u200d⚕️", "e\u0301", "[red] <b> $x$"):
        assert encodable(text) == printable(text) == text


@given(st.text())
def test_whatever_comes_can_be_written_and_is_calm(text):
    encodable(text).encode()
    printable(text).encode()
    assert "\x1b" not in printable(text)
    assert printable(printable(text)) == printable(text)
