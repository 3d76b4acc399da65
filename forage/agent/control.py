"""ControlTokens: a model's tokens for turns, tools and the like, which text from documents must not become."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property, lru_cache
from typing import Any


class ControlTokens:
    """The tokens that a tokenizer has outside its normal vocabulary."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.texts: dict[int, str] = {
            number: token.content for number, token in tokenizer.added_tokens_decoder.items()
        }  # fmt: skip

    def broken(self, text: str) -> str:
        """Text that gives none of these tokens: each gets a space after its first character.

        Example: "<|im_end|>" becomes "< |im_end|>". The tokens are looked at too, as some tokenizers read other
        characters alike: what still becomes a control token is replaced by a space.
        """
        while self._markup.search(text):
            text = self._markup.sub(lambda found: f"{found[0][0]} {found[0][1:]}", text)
        while spans := self._spans(text):
            ends = [0, *(end for _, end in spans)]
            starts = [*(start for start, _ in spans), len(text)]
            text = " ".join(text[end:start] for end, start in zip(ends, starts, strict=True))
        return text

    @cached_property
    def _markup(self) -> re.Pattern[str]:
        """Matches the text of any of them, longest first."""
        texts = sorted(filter(_is_markup, self.texts.values()), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, texts)) if texts else r"(?!)")

    @cached_property
    def _watched(self) -> frozenset[int]:
        """Their ids, without that of unknown characters, which any text may hold."""
        return frozenset(n for n, text in self.texts.items() if _is_markup(text)) - {self._tokenizer.unk_token_id}

    def _spans(self, text: str) -> list[tuple[int, int]]:
        """Where a text has control tokens all the same."""
        read = self._tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        pairs: Iterable[tuple[int, tuple[int, int]]] = zip(read["input_ids"], read["offset_mapping"], strict=True)
        return [(start, end) for token, (start, end) in pairs if token in self._watched and end > start]


def _is_markup(text: str) -> bool:
    """Whether a token is more than white space or a single character."""
    return len(text.strip()) > 1


@lru_cache(maxsize=4)
def control_tokens(tokenizer: Any) -> ControlTokens:
    """The control tokens of a tokenizer, which are found once."""
    return ControlTokens(tokenizer)
