"""Window: which part of a passage the policy is shown, as only its first tokens fit."""

from __future__ import annotations

import math
from collections.abc import Callable

from forage.data.chunking import sentence_spans

WORDS = 10  # stems in a window that is compared with a query; what is shown from its start on is longer


def best_start(text: str, query: str, title: str, stems: Callable[[str], list[str]]) -> int:
    """Where the sentence begins from which on a passage says most of what a query asks for; 0 if nowhere more.

    Words of the title say nothing about the place, and a word of the query counts the more, the fewer sentences have
    it. Example: of "Rye is a cereal. It is sown in fall.", titled "Rye", the query "when is rye sown" wants the second.
    """
    spans = list(sentence_spans(text))
    said = [stems(text[start:end]) for start, end in spans]
    asked = set(stems(query)) - set(stems(title))
    having = {word: sum(word in sentence for sentence in said) for word in asked}
    worth = {word: math.log(1 + len(said) / count) for word, count in having.items() if count}
    best, most = 0, 0.0
    for number, (start, _) in enumerate(spans):
        window: list[str] = []
        for sentence in said[number:]:
            window += sentence
            if len(window) >= WORDS:
                break
        if (found := sum(worth[word] for word in worth.keys() & set(window[:WORDS]))) > most + 1e-9:
            best, most = start, found
    return best
