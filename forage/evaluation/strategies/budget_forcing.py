"""Budget forcing: the policy thinks longer before it answers, or not too long, by tokens put into its mouth.

s1, https://arxiv.org/abs/2501.19393: where a model ends its thinking too early, the end is suppressed and "Wait"
appended; at a budget, the end of thinking is forced. Our thinking is the free text of a turn before `<answer>`, in
turns that come after a search (a turn that calls the tool is left alone, and so is one before anything was found).

Example, `least` 6 and `most` 20; forced tokens stand in [] and have mask 0:

    Passage 1 . [ Wait] it says rest and ice . <answer>Rest, ice.</answer> end

Simplified: no token is made impossible. The turn is sampled in parts; where one opens the answer or ends the turn
before its time, that is cut off and "Wait" stands there instead, so what was cut is counted in `extra_sampled`.

Where it does not help: with a policy that was never trained to think in words. After "Wait" a small model says the
same again, or leaves the protocol; s1 itself has 32B parameters and was tuned on traces of thinking.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from forage.agent.agent import Agent, turn_seed
from forage.agent.builder import EpisodeBuilder, TurnTokens
from forage.agent.protocol import Protocol
from forage.data.records import Question
from forage.engines.base import EngineError, Sample
from forage.errors import UserError
from forage.evaluation.outcomes import Outcome

ANSWER, CALL = "<answer>", "<tool_call>"


@dataclass(frozen=True)
class BudgetForcing:
    """A strategy. Example: await BudgetForcing(least=32, most=96)(agent, question, seed)."""

    least: int = 32
    """Tokens of its own the policy has to think before it answers."""
    most: int = 96
    """After so many the answer is opened for it."""
    waits: int = 2
    """How often it is made to wait at most."""
    wait: str = " Wait"
    opening: str = f"\n{ANSWER}"

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most or self.most < 1 or self.waits < 0:
            raise UserError(f"budget forcing: 0 <= least {self.least} <= most {self.most} and waits {self.waits} >= 0")

    async def __call__(self, agent: Agent, question: Question, seed: int) -> Outcome:
        forcing = _Forcing(self, agent)
        episode = await agent.play(question, 0, seed, forcing.speak)
        return Outcome(episode, (episode,), extra_sampled=forcing.cut)


@dataclass
class _Forcing:
    """Says one episode's turns, and counts what was cut."""

    budget: BudgetForcing
    agent: Agent
    cut: int = 0

    async def speak(self, episode: EpisodeBuilder, room: int, seed: int) -> TurnTokens:
        if not episode.searches:
            return await self.agent.speak(episode, room, seed)
        turn = _Turn(self.agent.protocol, room)
        try:
            await self._say(turn, episode, seed)
        except EngineError:  # the turn is lost, but its tokens were sampled
            self.cut += sum(turn.mask)
            raise
        return TurnTokens(tuple(turn.ids), tuple(turn.mask), tuple(turn.logprobs), turn.finish)

    async def _say(self, turn: _Turn, episode: EpisodeBuilder, seed: int) -> None:
        """Part by part, each no longer than to the next moment at which something may have to be forced."""
        budget, waits, part = self.budget, self.budget.waits, 0
        while turn.left and not turn.ended:
            goal = budget.least if turn.thought < budget.least and waits else budget.most
            tokens = turn.left if turn.acts else min(turn.left, max(1, goal - turn.thought))
            part_seed = turn_seed(seed, "part", part) if part else seed
            turn.add(await self.agent.sample(episode, turn.ids, tokens, part_seed))
            part += 1
            if turn.thought < budget.least and waits and (turn.answer_at >= 0 or turn.ended) and not turn.calls:
                self.cut += turn.cut_answer()
                turn.force(budget.wait)
                waits -= 1
            elif turn.thought >= budget.most and not turn.acts and not turn.ended and not turn.opens_a_tag:
                turn.force(budget.opening)


@dataclass
class _Turn:
    """A turn in the making, of at most `room` tokens."""

    protocol: Protocol
    room: int
    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def left(self) -> int:
        return self.room - len(self.ids)

    @property
    def ended(self) -> bool:
        return bool(self.ids) and self.ids[-1] in self.protocol.stop_ids

    @property
    def finish(self) -> Literal["stop", "length"]:
        return "stop" if self.ended else "length"

    @property
    def answer_at(self) -> int:
        """Where in the text the answer is opened; -1 if nowhere."""
        return self.protocol.text(self.ids).find(ANSWER)

    @property
    def calls(self) -> bool:
        """Does it call the tool rather than answer?"""
        called_at = self.protocol.text(self.ids).find(CALL)
        return called_at >= 0 and not 0 <= self.answer_at < called_at

    @property
    def acts(self) -> bool:
        return self.calls or self.answer_at >= 0

    @property
    def opens_a_tag(self) -> bool:
        """Does it stop in the midst of a tag, such as `<ans`?"""
        text = self.protocol.text(self.ids)
        return any(text.endswith(tag[:length]) for tag in (ANSWER, CALL) for length in range(1, len(tag)))

    @property
    def thinking(self) -> int:
        """How many of its first tokens are thinking, forced ones among them."""
        at = self.answer_at
        if at < 0:
            return len(self.ids) - self.ended
        return next(n for n in range(len(self.ids)) if len(self.protocol.text(self.ids[: n + 1])) > at)

    @property
    def thought(self) -> int:
        """Tokens of its own before the answer."""
        return sum(self.mask[: self.thinking])

    def add(self, sampled: Sample) -> None:
        self.ids += sampled.ids
        self.mask += [1] * len(sampled.ids)
        self.logprobs += sampled.logprobs

    def cut_answer(self) -> int:
        """Take back what is not thinking; how many tokens these were."""
        kept = self.thinking
        cut = len(self.ids) - kept
        del self.ids[kept:], self.mask[kept:], self.logprobs[kept:]
        return cut

    def force(self, text: str) -> None:
        """Put words into its mouth, as far as there is room."""
        ids = self.protocol.turn_ids(text)[:-1][: self.left]
        self.ids += ids
        self.mask += [0] * len(ids)
        self.logprobs += [0.0] * len(ids)
