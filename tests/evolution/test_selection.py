"""Which episodes are kept: by hand, and from an evaluation of training questions."""

from dataclasses import replace

import pytest

from forage.agent.episode import read_episodes
from forage.agent.options import AgentSettings, SearchOptions
from forage.agent.vetting import Vetting
from forage.data.records import read_questions
from forage.errors import UserError
from forage.evaluation.outcomes import Outcome, OutcomeLog
from forage.evaluation.strategies.self_consistency import fused
from forage.evolution.selection import Options, best, is_fit, main
from forage.files import write_jsonl
from tests.rated_samples import samples_of
from tests.word_embedder import WordEmbedder


def test_the_best_fit_candidate_that_beats_the_first_sample_by_hand():
    fit = [False, True, True, True]
    assert best(0.5, [0.9, 0.6, 0.7, 0.7], fit) == 2  # the first of equal ones; the very best is not fit
    assert best(0.7, [0.9, 0.6, 0.7, 0.7], fit) is None  # as good as the first sample is not better
    assert best(0.7 - 1e-9, [0.9, 0.6, 0.7, 0.7], fit) is None  # nor is what rounding makes of it
    assert best(0.8, [0.9, 0.6, 0.7, 0.7], fit) is None
    assert best(0.0, [0.9], [False]) is None
    assert best(0.0, [], []) is None


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
    assert not is_fit(fused(lost, [lost, right]), q0, vetting)


@pytest.fixture
def options(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("forage.evolution.selection.open_embedder", lambda card: WordEmbedder())
    return Options(
        tiny / "data", tiny / "policy", tmp_path / "played", out=tmp_path / "kept.jsonl",
        search=SearchOptions(mode="sparse"),
    )  # fmt: skip


def play(options, tried, question, first, order):
    """An evaluation's record of a question: the first sample, and the search's candidates."""
    for system, samples in (("single", [first]), (options.system, order)):
        log = OutcomeLog(options.played, f"policy/{system}")
        episodes = tuple(tried[number] for number in samples)
        log.append(Outcome(episodes[-1], episodes), 1.0, 1.0)


def test_of_each_question_the_best_is_kept(options, questions, tiny_protocol, capsys):
    """Sample 0 is right in all, 1 in nothing, 2 found and answered badly, 3 answered well and found nothing."""
    for name, first, order in (
        ("q2", 1, (1, 2, 0)),  # the best is right in all
        ("q0", 0, (0, 1, 2)),  # so is the first sample
        ("q1", 1, (1, 3)),  # what is better than the first sample has found nothing
        ("q3", 1, (1, 2)),  # found, so better than nothing, however badly answered
    ):
        play(options, samples_of(questions[name], tiny_protocol), questions[name], first, order)
    main(options)
    kept = list(read_episodes(options.out))
    assert [episode.id for episode in kept] == ["q2/0", "q3/2"]  # in the order of train.jsonl
    assert kept[0].rewards == {"mrr": 1.0, "answer_similarity": pytest.approx(1.0), "format": 1.0}
    assert kept[0].reward == pytest.approx(1.0)
    counted = "of 4 questions, 2 kept, 1 no better than the first sample, 1 without a fit episode"
    assert counted in capsys.readouterr().out


def test_weights_decide_what_is_better(options, questions, tiny_protocol):
    """By MRR alone the right answer is no better than what was found before."""
    play(options, samples_of(questions["q0"], tiny_protocol), questions["q0"], 2, (2, 0))
    main(options)
    assert [episode.id for episode in read_episodes(options.out)] == ["q0/0"]
    with pytest.raises(UserError, match=r"no episode .*: of 1 questions, 0 kept, 1 no better than the first"):
        main(replace(options, weights=(1.0, 0.0, 0.0), out=options.out.with_name("other.jsonl")))
    with pytest.raises(UserError, match=r"--weights 1 2 must be 3 numbers"):
        main(replace(options, weights=(1.0, 2.0)))


def test_where_nothing_is_kept_nothing_is_written_and_a_line_says_why(options, questions, tiny_protocol):
    play(options, samples_of(questions["q0"], tiny_protocol), questions["q0"], 0, (0, 1, 2, 3))
    told = r"no episode to learn from: of 1 questions, 0 kept, 1 no better .*; give more --questions or a higher --temp"
    with pytest.raises(UserError, match=told):
        main(options)
    assert not options.out.exists()


def test_held_out_questions_are_refused(options, questions, tiny, tiny_protocol, tmp_path):
    held_out = read_questions(tiny / "data" / "eval.jsonl")[0]
    play(options, samples_of(held_out, tiny_protocol), held_out, 1, (1, 0))
    with pytest.raises(UserError, match=r"1 of its questions are not in .*train.jsonl, such as q6"):
        main(options)
    write_jsonl(tmp_path / "data" / "train.jsonl", [*questions.values(), held_out])
    write_jsonl(tmp_path / "data" / "eval.jsonl", [held_out])
    with pytest.raises(UserError, match=r"1 questions of train.jsonl are in eval.jsonl too, such as q6"):
        main(replace(options, data=tmp_path / "data"))


def test_a_search_that_was_not_played_is_told(options, questions, tiny_protocol):
    play(options, samples_of(questions["q0"], tiny_protocol), questions["q0"], 1, (1, 0))
    with pytest.raises(UserError, match="has no question that both single and tree_search have played"):
        main(replace(options, system="tree_search"))
