"""TreeSearch: Monte-Carlo tree search over search-and-answer steps.

rStar-Math, https://arxiv.org/abs/2501.04519, searches over steps of a solution with values from a process preference
model that it trains in rounds. Here a node is an episode up to the end of a turn, with the results that its searches
gave. A rollout walks down from the root, by UCT among a node's children once it has `width` of them, samples a new
turn there, and plays on to the end; every turn of it becomes a node. Its score, by any of scorers.py (or a
trained model, given as a Scorer), is added to all nodes above. The best-scored finished episode counts.

Example, width 2, scores in the order of the rollouts: the first two open two queries (.1, .5), the third goes on from
the second query with another answer.

Simplified: no trained value model, no check of steps by code, no self-evolution; as values come from finished episodes
only, a scorer that sees the answers of all (`agreement`) scores a rollout beside those that were finished by then.
`at_once` rollouts are chosen before any of them is scored, a chosen one counting as a visit that brought nothing, so
that the engine has a batch to sample.

Costs: a branch's first tokens are those of its parent. Each finished episode holds them, but only the rest was sampled
for it: `extra_sampled` is below zero by what branches share, and `extra_read` above it by the same.

Where it does not help: episodes of two turns are a shallow tree, hardly more than best-of-n that shares searches; and
where the scorer can't tell good from bad, the tree digs where it is wrong.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field

from forage.agent.agent import Agent
from forage.agent.builder import EpisodeBuilder
from forage.agent.episode import Episode
from forage.data.records import Question
from forage.errors import check_at_least_one
from forage.evaluation.outcomes import Outcome
from forage.evaluation.scorers import Oracle, Scorer, best_place, scores_of


@dataclass(frozen=True)
class TreeSearch:
    """A strategy. Example: await TreeSearch(agreement, rollouts=8)(agent, question, seed)."""

    scorer: Scorer | Oracle
    rollouts: int = 8
    width: int = 3
    """Children of a node at most."""
    at_once: int = 2
    """Rollouts that are played at the same time."""
    exploration: float = math.sqrt(2)
    """UCT's constant; this one is UCB1's for scores from 0 to 1."""

    def __post_init__(self) -> None:
        check_at_least_one(self, "rollouts", "width", "at_once")

    async def __call__(self, agent: Agent, question: Question, seed: int) -> Outcome:
        root = Node(agent.begin(question, f"{question.id}/root"))
        tried: list[Episode] = []
        scores: list[float] = []
        shared, searches, turns = 0, 0, 0
        while len(tried) < self.rollouts:
            leaves = self._choose(root, self.rollouts - len(tried))
            if not leaves:  # every way there is has been gone
                break
            shared += sum(sum(leaf.above.mask) for leaf in leaves)
            searches += sum(len(leaf.above.searches) for leaf in leaves)
            turns += sum(len(leaf.above.turns) for leaf in leaves)
            names = [f"{question.id}/{len(tried) + number}" for number in range(len(leaves))]
            played = await asyncio.gather(
                *(self._roll_out(agent, leaf, name, seed) for leaf, name in zip(leaves, names, strict=True))
            )
            tried += [episode for _, episode in played]
            scores = await scores_of(agent, self.scorer, question, tried)
            for (end, episode), score in zip(played, scores[-len(played) :], strict=True):
                end.back_up(0.0 if episode.stop == "engine" else score, visits=-(episode.stop == "engine"))
        return Outcome(tried[best_place(scores, tried)], tuple(tried), -shared, shared, -searches, -turns)

    def _choose(self, root: Node, left: int) -> list[Node]:
        """New nodes to play from."""
        leaves: list[Node] = []
        while len(leaves) < min(self.at_once, left) and root.open(self.width):
            node = root
            while len(node.children) >= self.width:
                children = [child for child in node.children if child.open(self.width)]
                node = max(children, key=lambda child: child.uct(self.exploration))  # the first of equal ones
            leaves.append(node.grow())
            leaves[-1].back_up(0.0, visits=1)
        return leaves

    async def _roll_out(self, agent: Agent, node: Node, name: str, seed: int) -> tuple[Node, Episode]:
        """Play from a new node to the end; the last node, and the episode."""
        growing = node.above.fork(name)
        while True:
            await agent.step(growing, seed)
            node.state = growing.fork(name)
            if growing.stop:
                return node, agent.finish(growing)
            node = node.grow()
            node.visits = 1


@dataclass(eq=False)
class Node:
    """An episode up to the end of a turn; without a state as long as that turn is being played."""

    state: EpisodeBuilder | None = None
    parent: Node | None = None
    children: list[Node] = field(default_factory=list)
    visits: int = 0
    total: float = 0.0

    @property
    def above(self) -> EpisodeBuilder:
        """The episode that this node's turn goes on from."""
        assert self.parent is not None
        assert self.parent.state is not None
        return self.parent.state

    def open(self, width: int) -> bool:
        """Can it, or one below it, have another child?"""
        if self.state is None or self.state.stop:
            return False
        return len(self.children) < width or any(child.open(width) for child in self.children)

    def uct(self, exploration: float) -> float:
        """Mean score, and more the less it was visited beside its siblings; unvisited ones come first.

        Example: .5 in one of 4 visits of the parent's with constant 1 gives .5 + sqrt(ln 4) = 1.677.
        """
        assert self.parent is not None
        if not self.visits:
            return math.inf
        return self.total / self.visits + exploration * math.sqrt(math.log(self.parent.visits) / self.visits)

    def grow(self) -> Node:
        self.children.append(Node(parent=self))
        return self.children[-1]

    def back_up(self, score: float, visits: int = 0) -> None:
        """Add to this node and to all above."""
        node: Node | None = self
        while node is not None:
            node.total += score
            node.visits += visits
            node = node.parent
