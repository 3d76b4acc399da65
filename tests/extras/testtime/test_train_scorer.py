"""The command end to end without a model: what it learns and says, and what it refuses.

Q-values of a tiny tree, pairs and accuracies by hand; and that a cut episode is what the tree search judges.
"""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from forage.agent.episode import Search, Turn, append_episodes
from forage.agent.protocol import write_answer, write_call
from forage.data.records import read_questions
from forage.extras.testtime import train_scorer
from forage.extras.testtime.preference import Preference
from forage.extras.testtime.train_scorer import (
    Options,
    cut_after,
    main,
    pairs_of,
    siblings_of,
)
from tests.factories import EPISODE
from tests.rated_samples import samples_of
from tests.refusals import refused
from tests.scripted_engine import run
from tests.word_embedder import WordEmbedder


def test_pairs_by_hand():
    better, worse, apart = pairs_of(np.array([0.9, 0.5, 0.47]), 4)
    assert list(zip(better.tolist(), worse.tolist(), strict=True)) == [(4, 5), (4, 6)]
    assert apart == pytest.approx([0.4, 0.43])


def episode(*turns, prompt=(9,), found=(8,)):
    """One whose turns are these tokens; what each finds is one token."""
    ids, places = list(prompt), []
    for number, turn in enumerate(turns):
        places.append(Turn(len(ids), len(ids) + len(turn)))
        ids += [*turn, *(found if number + 1 < len(turns) else ())]
    length = len(ids)
    searches = tuple(Search(number, "q", ("a",)) for number in range(len(turns) - 1))
    return replace(
        EPISODE, ids=tuple(ids), mask=(0,) * length, logprobs=(0.0,) * length, turns=tuple(places), searches=searches
    )


def test_a_tree_by_hand():
    # Two share the turn (1, 2), of which one searched once more; the third began otherwise; the fourth did not search.
    tree = [episode((1, 2), (3,)), episode((1, 2), (4,), (5,)), episode((1, 3), (3,)), episode((6,))]
    finished, first, second = siblings_of(tree, np.array([0.2, 0.6, 1, 0]))
    assert (list(finished[0]), finished[1].tolist()) == (tree, [0.2, 0.6, 1, 0])
    assert [e.ids for e in first[0]] == [(9, 1, 2, 8), (9, 1, 3, 8)]
    assert first[1] == pytest.approx([0.4, 1])
    assert ([e.ids for e in second[0]], second[1].tolist()) == ([(9, 1, 2, 8, 4, 8)], [0.6])


def test_a_cut_episode_is_what_was_there_then(tiny_protocol):
    """A builder's episode so far, and the finished one cut there, show the same."""
    states = []

    async def watched(agent, question, seed):
        builder = agent.begin(question, f"{question.id}/0")
        while not builder.stop:
            await agent.play_turn(builder, seed)
            states.append(builder.so_far(agent.protocol))
        return agent.finish(builder)

    def say(name, turn, text):
        return write_call("gout") if turn < 2 else write_answer("rest")

    whole, _ = run(watched, tiny_protocol, say, {"gout": {"a#0": "Rest."}})
    for number in (1, 2):
        cut = cut_after(whole, number)
        assert replace(states[number - 1], seconds={}, transcript="") == replace(cut, seconds={})
        assert (cut.stop, cut.answer, len(cut.searches)) == ("search", "", number)
    assert states[2].ids == whole.ids


@pytest.fixture(scope="module")
def episodes(tiny, tiny_protocol):
    """Four samples of each of the six training questions."""
    questions = read_questions(tiny / "data" / "train.jsonl")
    return [episode for question in questions for episode in samples_of(question, tiny_protocol)]


@pytest.fixture
def options(tiny, tmp_path, episodes, monkeypatch):
    monkeypatch.setattr(train_scorer, "open_embedder", lambda manifest: WordEmbedder())
    append_episodes(tmp_path / "samples" / "a.jsonl", episodes)
    return Options((tmp_path / "samples",), tiny / "data", tiny / "policy", tmp_path / "scorer", held_out=0.3)


def manifest_in(folder):
    return json.loads((folder / "scorer.json").read_text())


def test_it_learns_what_is_better_and_says_how_often_it_is_right(options, tiny_protocol, tiny, capsys):
    main(options)
    manifest = manifest_in(options.out)
    assert manifest["questions"] == 4
    assert (manifest["embedder"], manifest["options"]["seed"]) == ("words", 0)
    assert set(manifest["accuracy"]) == {"finished", "going on"}
    assert manifest["accuracy"]["finished"]["learned"] > 0.7
    assert manifest["accuracy"]["going on"]["learned"] == 1  # what was found tells the two queries apart
    assert "right on held-out pairs, finished: learned " in capsys.readouterr().out
    scorer = Preference.load(options.out, WordEmbedder())
    held_out = read_questions(tiny / "data" / "eval.jsonl")[0]
    scores = scorer(tiny_protocol, held_out, samples_of(held_out, tiny_protocol))
    assert max(range(4), key=lambda n: scores[n]) == 0
    assert min(range(4), key=lambda n: scores[n]) == 1
    before = {path.name: path.read_bytes() for path in options.out.iterdir()}
    main(options)  # the same again
    assert {path.name: path.read_bytes() for path in options.out.iterdir()} == before


def test_held_out_questions_are_refused(options, tiny, tiny_protocol, tmp_path):
    held_out = read_questions(tiny / "data" / "eval.jsonl")[0]
    append_episodes(tmp_path / "eval.jsonl", samples_of(held_out, tiny_protocol))
    told = r"eval.jsonl: 1 of its questions are not in .*train.jsonl, such as q6; .*--split train plays them"
    with refused(told):
        main(replace(options, files=(tmp_path / "eval.jsonl",)))
    assert not options.out.exists()


def test_other_questions_under_the_same_ids_are_refused(options, tiny, tmp_path):
    """As after the data was made again; other cases and marks are the same question."""
    data = shutil.copytree(tiny / "data", tmp_path / "data")
    text = (data / "train.jsonl").read_text()
    (data / "train.jsonl").write_text(text.replace("What mends disease 3?", "what mends disease 3"))
    main(replace(options, data=data))
    (data / "train.jsonl").write_text(text.replace("What mends disease 3?", "Whence disease 3?"))
    with refused(r"4 of its episodes answer another question .* under the id q3; give the --data"):
        main(replace(options, data=data, out=tmp_path / "other"))
