"""The rounds: what is refused, which scripts run with which options, and what is not run again.

Which episodes are kept, by hand and from files of training questions; and that sft_train.py learns from them.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from evaluate import SYSTEMS
from forage.agent.episode import read_episodes
from forage.agent.options import AgentSettings
from forage.agent.vetting import Vetting
from forage.data.records import Question, read_questions
from forage.data.splits import read_held_out
from forage.engines.base import Sampling
from forage.errors import UserError
from forage.evaluation.outcomes import Outcome, OutcomeLog
from forage.extras.testtime import self_evolve
from forage.extras.testtime.self_evolve import EvolveOptions, demonstration, main, select
from forage.store.options import StoreAddress
from tests.rated_samples import samples_of
from tests.refusals import refused
from tests.scripted_engine import run, turns
from tests.word_embedder import WordEmbedder


@pytest.fixture
def options(tiny, tmp_path):
    """Two rounds of three questions each."""
    return EvolveOptions(tiny / "data", tiny / "policy", tmp_path / "out", questions=3)


@pytest.fixture
def ran(options, monkeypatch):
    """What the scripts were called with, in their places: each writes what its stage is known by."""
    calls = []

    def stage(made):
        def run(given, *more):
            calls.append(given if not more else (given, *more))
            path = made(given, *more)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

        return run

    scripts = {
        "evaluate": SimpleNamespace(main=stage(lambda given: given.output_dir / "eval.json"), SYSTEMS=SYSTEMS),
        "sft_train": SimpleNamespace(main=stage(lambda given: given.output_dir / "adapters" / "v000000")),
    }
    monkeypatch.setattr(self_evolve, "importlib", SimpleNamespace(import_module=scripts.__getitem__))
    monkeypatch.setattr(self_evolve.train_scorer, "main", stage(lambda given: given.out / "scorer.json"))
    monkeypatch.setattr(self_evolve, "select", stage(lambda *given: given[-1]))
    return calls


def test_the_rounds_in_their_order(options, ran):
    options = replace(options, sampling=Sampling(temperature=1.0), seed=4)
    main(options)
    first, second = options.round(1), options.round(2)
    play, scorer, kept, trained, again, scorer_2, _, trained_2, measured = ran
    assert (play.policy, play.systems) == ((f"policy={options.policy}",), ("single", "best_of:8"))
    assert (play.split, play.eval_questions, play.skip_questions, play.scorer) == ("train", 3, 0, None)
    assert (play.sampling.temperature, play.seed) == (1.0, 4)
    played = first / "played" / "episodes" / "policy"
    assert (scorer.files, scorer.out, scorer.seed) == ((played / "best_of_8",), first / "scorer", 4)
    assert (kept[0].episodes, kept[1].episodes) == (played / "best_of_8", played / "single")
    assert (trained.policy, trained.output_dir) == (options.policy, first / "policy")
    assert (again.policy, again.skip_questions, again.scorer) == ((f"policy={first / 'policy'}",), 3, first / "scorer")
    assert scorer_2.files == (played / "best_of_8", second / "played" / "episodes" / "policy" / "tree_learned")
    assert trained_2.demonstrations == (first / "kept.jsonl", second / "kept.jsonl")
    policies = {"round_0": options.policy, "round_1": trained.output_dir, "round_2": second / "policy"}
    assert measured.policy == tuple(f"{name}={path}" for name, path in policies.items())
    assert measured.split == "eval"


def test_each_stage_runs_once_and_more_rounds_go_on(options, ran, monkeypatch):
    real, fails = self_evolve.select, iter([True])

    def failing(*given):
        if next(fails, False):
            raise UserError("nothing is better")
        real(*given)

    monkeypatch.setattr(self_evolve, "select", failing)
    with refused("nothing is better"):
        main(replace(options, rounds=1))
    assert len(ran) == 2
    main(replace(options, rounds=1))
    main(options)
    assert len(ran) == 4 + 1 + 4 + 1
    main(options)  # all is there, and measured again without playing
    assert len(ran) == 11


def test_too_few_questions_are_told_before_anything_is_written(options, ran):
    with refused("need 8 training questions"):
        main(replace(options, questions=4))
    assert not options.output_dir.exists()
    assert ran == []


@pytest.fixture(scope="module")
def questions(tiny):
    return {question.id: question for question in read_questions(tiny / "data" / "train.jsonl")}


@pytest.fixture
def logs(tmp_path, monkeypatch):
    """Logs of the search and of `single`."""
    monkeypatch.setattr("forage.extras.testtime.self_evolve.open_embedder", lambda manifest: WordEmbedder())
    return OutcomeLog(tmp_path, "policy/best_of:8"), OutcomeLog(tmp_path, "policy/single")


def play(logs, tried, first, order):
    """Record what a question's first sample was, and the search's candidates."""
    search, single = logs
    single.append("a.jsonl", Outcome(tried[first], (tried[first],)))
    search.append("a.jsonl", Outcome(tried[order[0]], tuple(tried[number] for number in order)))


def kept_of(logs, tiny):
    out = logs[0].folder / "kept.jsonl"
    select(*logs, tiny / "data", tiny / "policy", StoreAddress(), out)
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
    assert Vetting(tiny_protocol, AgentSettings(), read_held_out(tiny / "data")).read(tmp_path / "kept.jsonl") == kept
    assert "2 of 4 questions have an episode that is better" in capsys.readouterr().out


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
