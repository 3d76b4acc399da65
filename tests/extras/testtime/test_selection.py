"""Which episodes are kept, by hand and from files of training questions; and that sft_train.py learns from them."""

from dataclasses import replace

import pytest

from forage.agent.episode import read_episodes
from forage.agent.options import AgentSettings
from forage.agent.vetting import Vetting
from forage.data.records import Question, read_questions
from forage.errors import UserError
from forage.evaluation.outcomes import Outcome, OutcomeLog
from forage.extras.testtime.self_evolve import demonstration, is_fit, select
from forage.store.options import StorePlace
from tests.rated_samples import samples_of
from tests.scripted_engine import run, turns
from tests.word_embedder import WordEmbedder


@pytest.fixture(scope="module")
def questions(tiny):
    return {question.id: question for question in read_questions(tiny / "data" / "train.jsonl")}


def test_what_is_fit_to_learn_from(tiny, tiny_protocol, questions):
    q0 = questions["q0"]
    vetting = Vetting.over(tiny / "data", tiny_protocol, AgentSettings())
    right, lost, found, _ = samples_of(q0, tiny_protocol)
    assert is_fit(right, q0, vetting)
    assert is_fit(found, q0, vetting)  # what it answered is for the rewards to say
    assert not is_fit(lost, q0, vetting)  # it found nothing
    assert not is_fit(right, questions["q1"], vetting)  # nor did this one, for that question
    assert not is_fit(replace(right, stop="turns"), q0, vetting)  # it did not finish
    [first, *others] = right.turns
    assert not is_fit(replace(right, turns=(replace(first, faults=("bad_json",)), *others)), q0, vetting)


@pytest.fixture
def logs(tmp_path, monkeypatch):
    """Logs of the search and of `single`."""
    monkeypatch.setattr("forage.extras.testtime.self_evolve.open_embedder", lambda card: WordEmbedder())
    return OutcomeLog(tmp_path, "policy/best_of:8"), OutcomeLog(tmp_path, "policy/single")


def play(logs, tried, first, order):
    """Record what a question's first sample was, and the search's candidates."""
    search, single = logs
    single.append("a.jsonl", Outcome(tried[first], (tried[first],)))
    search.append("a.jsonl", Outcome(tried[order[0]], tuple(tried[number] for number in order)))


def kept_of(logs, tiny):
    out = logs[0].folder / "kept.jsonl"
    select(*logs, tiny / "data", tiny / "policy", StorePlace(), out)
    return out


def test_of_each_question_the_best_is_kept(logs, questions, tiny, tiny_protocol, tmp_path, capsys):
    """Sample 0 is right in all, 1 in nothing, 2 found and answered badly, 3 answered well and found nothing."""
    for name, first, order in (
        ("q2", 1, (1, 2, 0, 0)),  # the best is right in all
        ("q0", 0, (0, 1, 2)),  # so is the first sample
        ("q1", 1, (1, 3)),  # what is better than the first sample has found nothing
        ("q3", 1, (1, 2)),  # found, so better than nothing, however badly answered
    ):
        play(logs, samples_of(questions[name], tiny_protocol), first, order)
    kept = list(read_episodes(kept_of(logs, tiny)))
    assert [episode.id for episode in kept] == ["q2/0", "q3/2"]  # in the order of train.jsonl
    assert kept[0].rewards == {"mrr": 1.0, "answer_similarity": pytest.approx(1.0), "format": 1.0}
    assert kept[0].reward == pytest.approx(1.0)
    assert Vetting.over(tiny / "data", tiny_protocol, AgentSettings()).read(tmp_path / "kept.jsonl") == kept
    assert "2 of 4 questions have an episode that is better" in capsys.readouterr().out


def test_a_search_without_gain_is_told(logs, questions, tiny, tiny_protocol):
    play(logs, samples_of(questions["q0"], tiny_protocol), 0, (0, 1))
    with pytest.raises(UserError, match=r"0 of 1 questions have an episode that is better .*; play more questions"):
        kept_of(logs, tiny)


GOUT = Question("q1", "What causes gout?", "uric acid", "causes", "gout", ("d",), ("right#0",))


def played(protocol, asked=""):
    async def plain(agent, question, seed):
        return await agent.play(question, 0, seed, asked=asked)

    return run(plain, protocol, turns({"0": ("gout", "acid")}), {"gout": {"right#0": "Uric acid."}}, GOUT)[0]


def test_an_altered_prompt_becomes_the_plain_one(tiny_protocol):
    plain, revised = played(tiny_protocol), played(tiny_protocol, f"{GOUT.question} An earlier answer was: rain")
    assert "earlier answer" in revised.transcript
    told = demonstration(revised, GOUT, tiny_protocol)
    assert (told.ids, told.mask, told.turns) == (plain.ids, plain.mask, plain.turns)
    assert (told.searches, told.answer, told.transcript) == (plain.searches, plain.answer, plain.transcript)
    assert set(told.logprobs) == {0.0}
    assert demonstration(plain, GOUT, tiny_protocol) is plain
