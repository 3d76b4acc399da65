"""Rewards by hand; steps that are shared, resumed and never played twice."""

import asyncio
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from forage.agent.episode import append_episodes
from forage.agent.options import AgentSettings
from forage.agent.protocol import write_answer, write_call
from forage.agent.rewards import get_answer_similarity, get_format_reward, get_mrr, get_token_f1
from forage.agent.searcher import Searcher
from forage.data.records import Document, Question
from forage.data.splits import read_splits
from forage.engines.base import Engine, EngineError, Sample
from forage.files import write_jsonl
from forage.rollout.options import RolloutOptions
from forage.rollout.plans import Claims, Played, open_plans, plan_of
from forage.rollout.rollout import Rollout, play_plan
from forage.rollout.worker import keep_plan
from grpo_rollout import get_reward_functions
from tests.factories import EPISODE, plain_store
from tests.refusals import refused
from tests.scripted_engine import search_many

QUESTION = Question("q", "What is gout?", "Rest and ice.", relevant_chunk_ids=("c", "z"))


# Rewards


@pytest.mark.parametrize(
    ("relevant", "expected"), [(("a",), 1.0), (("b",), 1 / 2), (("c", "z"), 1 / 3), (("z",), 0.0), ((), 0.0)]
)
def test_mrr_by_hand(relevant, expected):
    # The example saw a, b and then b, c: each chunk counts once, where it was first seen.
    assert get_mrr([EPISODE], [replace(QUESTION, relevant_chunk_ids=relevant)]) == [expected]


def test_similarity_by_hand():
    vectors = {"same": [1, 0], "near": [0.6, 0.8], "against": [-1, 0], "": [1, 0], "Rest and ice.": [1, 0]}
    embedder = SimpleNamespace(encode_passages=lambda texts: np.array([vectors[text] for text in texts], np.float32))
    episodes = [replace(EPISODE, answer=answer) for answer in ("same", "near", "against", "")]
    found = get_answer_similarity(episodes, [QUESTION] * 4, embedder)
    assert found == pytest.approx([1, 0.6, 0, 0])


def test_format_by_hand():
    first, second = EPISODE.turns
    broken = replace(first, faults=("bad_json",))
    cases = [
        (EPISODE, 1.0),
        (replace(EPISODE, turns=(broken, second)), (1 + 1 + 1 / 2) / 3),
        (replace(EPISODE, searches=()), 2 / 3),
        (replace(EPISODE, stop="search"), 1.0),
        (replace(EPISODE, stop="turns", turns=(broken, broken)), 1 / 3),
        (replace(EPISODE, stop="no_action", searches=(), turns=(broken,)), 0.0),
        (replace(EPISODE, stop="tokens", searches=(), turns=()), 0.0),
    ]
    assert get_format_reward([e for e, _ in cases], [QUESTION] * 7) == pytest.approx([r for _, r in cases])


# Steps


class Game(Engine):
    """An engine that searches for the question's id and then answers, and counts what it was asked for."""

    adapter = "run-v000000"

    def __init__(self, protocol):
        self.protocol, self.asked, self.loaded = protocol, [], []

    async def generate(self, request):
        await asyncio.sleep(0.001)
        self.asked.append(request.episode)
        first = "tool_response>\n[" not in self.protocol.tokenizer.decode(request.ids)
        ids = self.protocol.turn_ids(write_call(request.episode) if first else write_answer("rest"))
        return Sample(tuple(ids), (-0.5,) * len(ids), "stop")

    async def load_adapter(self, name, folder):
        self.adapter = name
        self.loaded.append((name, folder.name))


