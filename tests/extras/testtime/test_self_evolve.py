"""The rounds: what is refused, which scripts run with which options, and what is not run again."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from evaluate import SYSTEMS
from forage.engines.base import Sampling
from forage.errors import UserError
from forage.extras.testtime import self_evolve
from forage.extras.testtime.self_evolve import EvolveOptions, main


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


def test_the_rounds_in_their_order(options, ran, capsys):
    options = replace(options, sampling=Sampling(temperature=1.0), seed=4, max_steps=7, learning_rate=0.02)
    main(options)
    out, first, second = options.output_dir, options.round(1), options.round(2)
    play, scorer, kept, trained, again, scorer_2, kept_2, trained_2, measured = ran
    assert (play.policy, play.systems) == ((f"policy={options.policy}",), ("single", "best_of:8"))
    assert (play.split, play.eval_questions, play.skip_questions, play.scorer) == ("train", 3, 0, None)
    assert (play.sampling.temperature, play.seed) == (1.0, 4)
    played = first / "played" / "episodes" / "policy"
    assert (scorer.files, scorer.out, scorer.seed) == ((played / "best_of_8",), first / "scorer", 4)
    assert (kept[0].episodes, kept[1].episodes) == (played / "best_of_8", played / "single")
    assert (trained.policy, trained.output_dir, trained.keep) == (options.policy, first / "policy", "last")
    assert (trained.demonstrations, trained.max_steps) == ((first / "kept.jsonl",), 7)
    assert (trained.optimizer.learning_rate, trained.num_demonstrations) == (0.02, 0)
    assert (again.policy, again.systems) == ((f"policy={first / 'policy'}",), ("single", "tree:learned"))
    assert (again.skip_questions, again.scorer) == (3, first / "scorer")
    assert scorer_2.files == (played / "best_of_8", second / "played" / "episodes" / "policy" / "tree_learned")
    assert kept_2[-1] == second / "kept.jsonl"
    assert trained_2.demonstrations == (first / "kept.jsonl", second / "kept.jsonl")
    policies = zip(
        ("round_0", "round_1", "round_2"), (options.policy, trained.output_dir, second / "policy"), strict=True
    )
    assert measured.policy == tuple(f"{name}={path}" for name, path in policies)
    assert (measured.output_dir, measured.split, measured.eval_questions) == (out / "measured", "eval", 200)
    assert "round 2, training the policy\n" in capsys.readouterr().out


def test_each_stage_runs_once_and_more_rounds_go_on(options, ran, monkeypatch):
    real, fails = self_evolve.select, iter([True])

    def failing(*given):
        if next(fails, False):
            raise UserError("nothing is better")
        real(*given)

    monkeypatch.setattr(self_evolve, "select", failing)
    with pytest.raises(UserError, match="nothing is better"):
        main(replace(options, rounds=1))
    assert len(ran) == 2
    main(replace(options, rounds=1))
    main(options)
    assert len(ran) == 4 + 1 + 4 + 1
    main(options)  # all is there, and measured again without playing
    assert len(ran) == 11


def test_other_options_do_not_go_on_with_an_evolution(options, ran):
    main(options)
    with pytest.raises(UserError, match=r"was begun with --questions 3, not 2"):
        main(replace(options, questions=2))
    main(replace(options, concurrency=3))
    with self_evolve.filling_folder(options.output_dir), pytest.raises(UserError, match="is being written by another"):
        main(options)


def test_too_few_questions_are_told_before_anything_is_written(options, ran):
    with pytest.raises(UserError, match="need 8 training questions"):
        main(replace(options, questions=4))
    assert not options.output_dir.exists()
    assert ran == []
