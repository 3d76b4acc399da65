"""Thoughts: what the teacher says before it acts, as free text in front of a call or an answer.

    The question asks about symptoms, gout. I search for: Gout symptoms
    <tool_call>...</tool_call>

    Passage 1 says: The toe is red and hot. That answers it.
    <answer>The toe is red and hot.</answer>

They say only what the policy can see at that point: the question, the query that follows, and the passages as they were
shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from forage.agent.agent import Found
from forage.agent.options import AgentSettings
from forage.agent.protocol import Passage, Protocol
from forage.data.chunking import sentence_spans
from forage.data.records import Question
from forage.metrics import token_f1
from forage.text import IDLE, count_words, cut_to_words, spoken_words, words_of

LEAST_THOUGHT = 12  # words with which a thought says something


@dataclass(frozen=True)
class Thought:
    """What is said is shortened where there is no room for it; the words around it are not."""

    before: str
    said: str
    after: str = ""

    def forms(self, words: int) -> Iterator[str]:
        """The thought in at most so many words, shorter and shorter.

        Example: "Passage 1 says: It hurts. Rest helps. That answers it." has 10 words. In 9 it is "Passage 1 says: It
        hurts. That answers it.", which has 8, then "Passage 1 says: It... That answers it.".
        """
        for said in shorter_and_shorter(self.said):
            form = " ".join(filter(None, (self.before, said, self.after)))
            if count_words(form) <= words:
                yield form


def thoughts_of(
    question: Question, acts: Sequence[str], sought: Sequence[str], found: Sequence[Sequence[Found]], rank: int,
    answer: str, words: int, protocol: Protocol, settings: AgentSettings,
) -> list[str]:  # fmt: skip
    """An episode's turns: each act with its thought in front, as far as the turn has room for it.

    `found` is what each search finds, the last of them the answer, at `rank`. A turn that is begun for the policy has
    no place for a thought.
    """
    thoughts = [
        before_query(protocol.harmless(question.question), sought[0], words),
        *map(before_next_query, found, sought[1:]),
    ]
    if len(acts) > len(found):
        thoughts.append(before_answer(rank, as_shown(found[-1][rank - 1], protocol), answer))
    begun = int(settings.force_search)
    return [
        *acts[:begun],
        *(
            next((turn for turn in turns if len(protocol.turn_ids(turn)) <= settings.max_turn_tokens), act)
            for act, thought in list(zip(acts, thoughts, strict=True))[begun:]
            for turns in [(f"{form}\n{act}" for form in thought.forms(words))]
        ),
    ]


def shorter_and_shorter(text: str) -> Iterator[str]:
    """The text, then fewer and fewer of its first sentences, then of the first one's words.

    Example: "It hurts. Rest helps." gives itself, "It hurts.", "It...".
    """
    sentences = sentences_of(text)
    for count in range(len(sentences), 0, -1):
        yield " ".join(sentences[:count])
    for count in range(count_words(sentences[0]) - 1 if sentences else 0, 0, -1):
        yield cut_to_words(sentences[0], count).rstrip(".,:;") + "..."


def sentences_of(text: str) -> list[str]:
    return [text[start:end].strip() for start, end in sentence_spans(text)]


def before_query(question: str, query: str, words: int) -> Thought:
    """Before the first search: what is asked for, in a third of the words, and what to search for.

    Example: "What are the symptoms of gout?" asks about "symptoms, gout".
    """
    telling = [word for word in spoken_words(question) if word.lower() not in IDLE]
    topic = cut_to_words(", ".join(telling), words // 3).rstrip(",")
    return Thought(f"The question asks about {topic}. I search for:" if topic else "I search for:", query)


def before_next_query(found: Sequence[Found], query: str) -> Thought:
    """After a search that did not find the answer."""
    return Thought(f"{'The passages do not say.' if found else 'Nothing was found.'} I search for:", query)


def before_answer(number: int, passage: str, answer: str) -> Thought:
    """What the passage of that number says: its sentences that hold one of the answer's, else the one (no heading that
    asks) that is nearest to the answer by token F1.

    Example: passage "Gout is old. Often rest helps." gives its second sentence for the answer "Rest helps. It hurts.",
    and also for "To rest helps", but does not claim that it answers the latter.
    """
    own, wanted = sentences_of(passage), [as_words(sentence) for sentence in sentences_of(answer)]
    holding = [sentence for sentence in own if any(part in as_words(sentence) for part in wanted if part.strip())]
    if holding:
        return Thought(f"Passage {number} says:", " ".join(holding), "That answers it.")
    stated = [sentence for sentence in own if not sentence.endswith("?")] or own
    nearest = max(stated, key=lambda sentence: token_f1(sentence, answer), default="")
    return Thought(f"Passage {number} says:", nearest, "That comes nearest.")


def as_words(text: str) -> str:
    """The words between blanks, so that one text is looked for in another by whole words. Example: "No!" is " no "."""
    return f" {' '.join(words_of(text))} "


def as_shown(hit: Found, protocol: Protocol) -> str:
    """A passage's text as the policy reads it, without its number and title."""
    shown = protocol.show([Passage(hit.title, hit.text)]).removeprefix("[1] ")
    return shown.removeprefix(f"{protocol.harmless(hit.title)}: ") if hit.title.strip() else shown
