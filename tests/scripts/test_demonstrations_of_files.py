"""--demonstrations of sft_train.py: nothing held out, malformed or foreign is learnt from."""

from dataclasses import replace

import pytest

import sft_train
from forage.agent.episode import append_episodes, read_episodes
from forage.agent.options import AgentSettings
from forage.data.records import read_questions
from forage.files import write_jsonl
from tests.refusals import refused
from tests.tiny import teach
from tests.tiny_training import tiny_options, tiny_sft, train


@pytest.fixture(scope="module")
def taught(tiny):
    """The teacher's episodes, by question: q0 to q5 are trained on, q6 and q7 held out."""
    questions = [q for name in ("train", "eval") for q in read_questions(tiny / "data" / f"{name}.jsonl")]
    episodes = {episode.question_id: episode for episode in teach(tiny, questions)}
    assert list(episodes) == [f"q{n}" for n in range(8)]
    return episodes


def imitate(tiny, folder, episodes, **more):
    """The demonstrations that sft_train.py learns from, of a file of episodes."""
    append_episodes(folder / "given.jsonl", episodes)
    given = {"num_demonstrations": 0, "demonstrations": (folder / "given.jsonl",)}
    sft_train.main(tiny_sft(tiny, folder / "warm", **given, **more))
    return [episode.id for episode in read_episodes(folder / "warm" / "demonstrations.jsonl")]


def test_held_out_questions_are_refused_under_any_id(tiny, taught, tmp_path):
    """As in a file that was made from another data set: the words of the prompt tell."""
    renamed = replace(taught["q7"], id="b1/0", question_id="b1")
    given = [taught["q0"], taught["q1"], taught["q6"], renamed]
    with refused(r"given.jsonl: 2 of its 4 episodes answer questions of eval.jsonl, such as q6"):
        imitate(tiny, tmp_path, given)
    assert not (tmp_path / "warm" / "demonstrations.jsonl").exists()


def test_malformed_episodes_are_left_out_and_counted(tiny, taught, tmp_path, capsys):
    good = [taught[f"q{n}"] for n in range(4)]
    turns = tuple(replace(turn, faults=("bad_json",)) for turn in taught["q4"].turns)
    bad = [replace(taught["q4"], turns=turns), replace(taught["q5"], stop="turns")]
    assert imitate(tiny, tmp_path, [*good, *bad]) == [f"q{n}/0" for n in range(4)]
    printed = capsys.readouterr().out
    assert "given.jsonl: left out 2 malformed episodes (1 with bad_json, 1 ended by turns)" in printed
    with refused(r"all of its episodes are malformed \(1 with bad_json, 1 ended by turns\)"):
        imitate(tiny, tmp_path / "none", bad)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"ids": (511, 512)}, "has token ids that this policy's tokenizer lacks"),
        ({"ids": (5, 6)}, "says something else in this policy's tokens"),
        ({"ids": (5, 6), "transcript": ""}, "does not begin with this policy's prompt"),
        ({}, "marks tokens outside its turns as the policy's own"),  # the search's result
    ],
)
def test_episodes_of_another_tokenizer_or_mask_are_refused(tiny, taught, tmp_path, change, says):
    count = len(change.get("ids", taught["q1"].ids))
    wrong = replace(taught["q1"], mask=(1,) * count, logprobs=(0.0,) * count, **change)
    with refused(rf"given.jsonl: episode q1/0 {says}"):
        imitate(tiny, tmp_path, [taught["q0"], wrong])


def test_episodes_of_other_settings_are_refused_and_the_advice_works(tiny, taught, tmp_path):
    wide = teach(tiny, read_questions(tiny / "data" / "train.jsonl"), AgentSettings(mode="sparse", k=5))
    with refused(r"episode q0/0 needs --k 5, not 3; give that, or play it again"):
        imitate(tiny, tmp_path, wide)
    assert len(imitate(tiny, tmp_path / "more", wide, k=5)) == 6


def test_a_question_on_both_sides_of_the_split_is_refused(tiny, tmp_path):
    """By its words: collections have their own ids on each side."""
    train_, held_out = (read_questions(tiny / "data" / f"{name}.jsonl") for name in ("train", "eval"))
    data = tmp_path / "data"
    write_jsonl(data / "train.jsonl", [*train_, replace(held_out[0], id="t9", question="what mends Disease 6")])
    write_jsonl(data / "eval.jsonl", held_out)
    (data / "store").symlink_to(tiny / "data" / "store")
    says = r"1 questions of train.jsonl are in eval.jsonl too, such as t9 \('what mends Disease 6'\); make the data"
    with refused(says):
        sft_train.main(tiny_sft(tiny, tmp_path / "warm", data=data))
    with refused(says):
        train(tiny_options(tiny, tmp_path / "run", data=data))
