"""Baselines: ways of answering that the trained agent has to beat. Each is a `Strategy`.

They are meant to be fair to a base model and to a trained policy alike:

- The policy reads **the agent's own conversation**: the same system turn, the same form of call and result, the same
  number and length of passages. A trained policy knows it, and a base reads all it needs in the system turn. The
  protocol writes a baseline's search call in the policy's place; its tokens have mask 0.
- **There is always an answer.** The policy's turn is sampled as the agent's is. If it holds no answer (a base that
  ignores the tags, a trained policy that wants to search again), it is dropped and sampled once more after a forced
  `<answer>`: the text up to `</answer>` or the turn's end is the answer. The dropped tokens count as sampled, and the
  turn gets the fault `answer_forced`. The agent gets no such help, so the comparison favours the baselines.
- Without retrieval, only the system turn's sentence about the task changes (FROM_MEMORY). The tool is still described,
  because a trained policy has never seen a prompt without it; if the policy calls it, an answer is forced as above.

The retrieval metrics of `plain_rag` are those of the raw question.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from forage.agent.agent import Agent, turn_seed
from forage.agent.episode import Episode, Search, Stop, Turn
from forage.agent.prompts import PASSAGE, QUERY_WORDS, final_query, prompt_tokens, worded
from forage.agent.protocol import Passage, Protocol, Reading, write_call
from forage.data.records import Question
from forage.engines.base import Request, Sample
from forage.evaluation.outcomes import Outcome

FROM_MEMORY = (
    "Answer the {subject}question from what you know, without a search: write the answer between <answer> and "
    "</answer>."
)
OPENING = "<answer>"


async def single(agent: Agent, question: Question, seed: int) -> Outcome:
    """The agent itself, once."""
    episode = await agent.play(question, 0, seed)
    return Outcome(episode, (episode,))


async def no_retrieval(agent: Agent, question: Question, seed: int) -> Outcome:
    """Answers from memory."""
    asked = _Asked(without_search(agent.protocol).prompt(question.question))
    return await _answered(agent, question, seed, asked)


async def plain_rag(agent: Agent, question: Question, seed: int) -> Outcome:
    """Searches for the question itself, then answers."""
    asked = await _searched(agent, question, question.question)
    return await _answered(agent, question, seed, asked)


async def hyde(agent: Agent, question: Question, seed: int) -> Outcome:
    """HyDE, https://arxiv.org/abs/2212.10496: the policy writes a passage that could answer, and searches for it.

    The paper averages the vectors of several passages and of the question; here it is one passage, searched together
    with the question's text.
    """
    passage = await _written(agent, question, worded(PASSAGE, agent.protocol.task), seed)
    text = f"{question.question} {passage.text}"
    return await _answered(agent, question, seed, await _searched(agent, question, text), passage)


async def rewrite(agent: Agent, question: Question, seed: int) -> Outcome:
    """The policy writes a query as train_ppo.py's rewriter does by default, and searches for it with the question."""
    words = await _written(agent, question, worded(QUERY_WORDS, agent.protocol.task), seed)
    text = final_query(question.question, words.text, "append", 3)
    return await _answered(agent, question, seed, await _searched(agent, question, text), words)


@lru_cache(maxsize=4)
def without_search(protocol: Protocol) -> Protocol:
    """The same protocol with a system turn that asks to answer from memory."""
    return replace(protocol, instruction=worded(FROM_MEMORY, protocol.task))


