"""Episodes that several systems share are played once, and their time counts for each system."""

import asyncio
import time
from dataclasses import replace

from forage.agent.agent import BatchedSearch
from forage.engines.base import EngineError
from forage.evaluation.baselines import single
from forage.evaluation.player import CachingAgent
from forage.testtime.best_of import BestOf, SelfConsistency
from forage.testtime.s1 import BudgetForcing
from forage.testtime.scorers import agreement
from tests.factories import Clock
from tests.scripted_engine import QUESTION, Scripted, library, turns

SCRIPT = turns({str(n): ("gout", f"answer {n}") for n in range(4)})


def caching(protocol, say=SCRIPT):
    engine = Scripted(protocol, say)
    return CachingAgent(engine, protocol, BatchedSearch(library({}), in_line=True)), engine


def slow_caching(protocol, monkeypatch):
    """Each request takes a second of the clock, which is given too."""
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    agent, engine = caching(protocol)
    answers = engine.generate

    async def slow(request):
        clock.seconds += 1
        return await answers(request)

    engine.generate = slow
    return agent, clock


def test_candidates_are_played_once_for_all_who_choose_among_them(protocol):
    agent, engine = caching(protocol)

    async def go():
        best = await BestOf(agreement, n=4)(agent, QUESTION, 1)
        asked = len(engine.requests)
        vote = await SelfConsistency(n=4)(agent, QUESTION, 1)
        one = await single(agent, QUESTION, 1)
        assert len(engine.requests) == asked == 8  # four episodes of two turns
        assert vote.tried == best.tried
        assert one.tried == best.tried[:1]
        assert one.sampled * 4 == best.sampled == vote.sampled == engine.given
        await single(agent, QUESTION, 2)
        assert len(engine.requests) == 10  # another seed
        await single(agent, replace(QUESTION, question="another one?"), 1)
        await agent.play(QUESTION, 0, 1, asked="another one, but searched for as before?")
        assert len(engine.requests) == 14  # the same id, asked in other words
        await BudgetForcing()(agent, QUESTION, 1)
        assert len(engine.requests) > 14  # not what the policy says by itself

    asyncio.run(go())


def taken(agent):
    """The seconds that were saved since it was last asked."""
    saved = sum(agent.saved)
    agent.saved.clear()
    return saved


def test_only_what_a_policy_says_by_itself_is_a_plain_sample(protocol, monkeypatch):
    """Each sample takes 2 seconds. Revised and forced episodes have the ids of plain ones, and are none."""
    agent, _ = slow_caching(protocol, monkeypatch)

    async def go():
        agent.stopwatch.start()
        best = await BestOf(agreement, n=2)(agent, QUESTION, 1)
        seconds = agent.plain_seconds(QUESTION, 1, best.tried)
        assert sum(seconds) == 4
        assert agent.plain_seconds(QUESTION, 2, best.tried) == (None, None)
        revised = await agent.play(QUESTION, 1, 1, asked="An earlier answer was wrong. What is gout?")
        assert revised.id == best.tried[1].id
        assert agent.plain_seconds(QUESTION, 1, (best.tried[0], revised)) == (seconds[0], None)
        forced = await BudgetForcing()(agent, QUESTION, 1)
        assert agent.plain_seconds(QUESTION, 1, forced.tried) == (None,)

        later, engine_of_later = caching(protocol)
        for episode, took in zip(best.tried, seconds, strict=True):
            later.played[QUESTION, episode.id, 1, ""] = (replace(episode, transcript="as stored"), took)
        shared = await SelfConsistency(n=2)(later, QUESTION, 1)
        assert [e.transcript for e in shared.tried] == ["as stored"] * 2
        assert engine_of_later.requests == []
        assert taken(later) == 4
        await BestOf(agreement, n=3)(later, QUESTION, 1)
        assert len(engine_of_later.requests) == 2  # the third sample's two turns

    asyncio.run(go())


def test_an_episode_that_the_engine_gave_up_on_is_played_again(protocol):
    agent, engine = caching(protocol)
    answers = engine.generate

    async def dead(request):
        raise EngineError("no server answered")

    async def go():
        engine.generate = dead
        assert (await agent.play(QUESTION)).stop == "engine"
        engine.generate = answers
        assert (await agent.play(QUESTION)).stop == "answer"

    asyncio.run(go())
