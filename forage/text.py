"""Text from documents, models and servers: made fit for files, which hold UTF-8, and for terminals, which obey it."""

from __future__ import annotations

import json
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cache
from itertools import dropwhile, islice
from typing import Any, Literal, TextIO, TypeVar

T = TypeVar("T")

SURROGATE = re.compile("[\ud800-\udfff]")
# Control characters except tab and line break, what overrides the direction of text, and halves of emoji. What joins
# letters or shows an accent stays: many scripts need it.
UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
USERINFO = re.compile(r"(?<=://)[^/?#\s]*@")
# Scripts that put no spaces between words, or, as Korean, only between groups of them: Thai, Lao, Burmese, Khmer,
# Kana, Han, Hangul.
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005\u3041-\u309f\u30a1-\u30fa\u30fc-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
UNSPACED_CHARACTER, UNSPACED_RUN = re.compile(f"[{UNSPACED}]"), re.compile(f"[{UNSPACED}]+")
# The signs of a trade mark, which NFKC would make letters of the word before; and what joins or parts letters unseen.
UNSAID = str.maketrans("™℠", "  ", "\u00ad\u200c\u200d\u2060\ufeff")
COUNTED = re.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]+")  # what count_words counts as one


SENTENCE = re.compile(r"(?<=[.!?])\s+")  # what stands between two
# Words of a question that a query does not need.
IDLE = frozenset(
    (
        "a an and are as be by can could do does for from has have how i if in is it many me much my of on or should "
        "tell that the there they this to was what when where which who why will with would you your"
    ).split()
)


@cache
def marks() -> str:
    """What belongs to the letter before it though it is none, as accents and vowel signs, for a pattern's brackets."""
    return "".join(chr(code) for code in range(0x300, 0x1F000) if unicodedata.category(chr(code)).startswith("M"))


def composed(text: str) -> str:
    """Text as it is kept: a letter and its accent are one character, where there is one; all looks as it did."""
    return unicodedata.normalize("NFC", text)


def folded(text: str) -> str:
    """Text as it is compared: one form of each letter, and no case.

    Example: "Füße", whether its ü is one character or two, and "FÜSSE" give "füsse".
    """
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text.translate(UNSAID)).casefold())


def words_of(text: str, whole_runs: bool = False) -> list[str]:
    """Words as they are compared; of scripts that put no spaces between them, letters, or all that stand together.

    Example: "Bei 痛风 hilft" gives bei, 痛, 风, hilft; with `whole_runs`, bei, 痛风, hilft.
    """
    if text.isascii():
        return re.findall(r"\w+", text.lower())
    apart = UNSPACED_RUN if whole_runs else f"[{UNSPACED}][{marks()}]*"
    return re.findall(rf"\w[\w{marks()}]*", re.sub(apart, r" \g<0> ", folded(text)))


def spoken_words(text: str) -> list[str]:
    """Words as they are written, with apostrophes and hyphens. Example: "It's Gout: rest" gives It's, Gout, rest."""
    return re.findall(rf"[\w'-][\w'{marks()}-]*", text)


def whole_words(text: str) -> str:
    """A pattern for a text's words where no other word begins before or ends after them; empty if it has none.

    Example: "rye bread" is in "Rye  bread?" but not in "rye breads".
    """
    letters = r"\w" if text.isascii() else rf"\w{marks()}"
    words = r"\s+".join(map(re.escape, text.split()))
    return words and rf"(?<![{letters}]){words}(?![{letters}])"


def count_words(text: str) -> int:
    """The number of words between spaces, a character of an unspaced script counting as one."""
    return len(COUNTED.findall(text))


def cut_to_words(text: str, most: int) -> str:
    """The beginning of a text that has at most so many words, as `count_words` counts them. Example: ("Bei 痛风 hilft",
    2) gives "Bei 痛".
    """
    ends = [word.end() for word in islice(COUNTED.finditer(text), most)]
    return text[: ends[-1]] if ends else ""


def sentences_in(text: str) -> list[str]:
    """Each on one line. Example: "Is it\\ngout? Rest." gives "Is it gout?" and "Rest."."""
    return SENTENCE.split(" ".join(text.split()))


def body_of(answer: str) -> str:
    """An answer without its leading headings, which repeat the question; all of it if it is only headings.

    Example: "What is gout? A joint hurts." gives "A joint hurts.".
    """
    sentences = sentences_in(answer)
    body = list(dropwhile(lambda sentence: sentence.endswith("?"), sentences))
    return " ".join(body or sentences)


def encodable(text: str) -> str:
    """Text that UTF-8 can hold. JSON allows half of an emoji, as in "toe \\ud83d": it becomes a question mark."""
    return SURROGATE.sub("?", text)


def encodable_values(value: object) -> object:
    """`encodable` for every text in a value read from JSON."""
    return changed(value, encodable)


def changed(value: Any, change: Callable[[str], str]) -> Any:
    """A value for JSON with every text in it changed, the names of objects included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(name): changed(part, change) for name, part in value.items()}
    return type(value)(changed(part, change) for part in value) if isinstance(value, list | tuple) else value


def from_json(content: bytes) -> Any:
    """The value in a file, a request or a reply; a ValueError where there is none, also for 100,000 brackets."""
    try:
        value = json.loads(content)
        return encodable_values(value) if b"\\ud" in content.lower() else value
    except RecursionError as error:
        raise ValueError("too many brackets within each other") from error


def typed(kind: type[T], value: Any, extra: Literal["forbid", "ignore"] = "forbid") -> T:
    """A dataclass from JSON's values, with those inside it; a ValueError that names the first field that is wrong.

    Example: (Search, {"turn": 0, "query": "gout", "hits": ["d1#0"]}) gives Search(0, "gout", ("d1#0",)).
    """
    from pydantic import ValidationError

    try:
        return _adapter(kind).validate_python(value, extra=extra)  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"{where}: {first['msg']}".removeprefix(": ")) from error


@cache
def _adapter(kind: type) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def without_passwords(text: str) -> str:
    """Text without the user and the password of any address. Example: http://me:secret@host/a gives http://host/a."""
    return USERINFO.sub("", text)


def printable(text: str) -> str:
    """Text for a terminal, with an escape sequence shown instead of sent. Example: ESC [ 2 J becomes \\x1b[2J."""
    return UNPRINTABLE.sub(_shown, text)


def titled(title: str, text: str) -> str:
    """A text after its title, if it has one. Example: ("Gout", "Rest.") gives "Gout: Rest."."""
    return f"{title}: {text}" if title.strip() else text


def one_line(text: str) -> str:
    """`printable` without line breaks."""
    return printable(" ".join(text.splitlines()))


def say(line: str, file: TextIO | None = None) -> None:
    """Print a line that quotes a text, a folder, a server or a program: what they say is shown, and not obeyed."""
    print(one_line(without_passwords(line)), file=file, flush=True)


def most_parts(parts: Sequence[str], count: Callable[[str], int], most: int) -> int:
    """How many of the first parts, joined by blanks, count no more than `most`; by halving, as texts may be huge."""
    return bisect_right(range(1, len(parts) + 1), most, key=lambda number: count(" ".join(parts[:number])))


def _shown(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"
