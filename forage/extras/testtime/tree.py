"""TreeSearch: Monte-Carlo tree search over search-and-answer turns.

Paper: rStar-Math, https://arxiv.org/abs/2501.04519, searches over the steps of a solution, with values from a process
preference model that it trains in rounds, and checks steps by running code.

Here: a node is an episode up to the end of a turn, search results included. A rollout walks down from the root, by UCT
among a node's children once there are `width` of them, samples a new turn there and plays on to the end; each of its
turns becomes a node. Its score, by any scorer, is added to all nodes above. The finished episode with the best score is
chosen. Example with width 2: the first two rollouts open two queries and score .1 and .5, so the third continues from
the second query with another answer. `concurrency` rollouts are chosen before any of them is scored, so that the engine
can sample a batch; each counts as a visit with score 0 meanwhile.

With `values`, a turn that its rollout went on from also has a value of its own, judged without what came after it,
beside the tree's other turns of its depth; it counts as one more rollout in the turn's mean. So two queries with poor
answers can still be told apart by what they found. The paper begins a node's value with its process preference model's
in the same way; ours is preference.py, and the written scorers that look at passages (`relevance`) will do.

Left out: a language model as the preference model, and keeping only the best of many sampled steps: here a turn is
always played to the end once. Steps are not checked by code. The rounds in which policy and scorer are trained in turn
are self_evolve.py's. A scorer that compares answers (`agreement`) compares a rollout with those
finished by then.

Cost: a branch starts with its parent's tokens. Each finished episode contains them, but they were sampled once:
`extra_sampled` subtracts the shared tokens, and `extra_read` adds them.

Where it doesn't help: episodes of two turns make a shallow tree, hardly more than best-of-n with shared searches; and
if the scorer can't tell good from bad, the tree explores the wrong branches.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field

from forage.agent.agent import Agent, EpisodeBuilder
from forage.agent.episode import Episode
from forage.data.records import Question
from forage.errors import check_at_least_one
from forage.evaluation.outcomes import Outcome
from forage.extras.testtime.scorers import Oracle, Scorer, best_index, scores_of


@dataclass(frozen=True)
class TreeSearch:
    """A strategy. Example: await TreeSearch(looks_good, rollouts=8)(agent, question, seed)."""

    scorer: Scorer | Oracle
    values: bool = False
    """The scorer also judges turns before their episode is finished; else only finished episodes tell their worth."""
    rollouts: int = 8
    width: int = 3
    """Most children of a node."""
    concurrency: int = 2
    """Rollouts played at the same time."""
    exploration: float = math.sqrt(2)
    """The UCT constant; the default is UCB1's for scores from 0 to 1."""

    def __post_init__(self) -> None:
        check_at_least_one(self, "rollouts", "width", "concurrency")

    async def __call__(self, agent: Agent, question: Question, seed: int) -> Outcome:
        root = Node(agent.begin(question, f"{question.id}/root"))
        tried: list[Episode] = []
        scores: list[float] = []
        shared, searches, turns = 0, 0, 0
        while len(tried) < self.rollouts:
            await self._judge(agent, question, root)
            leaves = self._choose(root, self.rollouts - len(tried))
            if not leaves:  # the whole tree has been played
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
        return Outcome(tried[best_index(scores, tried)], tuple(tried), -shared, shared, -searches, -turns)

    def _choose(self, root: Node, left: int) -> list[Node]:
        """New nodes to play from, at most `left`."""
        leaves: list[Node] = []
        while len(leaves) < min(self.concurrency, left) and root.open(self.width):
            node = root
            while len(node.children) >= self.width:
                children = [child for child in node.children if child.open(self.width)]
                node = max(children, key=lambda child: child.uct(self.exploration))  # the first of equal children
            leaves.append(node.grow())
            leaves[-1].back_up(0.0, visits=1)
        return leaves

    async def _judge(self, agent: Agent, question: Question, root: Node) -> None:
        """Value the turns that go on, each depth by itself, and those valued before beside the new ones."""
        level = root.children if self.values else []
        while level:
            going = [(node, node.state) for node in level if node.state and not node.state.stop]
            # Turns with the same tokens are one candidate, as they are where the scorer is trained (train_scorer.py).
            different = {tuple(state.ids): state for _, state in going}
            episodes = [state.so_far(agent.protocol) for state in different.values()]
            scores = await scores_of(agent, self.scorer, question, episodes) if going else []
            score_of = dict(zip(different, scores, strict=True))
            for node, state in going:
                node.value = score_of[tuple(state.ids)]
            level = [child for node in level for child in node.children]

    async def _roll_out(self, agent: Agent, node: Node, name: str, seed: int) -> tuple[Node, Episode]:
        """Play from a new node to the end; returns the last node and the episode."""
        builder = node.above.fork(name)
        while True:
            await agent.play_turn(builder, seed)
            node.state = builder.fork(name)
            if builder.stop:
                return node, agent.finish(builder)
            node = node.grow()
            node.visits = 1


@dataclass(eq=False)
class Node:
    """An episode up to the end of a turn; `state` is None while that turn is being played."""

    state: EpisodeBuilder | None = None
    parent: Node | None = None
    children: list[Node] = field(default_factory=list)
    visits: int = 0
    total: float = 0.0
    value: float | None = None
    """What the turn was thought to be worth without what came after it."""

    @property
    def above(self) -> EpisodeBuilder:
        """The episode before this node's turn."""
        assert self.parent is not None
        assert self.parent.state is not None
        return self.parent.state

    def open(self, width: int) -> bool:
        """Can this node, or one below it, get another child?"""
        if self.state is None or self.state.stop:
            return False
        return len(self.children) < width or any(child.open(width) for child in self.children)

    def uct(self, exploration: float) -> float:
        """Mean score plus a bonus for few visits compared with its siblings; unvisited nodes come first.

        Example: score .5 in one of the parent's 4 visits, with constant 1, gives .5 + sqrt(ln 4) = 1.677; with a value
        of its own of .9, the mean is .7.
        """
        assert self.parent is not None
        if not self.visits:
            return math.inf
        mean = (self.total + (self.value or 0.0)) / (self.visits + (self.value is not None))
        return mean + exploration * math.sqrt(math.log(self.parent.visits) / self.visits)

    def grow(self) -> Node:
        self.children.append(Node(parent=self))
        return self.children[-1]

    def back_up(self, score: float, visits: int = 0) -> None:
        """Add to this node and to all nodes above it."""
        node: Node | None = self
        while node is not None:
            node.total += score
            node.visits += visits
            node = node.parent
