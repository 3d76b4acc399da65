"""Rollout: plays questions with the policy, rewards the episodes, and writes them into the run folder."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import time
from asyncio import FIRST_COMPLETED as FIRST
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError

from forage.agent.agent import Agent, BatchedSearch, Player
from forage.agent.episode import Episode, Search, Turn, Use, append_episodes, is_written
from forage.agent.options import AgentSettings
from forage.agent.protocol import Protocol
from forage.agent.rewards import (
    MEASURED,
    MakeRewards,
    RewardFunction,
    credited,
    has_reference,
    names_of_rewards,
    rewarded,
    rewards_of,
    weights_by_name,
)
from forage.agent.searcher import Searcher, searching
from forage.agent.tools import functions_for, own_agent
from forage.data.records import Question
from forage.data.splits import Splits
from forage.engines.base import Engine, Job
from forage.engines.choice import open_engine
from forage.errors import UserError
from forage.heartbeat import beat
from forage.metrics import reciprocal_rank
from forage.policy.adapters import (
    adapter_path,
    sampled_by,
    served_name,
    version_name,
    versions,
    weights_digest,
    whole_digest,
)
from forage.policy.manifest import read_policy_manifest
from forage.progress import Progress
from forage.rollout.agreement import adapter_of, open_embedder, read_run
from forage.rollout.options import RolloutOptions
from forage.rollout.plans import TRAINER, Claims, Plan, Played
from forage.store.document_store import DocumentStore
from forage.store.manifest import NO_EMBEDDER
from forage.store.opening import Store, open_address
from forage.text import say

# Playing: questions become episodes on disk, in one process or in several that share a folder through claims.
#
# Rollouts and evaluations both play this way: claim a question, play it, write it to a file of one's own, look again.

T = TypeVar("T")


async def play_all(
    missing: Callable[[], Sequence[str]], play: Callable[[str], Awaitable[T]], write: Callable[[str, T], None],
    claims: Claims | None, at_once: int, *, poll: float = 1.0,
) -> None:  # fmt: skip
    """Play what nobody else is playing, at most `at_once` questions at a time, and wait until none is missing.

    `missing` looks at the folder, so it also learns what others have written; `play` plays a question, and `write` is
    called with the result if no other process has taken the question over. Without `claims` there is no other.
    """
    playing: dict[asyncio.Future[T], str] = {}
    keepers = [asyncio.create_task(keep_fresh(claims, playing))] if claims else []
    try:
        while names := missing():
            beat()
            for name in names:
                free = len(playing) < at_once and name not in playing.values()
                if free and (claims is None or claims.take(name)):
                    playing[asyncio.ensure_future(play(name))] = name
            if not playing:  # others play the rest; if one of them dies, its claims expire
                await asyncio.sleep(poll)
                continue
            done, _ = await asyncio.wait(playing, timeout=poll, return_when=FIRST)
            # In the order they were begun, and what was played is written before an error ends it all.
            ended = (task for task in playing if task in done)
            for task in sorted(ended, key=lambda task: task.exception() is not None):
                name, result = playing.pop(task), task.result()
                if claims is None or claims.holds(name):  # else it slept so long that another one took over
                    write(name, result)
    finally:
        ending: list[asyncio.Future[Any]] = [*keepers, *playing]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)  # until none of them plays or writes any more


async def keep_fresh(claims: Claims, playing: Mapping[Any, str]) -> None:
    while True:
        await asyncio.sleep(claims.lease / 4)
        for name in playing.values():
            with contextlib.suppress(OSError):  # of a file server, say; there are three more tries before it expires
                claims.refresh(name)


class EpisodeWriter:
    """Appends groups to a file of its own, `<worker>.jsonl`, which no earlier life of the worker has written to.

    What an earlier one wrote on another machine may not be seen here yet, and would be overwritten: then it is
    `<worker>~2.jsonl`, and so on.
    """

    def __init__(self, folder: Path, claims: Claims, check: Callable[[], None] = lambda: None) -> None:
        self.folder, self.claims, self.check = folder, claims, check
        self.path: Path | None = None

    def __call__(self, question_id: str, episodes: Sequence[Episode]) -> None:
        self.check()
        unused = (path for path in unwritten(self.folder, self.claims.worker) if self.claims.create(path, ""))
        self.path = self.path or next(unused)
        append_episodes(self.path, [replace(episode, worker=self.claims.worker) for episode in episodes])


def unwritten(folder: Path, worker: str) -> Iterator[Path]:
    """The files that no earlier life of a worker wrote. Example: w.jsonl, or else w~2.jsonl, w~3.jsonl and so on."""
    names = itertools.chain([worker], (f"{worker}~{number}" for number in itertools.count(2)))
    yield from (path for name in names if not is_written(path := folder / f"{name}.jsonl"))


class RolloutView(Progress):
    """Counts episodes as they end."""

    def __init__(self, title: str, total: int) -> None:
        super().__init__(title, total)
        self.episodes: list[Episode] = []
        self.rewarded_episodes: list[Episode] = []

    def played(self, episode: Episode) -> None:
        """Count a finished episode."""
        self.episodes.append(episode)
        self.done += 1
        self.changed()

    def ended(self, playing: asyncio.Future[Episode]) -> None:
        """Count an episode that has been played, unless playing it failed."""
        if not playing.cancelled() and not playing.exception():
            self.played(playing.result())

    def rewarded(self, episodes: Sequence[Episode]) -> None:
        """Add episodes with their rewards to the means."""
        self.rewarded_episodes += episodes
        self.changed()

    def figures(self) -> Mapping[str, str]:
        count = max(1, self.done)
        shown = {
            "episodes": f"{self.done} of {self.total}",
            "tokens/s": f"{sum(e.sampled for e in self.episodes) / max(1e-9, time.monotonic() - self.started):,.0f}",
            "searches": f"{sum(len(episode.searches) for episode in self.episodes) / count:.2f}",
            "ended by": ", ".join(f"{stop} {n}" for stop, n in Counter(e.stop for e in self.episodes).most_common()),
        }
        for name in names_of_rewards(self.rewarded_episodes):
            values = [episode.rewards[name] for episode in self.rewarded_episodes if name in episode.rewards]
            shown[name] = f"{sum(values) / len(values):.3f}"
        return shown


# Rollout

SEEN_WITHIN = 120.0  # seconds until what another machine wrote can be seen here; NFS's longest by default is 60


class Rollout:
    """Plays questions and rewards the episodes. Made by `open_rollout`."""

    def __init__(
        self, options: RolloutOptions, engine: Engine, protocol: Protocol, searcher: Searcher,
        functions: Mapping[str, RewardFunction], questions: Splits,
    ) -> None:  # fmt: skip
        self.options, self.functions, self.settings = options, functions, searcher.settings
        self.engine, self.protocol, self.searcher = engine, protocol, searcher
        self.by_id = questions
        self.tools = functions_for(self.settings.tools)
        self.player: Player = own_agent() or Agent.play
        search = searching(searcher.store, self.settings)
        self.batched_search = BatchedSearch(search, in_line=engine.exact)
        self.try_rewards()

    def try_rewards(self) -> None:
        """Run every reward on made-up episodes, so that a broken one is reported before anything is played.

        Says which rewards don't exist for questions without a reference answer, if there are any.
        """
        questions = [question for by_id in self.by_id.values() for question in by_id.values()]
        self.reward_trial(next(filter(has_reference, questions), questions[0]))
        without = [question for question in questions if not has_reference(question)]
        tried = [name for name in self.functions if without and name != MEASURED]
        missing = [name for name in tried if name not in self.reward_trial(without[0]).rewards]
        if missing:
            effect = "left out of the run" if len(without) == len(questions) else "left out of their episodes"
            print(
                f"{len(without)} of {len(questions)} questions have no reference answer to compare with, so "
                f"{', '.join(missing)} is {effect}"
            )
        store = self.searcher.store
        there = store.chunk_by_id.keys() if isinstance(store, DocumentStore) else set()  # a server doesn't list them
        lost = [q for q in questions if there and q.relevant_chunk_ids and there.isdisjoint(q.relevant_chunk_ids)]
        if lost:
            say(
                f"{store.path} lacks what answers {len(lost)} of {len(questions)} questions, such as {lost[0].id} "
                f"({lost[0].relevant_chunk_ids[0]})"
            )

    def reward_trial(self, question: Question) -> Episode:
        """The second of two made-up episodes, in which everything happens; nothing does in the first."""
        blank = Episode("trial/0", "trial", (), (), (), (), (), "", "turns", "base")
        found = question.relevant_chunk_ids[: self.settings.k]
        full = replace(
            blank, id="trial/1", turns=(Turn(0, 0), Turn(0, 0)), searches=(Search(0, question.question, found),),
            uses=tuple(Use(0, tool, {}, "yes") for tool in self.tools), answer="yes", stop="answer",
        )  # fmt: skip
        return self.reward([blank, full], [question] * 2)[1]

    async def play_group(self, plan: Plan, view: RolloutView, name: str) -> list[Episode]:
        """A question's group of episodes, rewarded."""
        question = self.by_id[plan.split].get(name)
        if question is None:
            raise UserError(f"plan {plan.name} asks for {plan.split} question {name}, which {self.options.data} lacks")
        sampling = replace(self.options.sampling, temperature=plan.temperature)
        agent = Agent(self.engine, self.protocol, self.batched_search, self.settings, sampling, tools=self.tools)
        playing = [asyncio.ensure_future(self.player(agent, question, n, plan.seed)) for n in range(plan.num_rollouts)]
        for one in playing:
            one.add_done_callback(view.ended)
        episodes = await asyncio.gather(*playing)
        if causes := [episode.cause for episode in episodes if episode.stop == "engine"]:
            # The server failed, which says nothing about the policy: not kept.
            raise UserError(f"{plan.name}: {causes[0]}; start it, then run the same command again to resume")
        if len(episodes) > 1 and all(episode.stop == "agent" for episode in episodes):
            raise UserError(f"{plan.name}: the agent of get_agent failed each time: {episodes[0].cause}")
        episodes = await self.batched_search.in_thread(self.reward, episodes, [question] * len(episodes))
        if plan.credit == "words":
            credit = (episodes, question, self.searcher, self.protocol.tokenizer.decode, plan.word_cost)
            episodes = await self.batched_search.in_thread(credited, *credit)
        view.rewarded(episodes)
        return episodes

    async def plain_rag(self, names: Iterable[str], measure: str) -> dict[str, float]:
        """By held-out question, what a search for the question finds, as the reward mrr or found measures it."""
        questions = [self.by_id["eval"][name] for name in names]
        found = await asyncio.gather(*(self.batched_search(question.question) for question in questions))
        ranks = {
            question.id: reciprocal_rank([hit.chunk_id for hit in hits], question.relevant_chunk_ids)
            for question, hits in zip(questions, found, strict=True)
        }
        return {name: float(rank > 0) for name, rank in ranks.items()} if measure == "found" else ranks

    def reward(self, episodes: Sequence[Episode], questions: Sequence[Question]) -> list[Episode]:
        """Add each one's rewards and their weighted mean, by which flat groups are found and people read; the update
        combines the rewards itself."""
        weights = weights_by_name(self.functions, self.options.weights)
        return rewarded(self.functions, episodes, questions, [*weights.values()])