@dataclass(frozen=True)
class _Asked:
    """The conversation up to the policy's answer, and its searches."""

    ids: list[int]
    searches: tuple[Search, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class _Written:
    """What the policy wrote before the search."""

    text: str
    sampled: int
    read: int
    seconds: float


async def _searched(agent: Agent, question: Question, text: str) -> _Asked:
    """The agent's conversation after a search for `text`; the call shows the text cut to a query's length."""
    started = time.perf_counter()
    hits = await agent.search(text)
    searched = Search(0, text, tuple(hit.chunk_id for hit in hits))
    protocol = agent.protocol
    call = protocol.turn_ids(write_call(shortened(protocol.harmless(text), agent.settings.max_query)))
    shown = protocol.show(Passage(hit.title, hit.text) for hit in hits)
    ids = protocol.prompt(question.question) + call + protocol.join([shown], call[-1])
    return _Asked(ids, (searched,), time.perf_counter() - started)


def shortened(text: str, length: int) -> str:
    """The first whole words of a text. Example: ("sore red toe", 9) gives "sore red"."""
    return text if len(text) <= length else text[: length + 1].rpartition(" ")[0] or text[:length]


async def _written(agent: Agent, question: Question, instruction: str, seed: int) -> _Written:
    """The policy's reply to an instruction and the question, in a conversation without tools."""
    started, protocol = time.perf_counter(), agent.protocol
    ids = prompt_tokens(protocol.tokenizer, instruction, protocol.harmless(question.question))
    name = f"{question.id}/0"
    sampled = await _sample(agent, ids, turn_seed(seed, f"{name}/written", 0), name)
    # Only words are searched for: a tag would be a call or an answer that nobody reads.
    text = protocol.harmless(protocol.text(sampled.ids))
    return _Written(text, len(sampled.ids), len(ids), time.perf_counter() - started)


async def _answered(
    agent: Agent, question: Question, seed: int, asked: _Asked, before: _Written | None = None
) -> Outcome:
    """The policy's answer to `asked`, forced if it gives none by itself."""
    name, started = f"{question.id}/0", time.perf_counter()
    protocol, ids = agent.protocol, list(asked.ids)
    extra_sampled, extra_read = (before.sampled, before.read) if before else (0, 0)
    try:
        sampled = await _sample(agent, ids, turn_seed(seed, name, 0), name)
        reading = agent.read(sampled.ids)
        if reading.answer is None:
            opening = protocol.tokenizer(OPENING, add_special_tokens=False)["input_ids"]
            extra_sampled += len(sampled.ids)  # the prompt is read again from the cache, so it counts once
            ids += opening
            sampled = await _sample(agent, ids, turn_seed(seed, name, 1), name)
            reading = agent.read(sampled.ids, OPENING)
            reading = replace(reading, faults=(*reading.faults, "answer_forced"))
    finally:
        agent.engine.release(name)
    generating = time.perf_counter() - started + (before.seconds if before else 0.0)
    episode = _episode(agent, question, name, ids, sampled, reading, asked.searches)
    seconds = {"generate": generating, "search": asked.seconds, "total": generating + asked.seconds}
    episode = replace(episode, seconds=seconds)
    return Outcome(episode, (episode,), extra_sampled, extra_read)


async def _sample(agent: Agent, ids: Sequence[int], seed: int, name: str) -> Sample:
    """A turn no longer than the agent's may be; empty if the episode has no room left."""
    room = min(agent.settings.max_turn_tokens, agent.settings.max_tokens - len(ids))
    if room < 1:
        return Sample((), (), "length")
    request = Request(tuple(ids), room, agent.protocol.stop_ids, seed, agent.sampling, name)
    return await agent.engine.generate(request)


def _episode(
    agent: Agent, question: Question, name: str, given: Sequence[int], sampled: Sample, reading: Reading,
    searches: tuple[Search, ...],
) -> Episode:  # fmt: skip
    """Given tokens have mask 0. An answer cut off by a limit counts as far as it goes, as the agent's does."""
    count, ids = len(sampled.ids), (*given, *sampled.ids)
    full = len(ids) >= agent.settings.max_tokens
    stop: Stop = "answer" if sampled.finish == "stop" else "tokens" if full else "turn_tokens"
    turns = (Turn(len(given), len(ids), reading.faults),) if count else ()
    return Episode(
        id=name, question_id=question.id, ids=ids, mask=(0,) * len(given) + (1,) * count,
        logprobs=(0.0,) * len(given) + sampled.logprobs, turns=turns, searches=searches, answer=reading.answer or "",
        stop=stop, adapter=agent.engine.adapter, transcript=agent.protocol.tokenizer.decode(ids),
    )  # fmt: skip
