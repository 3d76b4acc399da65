"""TPO, test-time preference optimisation: the policy criticises its best answer beside its worst, and tries again.

https://arxiv.org/abs/2501.12895: sample, score, keep all in a cache; ask for a critique of the best beside the worst
(the paper's textual loss and gradient); sample revisions with that in the prompt; iterate. The cache's best counts.

Simplified: loss and gradient are one question, not two. A revision is an episode of its own, with searches of its own,
whose prompt carries the answer so far and the critique behind the question; what was found before is not shown again.

Where it does not help: where the policy can't criticise, and a model of 135M parameters can't be expected to. Its
revisions are then samples after a longer prompt that it was never trained on: expect no more than best-of-n by the
same scorer at the same cost, and maybe less. A scorer that is wrong is optimised all the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from forage.agent.agent import Agent
from forage.agent.episode import Episode
from forage.data.records import Question
from forage.errors import check_at_least_one
from forage.evaluation.outcomes import Outcome
from forage.evaluation.scorers import Oracle, Scorer, best_place, scores_of
from forage.evaluation.strategies.asides import Aside, ask
from forage.evaluation.strategies.best_of_n import candidates

CRITIQUE = (
    "Two answers to a medical question: the first is better, the second worse. Say in one or two sentences what the "
    "first does well, what it lacks, and how it should be changed."
)


@dataclass(frozen=True)
class TPO:
    """A strategy. Example: await TPO(agreement, n=4, rounds=2)(agent, question, seed) plays 4 + 2 * 4 episodes."""

    scorer: Scorer | Oracle
    n: int = 4
    """Episodes at first, and revisions in each round."""
    rounds: int = 2
    critique_tokens: int = 96

    def __post_init__(self) -> None:
        check_at_least_one(self, "n", "rounds", "critique_tokens")

    async def __call__(self, agent: Agent, question: Question, seed: int) -> Outcome:
        tried = await candidates(agent, question, range(self.n), seed)
        asides: list[Aside] = []
        for round_ in range(self.rounds):
            best, worst = await self._best_and_worst(agent, question, tried)
            text = criticised(question, best, worst)
            name = f"{question.id}/critique{round_}"
            asides.append(await ask(agent, name, CRITIQUE, text, self.critique_tokens, seed))
            if not asides[-1].text:  # nothing to go by
                break
            asked = with_critique(question, best, asides[-1].text)
            samples = range(len(tried), len(tried) + self.n)
            tried += await candidates(agent, question, samples, seed, asked)
        best, _ = await self._best_and_worst(agent, question, tried)
        return Outcome(best, tuple(tried), sum(a.sampled for a in asides), sum(a.read for a in asides))

    async def _best_and_worst(self, agent: Agent, question: Question, tried: list[Episode]) -> tuple[Episode, Episode]:
        scores = await scores_of(agent, self.scorer, question, tried)
        best = best_place(scores, tried)
        return tried[best], tried[best_place([-score for score in scores], tried)]


def criticised(question: Question, best: Episode, worst: Episode) -> str:
    """What a critique is asked of."""
    return f"Question: {question.question} Better answer: {answer_of(best)} Worse answer: {answer_of(worst)}"


def with_critique(question: Question, best: Episode, critique: str) -> str:
    """What a revision is asked."""
    before = f"An earlier answer was: {answer_of(best)} Criticism of it: {critique}"
    return f"{question.question} {before} Give a better one."


def answer_of(episode: Episode) -> str:
    return episode.answer or "(none)"
