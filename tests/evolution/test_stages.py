"""The plan of an evolution: which commands, in which order, and that their scripts take them."""

from dataclasses import replace
from pathlib import Path

import pytest

from forage.agent.options import SearchOptions
from forage.engines.base import Sampling
from forage.engines.options import EngineOptions
from forage.evolution.options import EvolveOptions
from forage.evolution.stages import as_flags, imitation_stages, round_stages, start_stage
from forage.optimizer import OptimizerOptions
from forage.store.options import StorePlace
from tests.pages import parsed

OPTIONS = EvolveOptions(Path("d"), Path("warm"), Path("out"), questions=50, eval_questions=20)


def commands(stages):
    return [" ".join(stage.command) for stage in stages]


def test_the_commands_of_the_rounds():
    assert commands([start_stage(OPTIONS)]) == [
        "evaluate --data d --policy round_0=warm --systems single best_of_8 --eval-questions 20 --output-dir "
        "out/round_0/measured"
    ]
    assert commands(round_stages(OPTIONS, 1)) == [
        "evaluate --data d --policy policy=warm --systems single best_of_8 --split train --eval-questions 50 "
        "--skip-questions 0 --output-dir out/round_1/played",
        "forage.evaluation.preference.train_scorer out/round_1/played/episodes/policy/best_of_8.jsonl --data d "
        "--policy warm --out out/round_1/scorer --seed 0",
        "forage.evolution.selection --data d --policy warm --played out/round_1/played --system best_of_8 --out "
        "out/round_1/kept.jsonl",
        "sft_train --data d --policy warm --output-dir out/round_1/policy --num-demonstrations 0 --demonstrations "
        "out/round_1/kept.jsonl --keep last --eval-questions 0 --seed 0 --learning-rate 0.0005",
        "evaluate --data d --policy round_1=out/round_1/policy --systems single best_of_8 learned_8 --eval-questions "
        "20 --output-dir out/round_1/measured --scorer out/round_1/scorer",
    ]
    assert commands(round_stages(OPTIONS, 2)) == [
        "evaluate --data d --policy policy=out/round_1/policy --systems single learned_tree --split train "
        "--eval-questions 50 --skip-questions 50 --output-dir out/round_2/played --scorer out/round_1/scorer",
        "forage.evaluation.preference.train_scorer out/round_1/played/episodes/policy/best_of_8.jsonl "
        "out/round_2/played/episodes/policy/learned_tree.jsonl --data d --policy warm --out out/round_2/scorer "
        "--seed 0",
        "forage.evolution.selection --data d --policy warm --played out/round_2/played --system learned_tree --out "
        "out/round_2/kept.jsonl",
        "sft_train --data d --policy warm --output-dir out/round_2/policy --num-demonstrations 0 --demonstrations "
        "out/round_1/kept.jsonl out/round_2/kept.jsonl --keep last --eval-questions 0 --seed 0 --learning-rate 0.0005",
        "evaluate --data d --policy round_2=out/round_2/policy --systems single best_of_8 learned_8 --eval-questions "
        "20 --output-dir out/round_2/measured --scorer out/round_2/scorer",
    ]
    assert commands(imitation_stages(OPTIONS, 61)) == [
        "sft_train --data d --policy warm --output-dir out/imitation_2/policy --num-demonstrations 61 "
        "--keep last --eval-questions 0 --seed 0 --learning-rate 0.0005",
        "evaluate --data d --policy imitation_2=out/imitation_2/policy --systems single best_of_8 --eval-questions 20 "
        "--output-dir out/imitation_2/measured",
    ]


def test_no_round_plays_a_question_of_another_and_none_plays_held_out_ones():
    for number in (1, 2, 3):
        play, *others = (stage.command for stage in round_stages(OPTIONS, number))
        assert play[play.index("--split") + 1] == "train"
        assert play[play.index("--skip-questions") + 1] == str((number - 1) * 50)
        learning = [command for command in others if command[0] != "evaluate"]
        assert len(learning) == 3
        assert not [word for command in learning for word in command if "measured" in word]


def test_a_search_by_one_sample_is_played_once():
    [play, *_] = round_stages(replace(OPTIONS, first_system="single"), 1)
    assert play.command[play.command.index("--systems") + 1 :][:2] == ("single", "--split")


def test_options_are_handed_on_and_every_script_takes_them():
    options = replace(
        OPTIONS, weights=(1.0, 0.5, 0.0), max_steps=7, batch_size=2, optimizer=OptimizerOptions(learning_rate=0.02),
        engine=EngineOptions(engine="local", api_key="secret"), search=SearchOptions(k=5, override_agent=True),
        place=StorePlace(store="http://h:1"), sampling=Sampling(temperature=1.0), concurrency=3, seed=4,
    )  # fmt: skip
    stages = [start_stage(options), *round_stages(options, 2), *imitation_stages(options, 9)]
    assert not [stage for stage in stages if "secret" in " ".join(stage.command)]
    for stage in stages:
        module, *arguments = stage.command
        given = parsed(module, arguments)
        assert (given.search, given.place.store) == (options.search, "http://h:1")
        if module == "evaluate":
            assert (given.engine.engine, given.sampling, given.concurrency) == ("local", options.sampling, 3)
            assert given.seed == 4
        if module == "sft_train":
            assert (given.max_steps, given.batch_size, given.optimizer) == (7, 2, options.optimizer)
            assert given.seed == 4
        if module == "forage.evolution.selection":
            assert given.weights == (1.0, 0.5, 0.0)
        if module == "forage.evaluation.preference.train_scorer":
            assert given.learning.seed == 4
    assert {stage.command[0] for stage in stages} == {
        "evaluate", "sft_train", "forage.evolution.selection", "forage.evaluation.preference.train_scorer",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("search", "flags"),
    [
        (SearchOptions(), []),
        (SearchOptions(k=5, force_search=True, title_share=False),
         ["--k", "5", "--force-search", "--no-title-share"]),
        (SearchOptions(task="Say it", tools=("a", "b")), ["--task", "Say it", "--tools", "a", "b"]),
        (SearchOptions(tools=()), ["--tools"]),
    ],
)  # fmt: skip
def test_flags_by_hand(search, flags):
    assert as_flags(search, SearchOptions()) == flags


def test_a_stage_is_finished_by_what_it_writes_last(tmp_path):
    stages = list(round_stages(replace(OPTIONS, output_dir=tmp_path), 1))
    names = [str(stage.made.relative_to(tmp_path / "round_1")) for stage in stages]
    assert names == [
        "played/eval.png", "scorer/scorer.json", "kept.jsonl", "policy/adapters/v000000", "measured/eval.png"
    ]  # fmt: skip
    assert not any(stage.finished for stage in stages)
    (tmp_path / "round_1" / "kept.jsonl").parent.mkdir()
    (tmp_path / "round_1" / "kept.jsonl").write_text("")
    assert [stage.finished for stage in stages] == [False, False, True, False, False]
