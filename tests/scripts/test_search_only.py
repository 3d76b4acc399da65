"""Policies that only search (--max-turns 1): warm start, GRPO by what the search gained, and evaluation, in a row."""

import asyncio
import json
from dataclasses import replace
from functools import partial

import pytest

import grpo_train
from forage.agent.agent import searched_for
from forage.agent.episode import read_episodes
from forage.agent.options import AgentSettings, SearchOptions
from forage.agent.protocol import CALL_OPENING
from forage.agent.rewards import get_search_gain, get_search_margin, rank_score
from forage.data.records import Document, Question, read_answerable
from forage.files import write_jsonl
from forage.optimizer import OptimizerOptions
from forage.runs.stats import read_stats
from forage.sft.options import SFTOptions
from forage.sft.teacher import TeacherOptions, demonstrate
from forage.store.document_store import DocumentStore
from forage.store.options import StoreOptions
from sft_train import main as warm_start
from tests.options import with_options
from tests.scripted_engine import Hit
from tests.tiny_training import tiny_options

ONLY_SEARCH = SearchOptions(mode="sparse", k=2, max_turns=1, max_turn_tokens=24, question_weight=1, force_search=True)
SETTINGS = AgentSettings(mode="sparse", k=2, max_turns=1, max_turn_tokens=24, question_weight=1, force_search=True)


def test_a_demonstration_of_a_search_alone(protocol):
    """The call is begun for the teacher too, and nothing follows."""
    question = Question(
        "q", "What mends gout?", "Rest, ice.", "treatment", "gout", ("d",), relevant_chunk_ids=("right#0",)
    )

    def library(queries):
        return [[Hit("right#0", "T", "Rest, ice.")] if query.endswith("gout treatment") else [] for query in queries]

    (episode,), _ = asyncio.run(demonstrate([question], library, protocol, SETTINGS, TeacherOptions(20), 1))
    prompt = protocol.prompt(question.question)
    whole = protocol.turn_ids(CALL_OPENING + 'gout treatment"}}</tool_call>')
    assert list(episode.ids) == [*prompt, *whole]
    assert sum(episode.mask) == len(whole) - len(protocol.call_opening)
    assert (episode.stop, episode.well_formed) == ("search", True)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Two types of questions, whose answers are told apart by words: five of each to train on, one held out."""
    folder, questions = tmp_path_factory.mktemp("typed"), []
    answers = {"treatment": "Rest mends disease {}, and so does ice.", "causes": "Crystals bring about disease {}."}
    documents = [
        Document(f"{kind}{n}", f"Disease {n}", text.format(n)) for kind, text in answers.items() for n in range(6)
    ]
    for document in documents:
        kind, n = document.id[:-1], document.id[-1]
        asked = f"What mends disease {n}?" if kind == "treatment" else f"Whence disease {n}?"
        questions.append(Question(document.id, asked, document.text, kind, "", (document.id,), (f"{document.id}#0",)))
    DocumentStore.build(folder / "store", documents, StoreOptions(embedder="none"))
    write_jsonl(folder / "train.jsonl", [q for q in questions if not q.id.endswith("5")])
    write_jsonl(folder / "eval.jsonl", [q for q in questions if q.id.endswith("5")])
    return folder


@pytest.fixture(scope="module")
def warm(tiny, data, tmp_path_factory):
    made = SFTOptions(
        data, tiny / "policy", tmp_path_factory.mktemp("only") / "warm", search=ONLY_SEARCH, max_steps=60,
        eval_every=20, batch_size=4, teacher=TeacherOptions(16),
        optimizer=OptimizerOptions(3e-2),
    )  # fmt: skip
    warm_start(made)
    return made.output_dir


def rewards_of_the_search(embedder, searcher):
    """As docs/training.md has it."""
    return {
        "gain": partial(get_search_gain, searcher=searcher),
        "margin": partial(get_search_margin, searcher=searcher),
    }


def test_a_step_is_rewarded_for_what_the_search_gained(tiny, data, warm, tmp_path):
    options = with_options(tiny_options(tiny, tmp_path / "run", max_steps=2, eval_every=0), policy=warm, data=data)
    options = replace(options, rollout=replace(options.rollout, search=SearchOptions()))
    grpo_train.main(options, rewards_of_the_search)
    store = DocumentStore.open(data / "store")
    questions = {question.id: question for question in read_answerable(data / "train.jsonl")}

    def score(question, text):
        """By a search of its own: rank of the first right one of the best 100."""
        ids = [hit.chunk_id for hit in store.search([text], 100, "sparse")[0]]
        return rank_score(next((r for r, c in enumerate(ids, 1) if c in question.relevant_chunk_ids), None), 100)

    episodes = [e for path in sorted((tmp_path / "run" / "episodes").glob("*/*.jsonl*")) for e in read_episodes(path)]
    assert len(episodes) == 2 * 3 * 4
    for episode in episodes:
        question = questions[episode.question_id]
        found = max((score(question, searched_for(question, s.query, 1)) for s in episode.searches), default=0.0)
        assert episode.rewards["gain"] == pytest.approx((1 + found - score(question, question.question)) / 2)
        assert 0 <= episode.rewards["margin"] <= 1
    assert [list(step.rewards) for step in read_stats(tmp_path / "run")] == [["overall", "gain", "margin"]] * 2
    assert json.loads((tmp_path / "run" / "run.json").read_text())["weights"] == {"gain": 1.0, "margin": 1.0}
    assert any(episode.searches for episode in episodes)
