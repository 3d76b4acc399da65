"""The launcher: what it refuses, what it starts and skips, and how it ends."""

import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from forage.agent.episode import write_episodes
from forage.engines.base import Sampling
from forage.engines.options import EngineOptions
from forage.errors import UserError
from forage.evaluation.outcomes import Cost, Outcome
from forage.store.options import StorePlace
from forage.testtime import self_evolve
from forage.testtime.self_evolve import EvolveOptions, as_flags, cost_of, main, stages_of
from tests.factories import EPISODE
from tests.pages import parsed

OPTIONS = EvolveOptions(Path("d"), Path("warm"), Path("out"), questions=50, eval_questions=20)
SHORT = replace(EPISODE, id="q/1", ids=(1, 2, 3, 4), mask=(0, 0, 1, 1), logprobs=(0.0,) * 4, turns=())


# The plan


def test_the_commands_of_the_rounds():
    trained = "--keep last --max-steps 100 --learning-rate 0.0005 --seed 0"
    assert [" ".join(stage.command) for stage in stages_of(OPTIONS, 1)] == [
        "evaluate --data d --policy policy=warm --systems single best_of:8 --split train --eval-questions 50 "
        "--skip-questions 0 --output-dir out/round_1/played",
        "forage.testtime.train_scorer out/round_1/played/episodes/policy/best_of_8 --data d --policy warm --out "
        "out/round_1/scorer --seed 0",
        "forage.testtime.selection out/round_1/played/episodes/policy/best_of_8 --beat "
        "out/round_1/played/episodes/policy/single --data d --policy warm --out out/round_1/kept.jsonl",
        "sft_train --data d --policy warm --output-dir out/round_1/policy --num-demonstrations 0 --demonstrations "
        f"out/round_1/kept.jsonl {trained}",
        "evaluate --data d --policy round_0=warm round_1=out/round_1/policy --systems single best_of:8 "
        "--eval-questions 20 --output-dir out/measured",
    ]
    assert [" ".join(stage.command) for stage in stages_of(OPTIONS, 2)] == [
        "evaluate --data d --policy policy=out/round_1/policy --systems single tree:learned --split train "
        "--eval-questions 50 --skip-questions 50 --output-dir out/round_2/played --scorer out/round_1/scorer",
        "forage.testtime.train_scorer out/round_1/played/episodes/policy/best_of_8 "
        "out/round_2/played/episodes/policy/tree_learned --data d --policy warm --out out/round_2/scorer --seed 0",
        "forage.testtime.selection out/round_2/played/episodes/policy/tree_learned --beat "
        "out/round_2/played/episodes/policy/single --data d --policy warm --out out/round_2/kept.jsonl",
        "sft_train --data d --policy warm --output-dir out/round_2/policy --num-demonstrations 0 --demonstrations "
        f"out/round_1/kept.jsonl out/round_2/kept.jsonl {trained}",
        "evaluate --data d --policy round_0=warm round_1=out/round_1/policy round_2=out/round_2/policy --systems "
        "single best_of:8 --eval-questions 20 --output-dir out/measured",
    ]


def test_options_are_handed_on_and_every_script_takes_them():
    options = replace(
        OPTIONS, max_steps=7, learning_rate=0.02, engine=EngineOptions(engine="local", api_key="secret"),
        place=StorePlace(store="http://h:1"), sampling=Sampling(temperature=1.0), concurrency=3, seed=4,
    )  # fmt: skip
    for stage in stages_of(options, 2):
        module, *arguments = stage.command
        assert "secret" not in arguments
        given = parsed(module, arguments)
        assert given.place.store == "http://h:1"
        if module == "evaluate":
            assert (given.engine.engine, given.sampling, given.concurrency) == ("local", options.sampling, 3)
        if module == "sft_train":
            assert (given.max_steps, given.optimizer.learning_rate) == (7, 0.02)
        if module != "forage.testtime.selection":
            assert given.seed == 4
    assert as_flags(EngineOptions(urls=("a", "b")), EngineOptions()) == ["--urls", "a", "b"]


