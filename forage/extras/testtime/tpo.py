"""TPO, test-time preference optimisation: the policy compares its best answer with its worst, and tries again.

Paper: https://arxiv.org/abs/2501.12895. Sample, score, and keep everything in a cache; ask for a critique of the best
answer against the worst (a textual loss and gradient); sample revisions with the critique in the prompt; iterate. The
best of the cache is the answer.

Here: a revision is a whole new episode with its own searches, whose prompt adds the best answer so far and its critique
to the question. `rounds` iterations of `n` revisions each, after `n` samples; the scorer in the place of the paper's
reward model may be a learned one (preference.py).

Left out: loss and gradient are one question to the policy, not two; earlier passages are not shown again.

Where it doesn't help: a policy that can't criticise, and a model of 135M parameters hardly can. Its revisions are then
samples after a longer prompt that it was never trained on: expect no more than best-of-n with the same scorer at the
same cost, and maybe less. The errors of the scorer are optimised too.
"""

from __future__ import annotations

from dataclasses import dataclass

from forage.agent.agent import Agent
from forage.agent.episode import Episode
from forage.agent.prompts import worded
from forage.data.records import Question
from forage.errors import check_at_least_one
from forage.evaluation.baselines import Aside, ask
from forage.evaluation.outcomes import Outcome
from forage.extras.testtime.best_of import candidates
from forage.extras.testtime.scorers import Oracle, Scorer, best_index, scores_of

CRITIQUE = (
    "Two answers to a {subject}question: the first is better, the second worse. Say in one or two sentences what the "
    "first does well, what it lacks, and how it should be changed."
)
CRITIQUE_TOKENS = 96


@dataclass(frozen=True)
class TPO:
    """A strategy. Example: await TPO(looks_good, n=4, rounds=2)(agent, question, seed) plays 4 + 2 * 4 episodes."""

    scorer: Scorer | Oracle
    n: int = 4
    """Episodes to begin with, and revisions in each round."""
    rounds: int = 2

    def __post_init__(self) -> None:
        check_at_least_one(self, "n", "rounds")

    async def __call__(self, agent: Agent, question: Question, seed: int) -> Outcome:
        tried = await candidates(agent, question, range(self.n), seed)
        asides: list[Aside] = []
        for round_ in range(self.rounds):
            best, worst = await self._best_and_worst(agent, question, tried)
            compared = f"Better answer: {answer_of(best)} Worse answer: {answer_of(worst)}"
            text = f"Question: {question.question} {compared}"
            name = f"{question.id}/critique{round_}"
            instruction = worded(CRITIQUE, agent.protocol.task)
            asides.append(await ask(agent, name, instruction, text, CRITIQUE_TOKENS, seed))
            if not asides[-1].text:  # no critique to revise by
                break
            before = f"An earlier answer was: {answer_of(best)} Criticism of it: {asides[-1].text}"
            asked = f"{question.question} {before} Give a better one."
            samples = range(len(tried), len(tried) + self.n)
            tried += await candidates(agent, question, samples, seed, asked)
        best, _ = await self._best_and_worst(agent, question, tried)
        return Outcome(best, tuple(tried), sum(a.sampled for a in asides), sum(a.read for a in asides))

    async def _best_and_worst(self, agent: Agent, question: Question, tried: list[Episode]) -> tuple[Episode, Episode]:
        scores = await scores_of(agent, self.scorer, question, tried)
        best = best_index(scores, tried)
        return tried[best], tried[best_index([-score for score in scores], tried)]


def answer_of(episode: Episode) -> str:
    return episode.answer or "(none)"
