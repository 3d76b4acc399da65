"""Pieces: the text of each token, such that the texts of an episode's tokens add up to its transcript."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

TORN = "�"  # what a tokenizer gives for a part of a character
MOST_PARTS = 8  # tokens that a character may be torn into


class Pieces:
    """Looks up texts in `texts`, which it extends; texts[0] is "".

    Where several tokens make up one character, the first has the text of all of them and the others have "".
    """

    def __init__(self, tokenizer: Any, texts: list[str]) -> None:
        self._tokenizer, self.texts = tokenizer, texts
        self._numbers = {text: number for number, text in enumerate(texts)}
        self._decoded: dict[tuple[int, ...], str] = {}

    def of(self, ids: Sequence[int], transcript: str) -> list[int] | None:
        """The number of each token's text; None without a tokenizer, or where the texts are not the transcript.

        That is so if the tokenizer decodes a token differently by what is before it.
        """
        if self._tokenizer is None:
            return None
        found: list[str] = []
        while len(found) < len(ids):
            found += self._next(tuple(ids[len(found) : len(found) + MOST_PARTS]))
        if "".join(found) != transcript:
            return None
        return [self._number(text) for text in found]

    def _next(self, ids: tuple[int, ...]) -> list[str]:
        for length in range(1, len(ids) + 1):
            text = self._decode(ids[:length])
            if TORN not in text:
                return [text, *[""] * (length - 1)]
        return [self._decode(ids[:1])]

    def _decode(self, ids: tuple[int, ...]) -> str:
        if ids not in self._decoded:
            self._decoded[ids] = self._tokenizer.decode(list(ids))
        return self._decoded[ids]

    def _number(self, text: str) -> int:
        if text not in self._numbers:
            self._numbers[text] = len(self.texts)
            self.texts.append(text)
        return self._numbers[text]
