"""Budget forcing: make the policy think longer before it answers, but not too long, by inserting tokens in its turn.

Paper: s1, https://arxiv.org/abs/2501.19393. A model of 32B parameters is fine-tuned on 1,000 questions with reasoning
traces of a larger one, so it thinks before it answers. At test time, an end of thinking that comes too early is
suppressed and "Wait" is appended; where a budget is spent, the end of thinking is forced, and with it the answer.

Here: thinking is the free text before `<answer>` in a turn after a search. Turns that call the tool are left alone, and
so are turns before the first search. Example with `min_thinking` 6 and `max_thinking` 20; the tokens in [] are forced
and have mask 0:

    Passage 1 . [ Wait] it says rest and ice . <answer>Rest, ice.</answer> end

Thinking that reaches `max_thinking` ends there, even if it was about to search again; with 0 there is none, so the
first search is the last. A line break before a suppressed `<answer>` goes with it, as "Wait" goes on with the line.
Equal bounds ask for a length; `min_thinking` 0 only limits it.

Left out: suppressing tokens while sampling. The turn is sampled in parts; if a part opens the answer or ends the turn
too early, that is cut off and replaced by "Wait". The cut tokens are counted in `extra_sampled`. The traces are left
out too: the warm start's teacher only says which passage answers. Take a base that thinks by itself, or let the warm
start imitate episodes of your own (`sft_train.py --demonstrations`).

Where it doesn't help: a policy that was never trained to think in words. After "Wait", a small model repeats itself or
leaves the protocol. Nor does thinking find what the search did not. For models like the paper's,
https://arxiv.org/abs/2507.14419 finds that most of the gain from longer thinking is what a shorter limit takes away,
and that "Wait" lets a model waver between answers. So compare with the policy left alone (`single`), not only budgets
with each other. A turn has `max_turn_tokens` in all: a long budget may leave the answer too few.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from forage.agent.agent import Agent, EpisodeBuilder, TurnTokens, turn_seed
from forage.agent.protocol import Protocol
from forage.data.records import Question
from forage.errors import UserError
from forage.evaluation.outcomes import Outcome

ANSWER, CALL = "<answer>", "<tool_call>"
WAIT = " Wait"
WAITS = 6  # most times that it is inserted


@dataclass(frozen=True)
class BudgetForcing:
    """A strategy. Example: await BudgetForcing(min_thinking=32, max_thinking=96)(agent, question, seed)."""

    min_thinking: int = 32
    """Tokens the policy must sample before it answers."""
    max_thinking: int = 96
    """After this many tokens the answer is opened for it; 0: at once."""

    def __post_init__(self) -> None:
        if not 0 <= self.min_thinking <= self.max_thinking:
            raise UserError(
                f"budget forcing needs 0 <= min_thinking ({self.min_thinking}) <= max_thinking ({self.max_thinking})"
            )

    async def __call__(self, agent: Agent, question: Question, seed: int) -> Outcome:
        turns: list[_Turn] = []

        async def speak(episode: EpisodeBuilder, room: int, seed: int) -> TurnTokens:
            if not episode.searches:
                return await agent.speak(episode, room, seed)
            turns.append(turn := _Turn(agent.protocol, room))
            await self._say(turn, agent, episode, seed)
            finish: Literal["stop", "length"] = "stop" if turn.ended else "length"
            return TurnTokens(tuple(turn.ids), tuple(turn.mask), tuple(turn.logprobs), finish)

        episode = await agent.play(question, 0, seed, speak)
        return Outcome(episode, (episode,), extra_sampled=sum(turn.cut for turn in turns))

    async def _say(self, turn: _Turn, agent: Agent, episode: EpisodeBuilder, seed: int) -> None:
        """Sample the turn in parts, each up to the next point where tokens may have to be forced."""
        waits, part = WAITS, 0
        while turn.left and not turn.ended:
            if turn.thought >= self.max_thinking and not turn.acts and not turn.opens_a_tag:
                turn.open()
                if not turn.left:
                    break
            goal = self.min_thinking if turn.thought < self.min_thinking and waits else self.max_thinking
            tokens = turn.left if turn.acts else min(turn.left, max(1, goal - turn.thought))
            part_seed = turn_seed(seed, "part", part) if part else seed
            turn.add(await agent.speak(episode, tokens, part_seed, turn.ids))
            part += 1
            if turn.thought < self.min_thinking and waits and (turn.answer_at >= 0 or turn.ended) and not turn.calls:
                turn.cut_answer()
                turn.force(WAIT)
                waits -= 1


@dataclass
class _Turn:
    """A turn while it is being sampled, of at most `room` tokens."""

    protocol: Protocol
    room: int
    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    cut: int = 0
    """Sampled tokens that were removed again."""

    @property
    def left(self) -> int:
        return self.room - len(self.ids)

    @property
    def ended(self) -> bool:
        return bool(self.ids) and self.ids[-1] in self.protocol.stop_ids

    @property
    def answer_at(self) -> int:
        """Where in the text the answer opens; -1 if nowhere."""
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
        """Does it stop in the middle of a tag, such as `<ans`?"""
        text = self.protocol.text(self.ids)
        return any(text.endswith(tag[:length]) for tag in (ANSWER, CALL) for length in range(1, len(tag)))

    @property
    def thinking(self) -> int:
        """How many of its first tokens are thinking, forced ones included."""
        at = self.answer_at
        if at < 0:
            return len(self.ids) - self.ended
        return next(n for n in range(len(self.ids)) if len(self.protocol.text(self.ids[: n + 1])) > at)

    @property
    def thought(self) -> int:
        """Sampled tokens before the answer."""
        return sum(self.mask[: self.thinking])

    def add(self, said: TurnTokens) -> None:
        """The turn's tokens so far, with those that were sampled after them."""
        new = slice(len(self.ids), None)
        self.ids += said.ids[new]
        self.mask += said.mask[new]
        self.logprobs += said.logprobs[new]

    def cut_answer(self) -> None:
        """Remove everything after the thinking, and the line break before it.

        A token that holds more than white space stays, such as ".\\n" in Qwen2.5's vocabulary.
        """
        kept = self.thinking
        while kept and self.mask[kept - 1] and not self.protocol.text(self.ids[kept - 1 : kept]).strip():
            kept -= 1
        self.cut += len(self.ids) - kept
        del self.ids[kept:], self.mask[kept:], self.logprobs[kept:]

    def open(self) -> None:
        """Force the answer's opening, on a line of its own."""
        begins_a_line = self.protocol.text(self.ids)[-1:] in ("", "\n")
        self.force(ANSWER if begins_a_line else f"\n{ANSWER}")

    def force(self, text: str) -> None:
        """Append these words with mask 0, as far as there is room."""
        ids = self.protocol.turn_ids(text)[:-1][: self.left]
        self.ids += ids
        self.mask += [0] * len(ids)
        self.logprobs += [0.0] * len(ids)
