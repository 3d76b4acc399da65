"""How alike two answers are, by their words."""

from __future__ import annotations

import re
from collections import Counter


def token_f1(answer: str, reference: str) -> float:
    """Harmonic mean of precision and recall of the answer's words, as SQuAD measures answers; in [0, 1].

    Example: "a big toe" against "the big red toe" shares 2 words (articles do not count): precision 2/2, recall 2/3,
    so 0.8.
    """
    said, wanted = _words(answer), _words(reference)
    shared = sum((said & wanted).values())
    if not shared:
        return 0.0
    precision, recall = shared / said.total(), shared / wanted.total()
    return 2 * precision * recall / (precision + recall)


def _words(text: str) -> Counter[str]:
    return Counter(word for word in re.findall(r"\w+", text.lower()) if word not in ("a", "an", "the"))
