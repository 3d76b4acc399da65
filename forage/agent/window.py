"""Window: which part of a passage the policy is shown, as only its first tokens fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from forage.agent.options import AgentSettings
from forage.data.chunking import Chunk, sentence_spans
from forage.data.own_questions import SAID
from forage.data.records import Question
from forage.text import IDLE, cut_to_words, titled, words_of

SHOWN = 48  # words of a passage with its title, about as many as the 64 tokens of --passage-tokens hold
MOST_TRIED = 500  # questions
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


def seen_share(
    questions: Sequence[Question], chunks: Mapping[str, Chunk], stems: Callable[[str], list[str]]
) -> float | None:
    """The share of the questions of whose answer a search for them shows most telling words, if it finds the relevant
    passages; measured on some if there are many, None if none has an answer."""
    asked = [question for question in questions if question.answer and question.relevant_chunk_ids]
    asked = asked[:: len(asked) // MOST_TRIED + 1]
    shares = []
    for question in asked:
        found = [chunks[name] for name in question.relevant_chunk_ids[: AgentSettings.k]]
        shown = " ".join(shown_words(chunk, question.question, stems) for chunk in found)
        telling = set(words_of(question.answer)) - IDLE
        shares.append(len(telling & set(words_of(shown))) >= SAID * len(telling))
    return sum(shares) / len(shares) if shares else None


def shown_words(chunk: Chunk, query: str, stems: Callable[[str], list[str]]) -> str:
    """About what a new policy is shown of a passage."""
    text = chunk.text[best_start(chunk.text, query, chunk.title, stems) :]
    return cut_to_words(titled(chunk.title, text), SHOWN)