def test_what_a_round_cost(tmp_path):
    """EPISODE has 4 tokens of the policy's, SHORT has 2. A first sample that the search did not try is paid too."""
    options = replace(OPTIONS, output_dir=tmp_path)
    for number, tried in ((1, (EPISODE, SHORT)), (2, (SHORT,))):
        for name, given in (("single", (EPISODE,)), (options.system_of(number), tried)):
            log = options.log(number, name)
            log.append("a.jsonl", Cost.of(Outcome(given[0], given), 1.0, 1.0), given)
        write_episodes(options.round(number) / "kept.jsonl", [SHORT])
    assert cost_of(options, 1) == {"system": "best_of:8", "played": 1, "kept": 1, "search_tokens": 4 + 2}
    assert cost_of(options, 2)["search_tokens"] == 2 + 4


# The launcher


@pytest.fixture
def options(tiny, tmp_path):
    """Two rounds of three questions each."""
    return EvolveOptions(tiny / "data", tiny / "policy", tmp_path / "out", questions=3)


@pytest.fixture
def stages(options, monkeypatch):
    """In the place of processes: each start writes what its stage is known by, unless it is to fail."""
    ran = Stages()
    monkeypatch.setattr(self_evolve, "subprocess", SimpleNamespace(run=ran.run))
    monkeypatch.setattr(self_evolve, "cost_of", lambda options, number: {})
    ran.known = {stage.command: stage for number in (1, 2) for stage in stages_of(options, number)}
    return ran


class Stages:
    def __init__(self):
        self.started, self.statuses, self.known = [], {}, {}

    def run(self, command, **more):
        stage = self.known[tuple(command[2:])]
        self.started.append(stage.title)
        status = self.statuses.get(stage.title, 0)
        if not status and stage.made.name != "cost.json":
            stage.made.parent.mkdir(parents=True, exist_ok=True)
            stage.made.touch()
        return subprocess.CompletedProcess(command, status)


ROUND = ("playing training questions", "training the scorer", "choosing the episodes to learn from",
         "training the policy", "measuring on held-out questions")  # fmt: skip


def titles(number):
    return [f"round {number}, {words}" for words in ROUND]


def test_the_rounds_in_their_order_each_stage_once(options, stages, capsys):
    main(replace(options, rounds=1))
    main(options)
    assert stages.started == [*titles(1), *titles(2)]
    assert "round 1, training the policy\n$ python -m sft_train --data " in capsys.readouterr().out
    main(options)  # all is there
    assert len(stages.started) == 10


def test_a_stage_that_fails_is_named_and_ends_with_its_status(options, stages, capsys):
    stages.statuses = {"round 1, training the policy": 137}
    with pytest.raises(SystemExit) as end:
        main(options)
    assert end.value.code == 137
    assert stages.started == titles(1)[:4]
    told = (
        "error: round 1, training the policy: sft_train ended with status 137, see above; re-run the same command to "
    )
    assert told in capsys.readouterr().err
    stages.statuses, stages.started = {}, []
    main(options)
    assert stages.started == [*titles(1)[3:], *titles(2)]


def test_other_options_do_not_go_on_with_an_evolution(options, stages):
    main(options)
    with pytest.raises(UserError, match=r"was begun with --questions 3, not 2"):
        main(replace(options, questions=2))
    main(replace(options, concurrency=3))
    with self_evolve.filling_folder(options.output_dir), pytest.raises(UserError, match="is being written by another"):
        main(options)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"system": "lerned"}, r"--system lerned: choose among plain_rag, "),
        ({"first_system": "tree:learned"}, r"--first-system tree:learned: there is no learned scorer yet"),
        ({"questions": 4}, r"--rounds 2 of --questions 4 need 8 training questions, and .*train.jsonl has 6 that"),
    ],
)
def test_bad_options_are_told_before_anything_is_written(options, stages, changed, told):
    with pytest.raises(UserError, match=told):
        main(replace(options, **changed))
    assert not options.output_dir.exists()
    assert stages.started == []
