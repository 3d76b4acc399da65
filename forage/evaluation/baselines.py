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

`ask` asks the policy something outside its episodes, such as a critique, in a conversation without tools.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from forage.agent.agent import Agent, EpisodeBuilder, Player, TurnTokens, sample_name, turn_seed
from forage.agent.episode import Search
from forage.agent.prompts import PASSAGE, QUERY_WORDS, final_query, prompt_tokens, worded
from forage.agent.protocol import Protocol, write_call
from forage.data.records import Question
from forage.engines.base import Request
from forage.errors import UserError
from forage.evaluation.outcomes import Outcome


@dataclass(frozen=True, slots=True)
class Aside:
    """The reply, and what it cost."""

    text: str = ""
    """One line without tags."""
    sampled: int = 0
    read: int = 0


NOTHING = Aside()


async def ask(agent: Agent, name: str, instruction: str, text: str, tokens: int, seed: int) -> Aside:
    """The policy's reply of at most `tokens` tokens; `name` must differ from those of the episodes being played.

    Raises EngineError if the engine gave up. Neither the text nor the reply can forge a turn: their control tokens and
    tags are made harmless.
    """
    protocol = agent.protocol
    ids = tuple(prompt_tokens(protocol.tokenizer, instruction, protocol.harmless(text)))
    request = Request(ids, tokens, protocol.stop_ids, turn_seed(seed, name, 0), agent.sampling, name)
    try:
        sampled = await agent.engine.generate(request)
    finally:
        agent.engine.release(name)
    return Aside(protocol.harmless(protocol.text(sampled.ids)), len(sampled.ids), len(ids))


FROM_MEMORY = (
    "Answer the {subject}question from what you know, without a search: write the answer between <answer> and "
    "</answer>."
)
OPENING = "<answer>"


async def single(agent: Agent, question: Question, seed: int) -> Outcome:
    """The agent itself, once."""
    episode = await agent.play(question, 0, seed)
    return Outcome(episode, (episode,))


async def played_by(player: Player | None, agent: Agent, question: Question, seed: int) -> Outcome:
    """What an agent of get_agent makes of the policy, once."""
    if player is None:
        raise UserError("--systems own_agent: get_agent of grpo_rollout.py returns None; return one (docs/gateway.md)")
    episode = await player(agent, question, 0, seed)
    return Outcome(episode, (episode,))


async def no_retrieval(agent: Agent, question: Question, seed: int) -> Outcome:
    """Answers from memory."""
    prompt = without_search(agent.protocol).prompt(question.question)
    episode = EpisodeBuilder(sample_name(question, 0), question, prompt, agent.engine.adapter)
    return await _answered(agent, episode, seed)


async def plain_rag(agent: Agent, question: Question, seed: int) -> Outcome:
    """Searches for the question itself, then answers."""
    return await _searched(agent, question, seed, question.question)


async def hyde(agent: Agent, question: Question, seed: int) -> Outcome:
    """HyDE, https://arxiv.org/abs/2212.10496: the policy writes a passage that could answer, and searches for it.

    The paper averages the vectors of several passages and of the question; here it is one passage, searched together
    with the question's text.
    """
    passage = await _written(agent, question, PASSAGE, seed)
    return await _searched(agent, question, seed, f"{question.question} {passage.text}", passage)


async def rewrite(agent: Agent, question: Question, seed: int) -> Outcome:
    """The policy writes a query as train_ppo.py's rewriter does by default, and searches for it with the question."""
    words = await _written(agent, question, QUERY_WORDS, seed)
    return await _searched(agent, question, seed, final_query(question.question, words.text, "append", 3), words)


@lru_cache(maxsize=4)
def without_search(protocol: Protocol) -> Protocol:
    """The same protocol with a system turn that asks to answer from memory."""
    return replace(protocol, instruction=worded(FROM_MEMORY, protocol.task))


async def _written(agent: Agent, question: Question, instruction: str, seed: int) -> Aside:
    """What the policy writes before the search."""
    words, name = worded(instruction, agent.protocol.task), f"{question.id}/0/written"
    return await ask(agent, name, words, question.question, agent.settings.max_turn_tokens, seed)


async def _searched(agent: Agent, question: Question, seed: int, text: str, before: Aside = NOTHING) -> Outcome:
    """The answer after a search for `text`; the call shows the text cut to a query's length."""
    hits = await agent.search(text)
    episode, protocol = agent.begin(question, sample_name(question, 0)), agent.protocol
    episode.searches.append(Search(0, text, tuple(hit.chunk_id for hit in hits)))
    call = protocol.turn_ids(write_call(shortened(protocol.harmless(text), agent.settings.max_query)))
    shown = protocol.show(hits)
    episode.add_results([*call, *protocol.join([shown], call[-1])])
    return await _answered(agent, episode, seed, before)


def shortened(text: str, length: int) -> str:
    """The first whole words of a text. Example: ("sore red toe", 9) gives "sore red"."""
    return text if len(text) <= length else text[: length + 1].rpartition(" ")[0] or text[:length]


async def _answered(agent: Agent, episode: EpisodeBuilder, seed: int, before: Aside = NOTHING) -> Outcome:
    """The policy's answer to the conversation so far, forced if it gives none by itself.

    An answer cut off by a limit counts as far as it goes, as the agent's does. A policy that only searches is not asked
    for one.
    """
    if agent.settings.search_only:
        episode.stop = "search"
        played = agent.finish(episode)
        return Outcome(played, (played,), before.sampled, before.read)
    protocol, dropped = agent.protocol, 0
    said = await _said(agent, episode, turn_seed(seed, episode.id, 0))
    reading = agent.read(said.ids)
    if reading.answer is None:
        dropped = len(said.ids)  # the prompt is read again from the cache, so it counts once
        episode.add_results(protocol.tokenizer(OPENING, add_special_tokens=False)["input_ids"])
        said = await _said(agent, episode, turn_seed(seed, episode.id, 1))
        reading = agent.read(said.ids, OPENING)
        reading = replace(reading, faults=(*reading.faults, "answer_forced"))
    if said.ids:
        episode.add_turn(said, reading)
    full = len(episode.ids) >= agent.settings.max_tokens
    episode.stop = "answer" if said.finish == "stop" else "tokens" if full else "turn_tokens"
    played = agent.finish(episode)
    return Outcome(played, (played,), before.sampled + dropped, before.read)


async def _said(agent: Agent, episode: EpisodeBuilder, seed: int) -> TurnTokens:
    """A turn no longer than the agent's may be; empty if the episode has no room left."""
    room = min(agent.settings.max_turn_tokens, agent.settings.max_tokens - len(episode.ids))
    return await agent.speak(episode, room, seed, ()) if room > 0 else TurnTokens((), (), (), "length")
