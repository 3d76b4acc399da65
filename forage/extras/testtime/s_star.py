"""S*: revise candidates until a check passes, then choose between them by evidence fetched to tell them apart.

Paper: https://arxiv.org/abs/2502.14382, for programs. Stage 1 samples in parallel and debugs each sample with the
results of public tests until they pass. Stage 2 merges candidates that behave alike; for each pair of the others, the
model invents an input that tells them apart, both programs run on it, and the model judges their outputs.

Here: the public test is what was found: do the passages shown to a candidate contain the question's words
(`relevance`) and its answer's (`support`)? If not, the question is played again with a note of the words that are
missing in either. A revision that passes more of the test takes the candidate's place, another one is dropped; after
`rounds` revisions, or when the test is passed, the candidate is done. The distinguishing input is a search query
that the policy writes for two answers: the answer whose own words (those the other lacks) the passages contain more of
gets the point, or half a point each if equal. If the policy writes no query, the words in which the answers differ are
searched for. Most points win, then the larger cluster, then the first candidate.

Left out: the model itself as the judge; words are compared. The evidence is used to choose only: the policy never reads
it, and it is not counted among the episode's hits.

Where it doesn't help: answers that say the same in other words look different here, and words prove little: a passage
that denies something supports it. A policy trained to write one kind of query will hardly write distinguishing ones;
then this is self-consistency with an expensive tie-break.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from forage.agent.agent import Agent
from forage.agent.episode import Episode
from forage.agent.prompts import worded
from forage.agent.protocol import Protocol
from forage.data.records import Question
from forage.errors import check_at_least_one
from forage.evaluation.baselines import Aside, ask
from forage.evaluation.outcomes import Outcome
from forage.extras.testtime.best_of import candidates, plain
from forage.extras.testtime.scorers import WORDS, covered, relevance, shown, support
from forage.metrics import grouped

DISTINGUISH = (
    "Two answers to a {subject}question differ. Write one search query, a few words, that finds a text which tells "
    "which of them is right. Only the query."
)
QUERY_TOKENS = 24
# A candidate is revised unless this share of the question's words, and of its answer's, is in the passages shown.
MIN_FOUND = 0.8


@dataclass(frozen=True)
class SStar:
    """A strategy. Example: await SStar(n=4, rounds=1)(agent, question, seed)."""

    n: int = 4
    rounds: int = 1
    """Most revisions of a candidate."""

    def __post_init__(self) -> None:
        check_at_least_one(self, "n")

    async def __call__(self, agent: Agent, question: Question, seed: int) -> Outcome:
        lines = await asyncio.gather(*(self._revised(agent, question, number, seed) for number in range(self.n)))
        groups = clusters([line[-1] for line in lines])
        pairs = list(combinations(range(len(groups)), 2))
        judged = await asyncio.gather(
            *(self._judge(agent, question, groups[a][0], groups[b][0], f"{a}-{b}", seed) for a, b in pairs)
        )
        points = [0.0] * len(groups)
        for (a, b), (point, _) in zip(pairs, judged, strict=True):
            points[a] += point
            points[b] += 1 - point
        best = max(range(len(groups)), key=lambda n: (bool(groups[n][0].answer), points[n], len(groups[n]), -n))
        asides = [aside for _, aside in judged if aside]
        return Outcome(
            groups[best][0], tuple(episode for line in lines for episode in line),
            sum(aside.sampled for aside in asides), sum(aside.read for aside in asides), extra_searches=len(asides),
        )  # fmt: skip

    async def _revised(self, agent: Agent, question: Question, number: int, seed: int) -> list[Episode]:
        """A candidate and its revisions; the one that passed most of the test comes last, and counts."""
        line = list(await candidates(agent, question, [number], seed))
        test = passed(agent.protocol, question, line[-1])
        for round_ in range(1, self.rounds + 1):
            if not line[-1].answer or min(test) >= MIN_FOUND:
                break
            asked = with_findings(agent, question, line[-1])
            (episode,) = await candidates(agent, question, [number + round_ * self.n], seed, asked)
            again = passed(agent.protocol, question, episode)
            better = bool(episode.answer) and sum(again) > sum(test)
            line, test = ([*line, episode], again) if better else ([episode, *line], test)
        return line

    async def _judge(
        self, agent: Agent, question: Question, one: Episode, other: Episode, name: str, seed: int
    ) -> tuple[float, Aside | None]:
        """1 if the evidence favours `one`, 0 if the other, else a half; and what the query cost."""
        if not (one.answer and other.answer):
            return float(bool(one.answer)), None
        text = f"Question: {question.question} Answer 1: {one.answer} Answer 2: {other.answer}"
        instruction = worded(DISTINGUISH, agent.protocol.task)
        aside = await ask(agent, f"{question.id}/pair{name}", instruction, text, QUERY_TOKENS, seed)
        only_one, only_other = lacking(one.answer, [other.answer]), lacking(other.answer, [one.answer])
        query = aside.text or f"{question.question} {only_one} {only_other}"
        hits = await agent.search(query[: agent.settings.max_query])
        passages = [f"{hit.title} {hit.text}" for hit in hits]
        found, beside = covered(only_one, passages), covered(only_other, passages)
        return 0.5 if found == beside else float(found > beside), aside


def clusters(episodes: Sequence[Episode]) -> list[list[Episode]]:
    """Groups of episodes with the same answer, in the order of their first. Example: Rest., ice, rest give two."""
    return list(grouped((plain(episode.answer), episode) for episode in episodes).values())


def passed(protocol: Protocol, question: Question, episode: Episode) -> tuple[float, float]:
    """The shares of the question's words and of the answer's that the passages shown contain."""
    return relevance(protocol, question, [episode])[0], support(protocol, question, [episode])[0]


def with_findings(agent: Agent, question: Question, episode: Episode) -> str:
    """The prompt of a revision: the query and answer so far, and what they lacked."""
    passages = shown(agent.protocol, episode)
    query = episode.searches[-1].query if episode.searches else ""
    unfound, unsupported = (lacking(text, passages) for text in (question.question, episode.answer))
    return " ".join(
        [
            question.question,
            *([f"An earlier search was: {query}"] if query else []),
            *([f"What it found lacks these words of the question: {unfound}"] if unfound else []),
            f"An earlier answer was: {episode.answer}",
            *([f"No passage supports these words of it: {unsupported}"] if unsupported else []),
            "Search in other words and answer by what is found.",
        ]
    )


def lacking(text: str, passages: Sequence[str]) -> str:
    """The words of a text that no passage contains. Example: "heat or ice" and the passage "Ice helps." give heat."""
    return " ".join(word for word in dict.fromkeys(text.split()) if WORDS(word) and covered(word, passages) < 1)
