"""Agents that run on their own, in processes of their own, over real HTTP: they come for episodes and end them."""

import asyncio
import subprocess
import sys

import httpx
import pytest
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

import grpo_rollout
from forage.agent.episode import read_episodes
from forage.agent.rewards import get_own_reward
from forage.extras.gateway.own_agent import KEY, handed_out
from tests import ROOT
from tests.extras.gateway.own_agents import Spelling, agent_over
from tests.pages import fenced
from tests.ports import free_port
from tests.refusals import refused
from tests.scripted_engine import QUESTION
from tests.tiny_training import tiny_options, train

ANSWER = {"answer": "Rest.", "reward": 0.5}


@pytest.fixture
def port():
    return free_port()


async def take(web):
    while (taken := await web.post("/v1/episodes")).status_code == 429:
        assert taken.headers["retry-after"] == "1"
        await asyncio.sleep(0.02)
    return taken.raise_for_status().json()


async def end_next(web, **more):
    """Take an episode, and end it at once."""
    await web.post(f"{(await take(web))['base_url']}/end", json=ANSWER | more)


def playing(protocol, port, visitor, *says, samples=1, **options):
    """(episodes, what the visitor returned)."""

    async def go():
        policy = agent_over(Spelling(protocol, *says))
        player = handed_out(port, **options)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as web:
            episodes = [player(policy, QUESTION, n, 7) for n in range(samples)]
            *played, returned = await asyncio.gather(*episodes, visitor(web))
        return played, returned

    return asyncio.run(go())


def test_an_episode_is_taken_played_and_ended(protocol, port):
    async def visitor(web):
        taken = await take(web)
        assert (taken["id"], taken["question_id"], taken["question"]) == ("q1/0", "q1", "What mends gout?")
        assert (await web.post("/v1/episodes")).status_code == 429  # each is handed out once
        address = taken["base_url"]
        messages = [{"role": "user", "content": taken["question"]}]
        reply = await web.post(f"{address}/chat/completions", json={"model": "policy", "messages": messages})
        assert reply.json()["choices"][0]["message"]["content"] == "Hm."
        wrong = await web.post(f"{address}/end", json=ANSWER | {"reward": 3})
        assert (wrong.status_code, wrong.json()["error"]["message"][:7]) == (400, "reward:")
        ended = [(await web.post(f"{address}/end", json=ANSWER)).status_code for _ in range(2)]
        assert ended == [200, 404]

    [episode], _ = playing(protocol, port, visitor, "Hm.")
    assert (episode.answer, episode.own_reward, episode.stop) == ("Rest.", 0.5, "answer")
    assert protocol.text(episode.ids[episode.turns[0].start : episode.turns[0].end]) == "Hm."


def test_search_by_the_model_context_protocol_counts_for_its_episode(protocol, port):
    async def visitor(web):
        first, second = await take(web), await take(web)
        async with (
            streamable_http_client(f"{first['base_url']}/mcp") as streams,
            ClientSession(streams[0], streams[1]) as client,
        ):
            await client.initialize()
            found = await client.call_tool("search", {"query": "gout"})
            assert (found.is_error, found.content[0].text[:9]) == (False, "[1] Gout:")
            for taken in (first, second):
                await web.post(f"{taken['base_url']}/end", json=ANSWER)
            with pytest.raises(MCPError, match="it may be over"):
                await client.call_tool("search", {"query": "gout"})

    [one, other], _ = playing(protocol, port, visitor, samples=2)
    assert [search.query for search in one.searches] == ["gout"]
    assert one.searches[0].hits == ("gout#0", "gout#1")
    assert not other.searches


def test_what_is_taken_and_not_ended_costs_its_own_episode_alone(protocol, port, monkeypatch, capsys):
    """One that nobody has taken yet waits for longer than a taken one may last, which is said."""
    monkeypatch.setattr("forage.extras.gateway.own_agent.TOLD", 0.2)

    async def visitor(web):
        await asyncio.sleep(0.6)
        await take(web)
        for cause in ({}, {"cause": "no tokens left"}):
            await end_next(web, **cause)

    (forgotten, whole, failed), _ = playing(protocol, port, visitor, samples=3, seconds=0.5)
    assert (forgotten.stop, forgotten.cause) == ("agent", "it was taken, and not ended for 0.5 s")
    assert whole.stop == "answer"
    assert (failed.stop, failed.cause) == ("agent", "no tokens left")  # whatever it answered


def test_other_machines_need_the_key(protocol, port, monkeypatch):
    with refused(f"lets other machines play; set {KEY} to a key"):
        handed_out(port, "0.0.0.0")
    monkeypatch.setenv(KEY, "secret")

    async def visitor(web):
        refused = await web.post("/v1/episodes")
        assert (refused.status_code, KEY in refused.json()["error"]["message"]) == (401, True)
        web.headers["authorization"] = "Bearer secret"
        await end_next(web)

    [episode], _ = playing(protocol, port, visitor, host="0.0.0.0")
    assert episode.stop == "answer"


def test_a_run_is_played_by_programs_that_were_there_before(tiny, tmp_path, monkeypatch, port):
    """The page's program, twice: they wait for the run and play all of its episodes, and their rewards are its own."""
    [code] = [block for block in fenced(ROOT / "docs" / "gateway.md", "py") if "/v1/episodes" in block]
    program = tmp_path / "harness.py"
    program.write_text(code.replace("8200", str(port)).replace("sleep(1)", "sleep(.05)").replace('"gout"', '"e"'))
    monkeypatch.setattr(grpo_rollout, "get_agent", lambda: handed_out(port))
    harnesses = [subprocess.Popen([sys.executable, program]) for _ in range(2)]
    try:
        train(
            tiny_options(tiny, tmp_path / "run", max_steps=1, eval_every=0),
            lambda embedder, searcher: {"own": get_own_reward},
        )
    finally:
        for harness in harnesses:
            harness.kill()
            harness.wait()
    episodes = list(read_episodes(tmp_path / "run" / "episodes" / "000000" / "trainer.jsonl"))
    assert len(episodes) == 12
    for episode in episodes:
        assert (episode.stop, len(episode.turns)) == ("answer", 1)
        assert episode.reward == episode.own_reward == ("e" in episode.answer)
    assert len({episode.reward for episode in episodes}) == 2
