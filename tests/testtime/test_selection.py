"""Which episodes are kept, by hand and from files of training questions; and that sft_train.py learns from them."""

from dataclasses import replace

import pytest

from forage.agent.episode import append_episodes, read_episodes
from forage.agent.options import AgentSettings, SearchOptions
from forage.agent.vetting import Vetting
from forage.data.records import Question, read_questions
from forage.errors import UserError
from forage.files import write_jsonl
from forage.sft.options import SFTOptions
from forage.testtime.selection import Options, best, demonstration, is_fit, main
from tests.options import with_options
from tests.rated_samples import samples_of
from tests.scripted_engine import run, turns
from tests.word_embedder import WordEmbedder


def test_the_best_fit_candidate_by_hand():
    fit = [False, True, True, True]
    assert best([0.9, 0.6, 0.7, 0.7], fit, 0.5) == 2  # the first of equal ones; the very best is not fit
    assert best([0.9, 0.6, 0.7, 0.7], fit, 0.7 + 1e-6) is None
    assert best([0.9], [False], 0.0) is None
    assert best([], [], 0.0) is None


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
def options(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr("forage.testtime.selection.open_embedder", lambda card: WordEmbedder())
    return Options(
        (tmp_path / "search",), tmp_path / "single", tiny / "data", tiny / "policy", tmp_path / "kept.jsonl",
        search=SearchOptions(mode="sparse"),
    )  # fmt: skip


def play(options, tried, first, order):
    """Record what a question's first sample was, and the search's candidates."""
    append_episodes(options.beat / "a.jsonl", [tried[first]])
    append_episodes(options.files[0] / "a.jsonl", [tried[number] for number in order])


def test_of_each_question_the_best_is_kept(options, questions, tiny_protocol, capsys):
    """Sample 0 is right in all, 1 in nothing, 2 found and answered badly, 3 answered well and found nothing."""
    for name, first, order in (
        ("q2", 1, (1, 2, 0)),  # the best is right in all
        ("q0", 0, (0, 1, 2)),  # so is the first sample
        ("q1", 1, (1, 3)),  # what is better than the first sample has found nothing
        ("q3", 1, (1, 2)),  # found, so better than nothing, however badly answered
    ):
        play(options, samples_of(questions[name], tiny_protocol), first, order)
    main(options)
    kept = list(read_episodes(options.out))
    assert [episode.id for episode in kept] == ["q2/0", "q3/2"]  # in the order of train.jsonl
    assert kept[0].rewards == {"mrr": 1.0, "answer_similarity": pytest.approx(1.0), "format": 1.0}
    assert kept[0].reward == pytest.approx(1.0)
    counted = "of 4 questions, 2 kept, 1 not good enough, 1 without a fit episode"
    assert counted in capsys.readouterr().out


def test_held_out_questions_are_refused(options, questions, tiny, tiny_protocol, tmp_path):
    held_out = read_questions(tiny / "data" / "eval.jsonl")[0]
    play(options, samples_of(held_out, tiny_protocol), 1, (1, 0))
    with pytest.raises(UserError, match=r"1 of its questions are not in .*train.jsonl, such as q6"):
        main(options)
    write_jsonl(tmp_path / "data" / "train.jsonl", [*questions.values(), held_out])
    write_jsonl(tmp_path / "data" / "eval.jsonl", [held_out])
    with pytest.raises(UserError, match=r"1 questions of train.jsonl are in eval.jsonl too, such as q6"):
        main(replace(options, data=tmp_path / "data"))


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


def test_sft_train_learns_from_what_is_written(options, questions, tiny, tiny_protocol, tmp_path):
    """A tiny policy, all the way; forced tokens have mask 0 and stay so."""
    import sft_train

    for name in ("q0", "q1", "q2"):
        play(options, samples_of(questions[name], tiny_protocol), 1, (1, 0))
    main(options)
    given = SFTOptions(
        data=tiny / "data", policy=tiny / "policy", output_dir=tmp_path / "better", num_demonstrations=0,
        demonstrations=(options.out,), max_steps=4, eval_every=2, batch_size=2, eval_share=0.3,
    )  # fmt: skip
    sft_train.main(with_options(given, learning_rate=1e-2, mode="sparse"))
    assert list(read_episodes(tmp_path / "better" / "demonstrations.jsonl")) == list(read_episodes(options.out))
    assert (tmp_path / "better" / "adapters" / "v000000").is_dir()
