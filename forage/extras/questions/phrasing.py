"""Questions made without a model: about a title and a heading or telling word.

What does "Care of bees" say about winter feeding?            answer: the beginning of that section
What does "Care of bees" say under "Darker"?                  the same of a heading that may be no noun
What does "Care of bees" say about the smoker?                answer: the sentence that first says it
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from forage.data.chunking import Chunk, sentence_spans
from forage.extras.questions.vetting import Candidate
from forage.store.bm25 import STOP_WORDS, Tokenizer

WORD = re.compile(r"[^\W\d_][\w’'-]*\w")
HEADING_WORDS, MOST_HEADINGS = 10, 3
LONGEST_NAME = 20  # words of a title or heading in a question
RARE_LETTERS = 5
# A heading of these words alone says nothing about its section.
IDLE = STOP_WORDS | frozenset(
    """
    about additional after all also appendix background before below conclusion conclusions content contents details
    faq further general information into introduction links miscellaneous note notes off out overview page preface
    reading references remarks see summary through tips under until up us
    """.split()
)
NOUN = re.compile(  # example: the pins, of "as the pins of its chain wear"
    rf"\b(?i:(the|an?|its|each|your)|of|with|from|for|by|in|on|no)\s+({WORD.pattern})"
    rf"(?=\s*(?:[.,;:!?)]|$)|\s+(?:{'|'.join(sorted(IDLE))})\b)"
)


class Phraser:
    """Makes at most one question for a passage, by how many passages have each word."""

    def __init__(self, passages: Sequence[Chunk]) -> None:
        self.counts = Counter(word for passage in passages for word in set(WORD.findall(passage.text.lower())))
        self.nouns = {
            word.lower(): f"the {word}" if article else word
            for passage in passages
            for article, word in NOUN.findall(split_headings(passage.text)[1])
        }

    async def __call__(self, passages: Sequence[Chunk]) -> list[Candidate]:
        made = (phrased(passage, self.counts, self.nouns) for passage in passages)
        return [Candidate("title", passage, *both) for passage, both in zip(passages, made, strict=True) if both]


def phrased(passage: Chunk, counts: Mapping[str, int], nouns: Mapping[str, str]) -> tuple[str, str] | None:
    """A question and its answer, where the passage has a title and a whole sentence. `nouns`, by their lower case, are
    as the documents say them, with their article."""
    title = shortened(passage.title)
    headings, rest = split_headings(passage.text)
    sentences = sentences_of(rest)
    if not title or not sentences:
        return None
    subjects = [heading for heading in headings if not within(heading, passage.title) and not is_idle(heading)]
    if subjects:
        subject, answer = shortened(subjects[-1]), " ".join(sentences[:2])
        about = as_noun(subject, rest, nouns)
        if subject.endswith("?"):  # the heading of a page of questions
            return f"{title}: {subject}", answer
        return f'What does "{title}" say ' + (f"about {about}?" if about else f'under "{subject}"?'), answer
    subject = telling_word(rest, passage.title, counts, nouns)
    answer = next((s for s in sentences if re.search(rf"\b{re.escape(subject)}\b", s)), "") if subject else ""
    about = nouns.get(subject.lower(), f'"{subject}"')
    return (f'What does "{title}" say about {about}?', answer) if answer else None


def is_idle(heading: str) -> bool:
    """Example: "About this page"."""
    return set(WORD.findall(heading.lower())) <= IDLE and not heading.endswith("?")


def as_noun(heading: str, text: str, nouns: Mapping[str, str]) -> str:
    """A heading as a sentence names it, empty if it is perhaps no noun. Example: "Dense" over "A dense crumb is a sign
    of weak starter." gives "a dense crumb", over another text ""."""
    word = heading.lower()
    if IDLE.intersection(word.split()):
        return ""
    if " " in word or (word not in nouns and word.endswith(("ing", "s"))):
        return lowered(heading)
    found = re.search(rf"\b(?:an?|the) {re.escape(word)} \w+", text.lower())
    return nouns.get(word) or (found[0] if found else "")


def telling_word(text: str, title: str, counts: Mapping[str, int], nouns: Mapping[str, str]) -> str:
    """The word that is frequent here and rare elsewhere, as it is first written; a noun if any is, and the earliest of
    equals."""
    words = [word for word in WORD.findall(text) if len(word) >= RARE_LETTERS and not within(word, title)]
    here = Counter(word.lower() for word in words)
    telling = [word for word in words if word.lower() not in STOP_WORDS]
    telling = [word for word in telling if word.lower() in nouns] or telling
    return max(telling, key=lambda word: here[word.lower()] / max(1, counts[word.lower()]), default="")


def split_headings(text: str) -> tuple[list[str], str]:
    """(lines that look like headings at the beginning, the rest).

    Example: "Asthma\\nCare\\nRest helps." gives (["Asthma", "Care"], "Rest helps."). More than MOST_HEADINGS in a row
    are a list.
    """
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    number = 0
    while number < len(lines) - 1 and is_heading(lines[number]):
        number += 1
    if number > MOST_HEADINGS:
        number = 0
    return lines[:number], "\n".join(lines[number:])


def is_heading(line: str) -> bool:
    return len(line.split()) <= HEADING_WORDS and not line.endswith((".", "!", ":", ";", ",")) and " | " not in line


def sentences_of(text: str) -> list[str]:
    """Sentences, each on one line; a chunk may end inside of one, which is left out if it ends without a mark."""
    sentences = [" ".join(text[start:end].split()) for start, end in sentence_spans(text)]
    return [sentence for sentence in sentences if re.search(r"[.!?][\"'”’)\]]*$", sentence)]


def within(name: str, title: str) -> bool:
    """Whether each telling word of a name is in the title, whatever its form."""
    words = Tokenizer()
    return set(words(name)) <= set(words(title))


def shortened(name: str) -> str:
    words = name.replace('"', "'").split()
    return " ".join(words[:LONGEST_NAME])


def lowered(subject: str) -> str:
    """A subject inside a sentence: a capital at its beginning goes, unless its first word has others.

    Example: "Winter feeding" gives "winter feeding", "DNA tests" stays.
    """
    first, _, rest = subject.partition(" ")
    return " ".join(filter(None, [first.lower() if first[1:].islower() else first, rest]))