@pytest.fixture
def rollout(protocol, tmp_path, embedder):
    write_jsonl(
        tmp_path / "train.jsonl", [replace(QUESTION, id=f"q{n}", relevant_chunk_ids=(f"q{n}/0#1",)) for n in range(5)]
    )
    store = SimpleNamespace(
        embedder=embedder, options=SimpleNamespace(embedder="x"), search=lambda queries, *_, **__: search_many(queries)
    )
    options = RolloutOptions(data=tmp_path, num_rollouts=2, batch_size=3)
    functions = get_reward_functions(embedder, Searcher(lambda: store, AgentSettings()))
    searcher, questions = Searcher(lambda: store, AgentSettings()), read_splits(options.data)
    return Rollout(options, Game(protocol), protocol, searcher, functions, questions)


def first_plan(rollout):
    return plan_of(rollout.options, list(rollout.by_id["train"]), 0)


def test_a_plan_is_played_rewarded_and_written(rollout, tmp_path):
    plan = first_plan(rollout)
    asyncio.run(play_plan(rollout, tmp_path / "run", plan, "w"))
    episodes = Played(tmp_path / "run", plan).gathered()
    assert [e.id for e in episodes] == [f"{name}/{sample}" for name in plan.questions for sample in range(2)]
    for episode in episodes:
        # Only the first sample's own search finds the chunk that answers, in second place.
        mrr = 0.5 if episode.id.endswith("/0") else 0.0
        assert episode.rewards["mrr"] == mrr
        assert episode.rewards["format"] == 1.0
        assert episode.reward == pytest.approx((mrr + 1 + episode.rewards["answer_similarity"]) / 3)
    assert {e.adapter for e in episodes} == {"run-v000000"}


def test_words_have_a_credit_of_their_own_where_the_plan_asks_for_it(rollout, tmp_path):
    """The query's one word is the episode's id: the first sample finds its chunk by it, the second finds none."""

    def search(queries, *_, **__):
        return [[SimpleNamespace(chunk_id=f"{query}#{n}", score=2.0 - n) for n in range(2)] for query in queries]

    rollout.searcher = Searcher(lambda: SimpleNamespace(search=search), rollout.settings)
    plan = replace(first_plan(rollout), credit="words", word_cost=0.01)
    asyncio.run(play_plan(rollout, tmp_path / "run", plan, "w"))
    for episode in Played(tmp_path / "run", plan).gathered():
        [found] = episode.searches
        said = [token for token, credit in zip(episode.ids, episode.credits, strict=True) if credit > 0]
        text = rollout.protocol.tokenizer.decode(said)
        assert text.strip() == ("" if episode.id.endswith("/1") else found.query)
        assert min(episode.credits) == (-0.01 if episode.id.endswith("/1") else 0)


def test_all_questions_come_once_before_any_comes_again(rollout):
    def of_step(step, count):
        return list(plan_of(replace(rollout.options, batch_size=count), list(rollout.by_id["train"]), step).questions)

    rounds = [of_step(step, 5) for step in range(4)]
    assert all(sorted(ids) == [f"q{n}" for n in range(5)] for ids in rounds)
    assert len({tuple(ids) for ids in rounds}) > 1
    assert of_step(0, 3) == rounds[0][:3]
    assert of_step(1, 3)[:2] == rounds[0][3:]  # and then the next round's, none of them twice
    assert len(set(of_step(1, 3))) == len(of_step(1, 3))


def test_what_the_engine_gave_up_on_is_told_and_played_again(rollout, tmp_path):
    plan = first_plan(rollout)
    real = rollout.engine.generate

    async def away(request):
        raise EngineError("no vLLM server answered in 300 s (status 503)")

    rollout.engine.generate = away
    told = r"000000: no vLLM server answered in 300 s .* start it, then run the same command again to resume"
    with refused(told):
        asyncio.run(play_plan(rollout, tmp_path, plan, "w"))
    assert Played(tmp_path, plan).missing() == list(plan.questions)
    rollout.engine.generate = real
    asyncio.run(play_plan(rollout, tmp_path, plan, "w"))
    assert {episode.stop for episode in Played(tmp_path, plan).gathered()} == {"answer"}


