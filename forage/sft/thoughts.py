"""Thoughts: what the teacher says before it acts, as free text in front of a call or an answer.

    The question asks about symptoms, gout. I search for: Gout symptoms
    <tool_call>...</tool_call>

    Passage 1 says: The toe is red and hot.
    <answer>The toe is red and hot.</answer>

They say only what the policy can see at that point: the question, the query that follows, and the passages as they were
shown.
"""

from __future__ import annotations

from collections.abc import Sequence

from forage.agent.agent import Found
from forage.agent.options import AgentSettings
from forage.agent.protocol import Passage, Protocol
from forage.data.chunking import sentence_spans
from forage.data.records import Question
from forage.metrics import token_f1
from forage.text import IDLE, cut_to_words, spoken_words


def thoughts_of(
    question: Question, acts: Sequence[str], sought: Sequence[str], found: Sequence[Sequence[Found]], rank: int,
    answer: str, words: int, protocol: Protocol, settings: AgentSettings,
) -> list[str]:  # fmt: skip
    """An episode's turns: each act with a thought of at most so many words in front, where the turn has room for it.

    `found` is what each search finds, the last of them the answer, at `rank`. A turn that is begun for the policy has
    no place for a thought.
    """
    thoughts = [before_query(protocol.harmless(question.question), sought[0])]
    thoughts += [f"The passages do not say. I search for: {query}" for query in sought[1:]]
    if len(acts) > len(found):
        thoughts.append(before_answer(rank, as_shown(found[-1][rank - 1], protocol), answer))
    turns = [f"{cut_to_words(thought, words)}\n{act}" for thought, act in zip(thoughts, acts, strict=True)]
    return [
        turn if number >= settings.force_search and len(protocol.turn_ids(turn)) <= settings.max_turn_tokens else act
        for number, (turn, act) in enumerate(zip(turns, acts, strict=True))
    ]


def before_query(question: str, query: str) -> str:
    """Before the first search: what is asked for, and what to search for.

    Example: "What are the symptoms of gout?" asks about "symptoms, gout".
    """
    telling = ", ".join(word for word in spoken_words(question) if word.lower() not in IDLE)
    return f"The question asks about {telling}. I search for: {query}"


def before_answer(number: int, passage: str, answer: str) -> str:
    """What the passage of that number says: its sentence nearest to the answer by token F1.

    Example: passage "Gout is old. Often rest helps." gives its second sentence for the answer "Rest helps. It hurts.".
    """
    sentences = [passage[start:end].strip() for start, end in sentence_spans(passage)]
    nearest = max(sentences, key=lambda sentence: token_f1(sentence, answer), default="")
    return f"Passage {number} says: {nearest}"


def as_shown(hit: Found, protocol: Protocol) -> str:
    """A passage's text as the policy reads it, without its number and title."""
    shown = protocol.show([Passage(hit.title, hit.text)]).removeprefix("[1] ")
    return shown.removeprefix(f"{protocol.harmless(hit.title)}: ") if hit.title.strip() else shown
