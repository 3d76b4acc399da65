"""An observer hears of each token in order, and an observed episode is the same as an unobserved one."""

import asyncio

from forage.agent.agent import Agent, BatchedSearch, Observer
from forage.agent.options import AgentSettings
from forage.engines.base import Sampling
from forage.engines.local import LocalEngine
from tests.factories import QUESTION
from tests.scripted_engine import search_many
from tests.tiny import make_model


class Heard(Observer):
    def __init__(self):
        self.tokens = []

    def sampled(self, episode, token):
        self.tokens.append(token)


def played(engine, protocol, observer, **settings):
    agent = Agent(
        engine, protocol, BatchedSearch(search_many), AgentSettings(**settings), Sampling(temperature=1), observer
    )
    return asyncio.run(agent.play(QUESTION, seed=3))


def test_a_local_engine_tells_each_token_that_it_samples(tiny_protocol):
    """Those of the episode with mask 1, in their order; and they are the same when nobody listens."""
    settings = {"max_turns": 2, "max_turn_tokens": 8}
    heard = Heard()
    episode = played(LocalEngine(make_model(), 1), tiny_protocol, heard, **settings)
    assert heard.tokens == [token for token, sampled in zip(episode.ids, episode.mask, strict=True) if sampled]
    assert len(heard.tokens) >= 8
    assert played(LocalEngine(make_model(), 1), tiny_protocol, None, **settings).ids == episode.ids
