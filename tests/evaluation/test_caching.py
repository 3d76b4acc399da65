"""Episodes that several systems share are played once, and count for each system."""

import asyncio
from dataclasses import replace

from forage.agent.agent import BatchedSearch
from forage.engines.base import EngineError
from forage.evaluation.baselines import single
from forage.evaluation.player import CachingAgent
from forage.extras.testtime.best_of import BestOf, agreed
from forage.extras.testtime.s1 import BudgetForcing
from forage.extras.testtime.scorers import agreement
from tests.scripted_engine import QUESTION, Scripted, library, turns

SCRIPT = turns({str(n): ("gout", f"answer {n}") for n in range(4)})


def caching(protocol, say=SCRIPT):
    engine = Scripted(protocol, say)
    return CachingAgent(engine, protocol, BatchedSearch(library({}), in_line=True)), engine


def test_candidates_are_played_once_for_all_who_choose_among_them(protocol):
    agent, engine = caching(protocol)

    async def go():
        best = await BestOf(agreement, n=4)(agent, QUESTION, 1)
        asked = len(engine.requests)
        vote = await BestOf(agreed, n=4)(agent, QUESTION, 1)
        one = await single(agent, QUESTION, 1)
        assert len(engine.requests) == asked == 8  # four episodes of two turns
        assert vote.tried == best.tried
        assert one.tried == best.tried[:1]
        assert one.sampled_tokens * 4 == best.sampled_tokens == vote.sampled_tokens == engine.given
        await single(agent, QUESTION, 2)
        assert len(engine.requests) == 10  # another seed
        await single(agent, replace(QUESTION, question="another one?"), 1)
        await agent.play(QUESTION, 0, 1, asked="another one, but searched for as before?")
        assert len(engine.requests) == 14  # the same id, asked in other words
        await BudgetForcing()(agent, QUESTION, 1)
        assert len(engine.requests) > 14  # not what the policy says by itself

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