def test_a_plan_goes_on_where_a_killed_worker_stopped(rollout, tmp_path):
    folder, plan = tmp_path / "episodes" / "000000", first_plan(rollout)
    done, half, torn = plan.questions
    claims = Claims(folder / "claims-v000000", "dead")
    assert all(claims.take(name) for name in plan.questions)
    written = [f"{done}/0", f"{done}/1", f"{torn}/0"]  # of the last group only one line
    append_episodes(
        folder / "dead.jsonl", [replace(EPISODE, id=name, question_id=name.split("/")[0]) for name in written]
    )
    asyncio.run(play_plan(rollout, tmp_path, plan, "w", poll=0.01, make_claims=partial(Claims, lease=0.1)))
    assert {asked.split("/")[0] for asked in rollout.engine.asked} == {half, torn}
    episodes = Played(tmp_path, plan).gathered()
    assert len(episodes) == len({e.id for e in episodes}) == 6
    assert {e.adapter for e in episodes if e.question_id == torn} == {"run-v000000"}


def test_a_worker_that_slept_does_not_write_what_another_played(rollout, tmp_path):
    folder = tmp_path / "episodes" / "000000"
    real = rollout.play_group

    async def slow(plan, view, name):
        episodes = await real(plan, view, name)
        path = folder / "claims-v000000" / name
        if path.read_text() == "w":  # while it played, its claims were taken over
            path.write_text("other")
            append_episodes(folder / "other.jsonl", episodes)
        return episodes

    rollout.play_group = slow
    asyncio.run(play_plan(rollout, tmp_path, first_plan(rollout), "w"))
    assert not (folder / "w.jsonl").exists()
    assert len(Played(tmp_path, first_plan(rollout)).gathered()) == 6


# Questions without a reference answer


def test_without_a_reference_there_is_no_similarity(embedder):
    episodes = [replace(EPISODE, answer=answer) for answer in ("...", "A correct sentence.")]
    silent = replace(QUESTION, answer=" ")
    assert get_answer_similarity(episodes, [silent] * 2, embedder) == [None, None]
    assert get_token_f1(episodes, [silent, QUESTION]) == [None, 0.0]
    first, second = get_answer_similarity(episodes, [silent, replace(QUESTION, answer="A correct sentence.")], embedder)
    assert (first, second) == (None, pytest.approx(1, abs=1e-3))


def test_a_step_played_by_hand_leaves_its_plan_and_mixes_with_no_other(rollout, tmp_path):
    plan = first_plan(rollout)
    keep_plan(tmp_path, plan)
    keep_plan(tmp_path, plan)
    assert open_plans(tmp_path) == [plan]
    with refused(r"000000.json asks for other episodes than these options; give --follow"):
        keep_plan(tmp_path, replace(plan, seed=1))


def not_a_number(episodes, questions):
    return [float("nan")] * len(episodes)


def texts(episodes, questions):
    """Ids of chunks have none."""
    return [float(any(hit.text for search in episode.searches for hit in search.hits)) for episode in episodes]


@pytest.mark.parametrize(("broken", "says"), [(not_a_number, "gave nan"), (texts, "raised AttributeError")])
def test_a_broken_reward_stops_the_run_before_anything_is_played(rollout, broken, says):
    with refused(f"reward 'mine' {says}"):
        Rollout(rollout.options, rollout.engine, rollout.protocol, rollout.searcher, {"mine": broken}, rollout.by_id)
    assert rollout.engine.asked == []


def test_passages_that_the_store_has_lost_are_counted(rollout, tmp_path, capsys):
    store = plain_store(tmp_path / "s", [Document("a", "Gout", "Rest and ice.")])
    asked = [replace(QUESTION, id=name, relevant_chunk_ids=ids) for name, ids in (("q", ("a#0",)), ("lost", ("b#0",)))]
    by_id, searcher = {"train": {each.id: each for each in asked}}, Searcher(lambda: store, AgentSettings())
    Rollout(rollout.options, rollout.engine, rollout.protocol, searcher, {"format": get_format_reward}, by_id)
    assert f"{store.path} lacks what answers 1 of 2 questions, such as lost (b#0)" in capsys.readouterr().out