@asynccontextmanager
async def open_rollout(
    options: RolloutOptions, settings: AgentSettings, make_rewards: MakeRewards, questions: Splits,
    embedder: str = "", *, sleeps: bool = False,
) -> AsyncIterator[Rollout]:  # fmt: skip
    """Open everything a rollout needs: the engine, the store, the rewards with the run's embedder."""
    job = Job(read_policy_manifest(options.policy), options.concurrent_episodes, settings.max_tokens, sleeps)
    searched = open_search(options, settings)  # before the engine, which may take minutes to start
    async with open_engine(options.engine, job) as engine:
        yield rollout_with(engine, *searched, options, settings, make_rewards, questions, embedder)


def open_search(options: RolloutOptions, settings: AgentSettings) -> tuple[Store, Protocol]:
    """The store, and the protocol, for which only the policy's tokenizer is read."""
    protocol = Protocol.of_policy(read_policy_manifest(options.policy), settings)
    return open_address(options.address, options.data), protocol


def rollout_with(
    engine: Engine, store: Store, protocol: Protocol, options: RolloutOptions, settings: AgentSettings,
    make_rewards: MakeRewards, questions: Splits, embedder: str = "",
) -> Rollout:  # fmt: skip
    opened = store.embedder if store.options.embedder != NO_EMBEDDER else open_embedder(store.manifest, embedder)
    searcher = Searcher(lambda: store, settings)
    functions = rewards_of(make_rewards, opened, searcher, options.weights)
    return Rollout(options, engine, protocol, searcher, functions, questions)


async def play_groups(
    rollout: Rollout, plan: Plan, missing: Callable[[], Sequence[str]],
    write: Callable[[str, Sequence[Episode]], None], claims: Claims | None = None, poll: float = 1.0,
) -> None:  # fmt: skip
    """Play a plan's groups, a few at a time, while their episodes are counted."""
    adapter = version_name(sampled_by(rollout.engine.adapter)[0])
    at_once = max(1, rollout.options.concurrent_episodes // plan.num_rollouts)
    with RolloutView(f"{plan.name}, adapter {adapter}", len(plan.questions) * plan.num_rollouts) as view:
        await play_all(missing, partial(rollout.play_group, plan, view), write, claims, at_once, poll=poll)


async def play_alone(rollout: Rollout, run_dir: Path, plan: Plan) -> list[Episode]:
    """The episodes of a plan that no other process plays, with the run's newest adapter.

    What an earlier life of this process has played stays, unless the engine is exact: half a plan would be sampled in
    different batches, so rounded differently.
    """
    played = Played(run_dir, plan)
    groups = dict(played.groups())
    if not plan.missing(groups):
        return plan.gathered(groups)
    if rollout.engine.exact:
        shutil.rmtree(played.folder, ignore_errors=True)
        groups.clear()
    path = next(unwritten(played.folder, TRAINER))

    def write(name: str, episodes: Sequence[Episode]) -> None:
        groups[name] = [replace(episode, worker=TRAINER) for episode in episodes]
        append_episodes(path, groups[name])

    await load_newest(rollout, run_dir)
    await play_groups(rollout, plan, lambda: plan.missing(groups), write)
    return plan.gathered(groups)


async def play_plan(
    rollout: Rollout, run_dir: Path, plan: Plan, worker: str, *, poll: float = 1.0,
    check: Callable[[], None] = lambda: None, make_claims: Callable[..., Claims] = Claims,
) -> None:  # fmt: skip
    """Play what no other worker is playing, a few questions at a time, and wait until the whole plan is played.

    `check` is called before each question's episodes are written.
    """
    played = Played(run_dir, plan)
    claims = make_claims(played.claims, worker, clock=asyncio.get_running_loop().time)
    await play_groups(rollout, plan, played.missing, EpisodeWriter(played.folder, claims, check), claims, poll)


async def load_newest(
    rollout: Rollout, run_dir: Path, least: int = 0, *, poll: float = 1.0, within: float = SEEN_WITHIN
) -> None:
    """Sample with the newest adapter of the run, or with the policy's own if the run has none yet.

    Waits until an adapter of version `least` or newer can be read whole here.
    """
    deadline = time.monotonic() + within
    while True:
        beat()
        if not versions(run_dir):
            adapter = adapter_of(rollout.options.policy, read_run(run_dir), run_dir)
            name = served_name(run_dir.name, 0, weights_digest(adapter))
            return await rollout.engine.load_adapter(name, adapter)
        if found := newest_whole(run_dir, least):
            version, adapter, digest = found
            try:
                return await rollout.engine.load_adapter(served_name(run_dir.name, version, digest), adapter)
            except (OSError, ValueError, SafetensorError, UserError):
                if whole_digest(adapter) is not None:  # else the trainer removes it, having published newer ones since
                    raise
        if time.monotonic() > deadline:
            adapter = adapter_path(run_dir, max([least, *versions(run_dir)]))
            raise UserError(
                f"{adapter} can't be read whole here after {within:.0f} s; check that this machine sees the trainer's "
                "folder, and that the trainer is of this version"
            )
        await asyncio.sleep(poll)


def newest_whole(run_dir: Path, least: int) -> tuple[int, Path, str] | None:
    """(version, folder, digest) of the newest adapter that can be read whole here, of those new enough."""
    for version in reversed(versions(run_dir)):
        adapter = adapter_path(run_dir, version)
        if version >= least and (digest := whole_digest(adapter)) is not None:
            return version, adapter, digest
    return None
