"""The command end to end without a model: what it learns and says, what it refuses, and that it resumes to the byte."""

import json
import sys
from dataclasses import replace

import pytest

from forage.agent.episode import append_episodes, read_episodes, write_episodes
from forage.cli import run_script
from forage.data.records import read_questions
from forage.errors import UserError
from forage.evaluation.preference import shards
from forage.evaluation.preference.card import read_card
from forage.evaluation.preference.features import SCALARS
from forage.evaluation.preference.model import Learning
from forage.evaluation.preference.scorer import Preference
from forage.evaluation.preference.train_scorer import Options, draw_held_out, main
from forage.evaluation.strategies.self_consistency import fused
from tests.rated_samples import samples_of
from tests.word_embedder import WordEmbedder


@pytest.fixture(scope="module")
def episodes(tiny, tiny_protocol):
    """Four samples of each of the six training questions."""
    questions = read_questions(tiny / "data" / "train.jsonl")
    return [episode for question in questions for episode in samples_of(question, tiny_protocol)]


@pytest.fixture
def embedders(monkeypatch):
    """Those that a training opened."""
    opened = []

    def opening(card):
        opened.append(WordEmbedder())
        return opened[-1]

    monkeypatch.setattr("forage.evaluation.preference.train_scorer.open_embedder", opening)
    monkeypatch.setattr("forage.evaluation.preference.train_scorer.embedder_digest", lambda name: "0123")
    monkeypatch.setattr(shards, "QUESTIONS", 2)
    return opened


@pytest.fixture
def options(tiny, tmp_path, episodes, embedders):
    append_episodes(tmp_path / "samples.jsonl", episodes)
    learning = Learning(hidden=8, rank=2, steps=200, learning_rate=0.01)
    return Options(
        (tmp_path / "samples.jsonl",), tiny / "data", tiny / "policy", tmp_path / "scorer", held_out=0.3,
        learning=learning,
    )  # fmt: skip


def parts(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_it_learns_what_is_better_and_says_how_often_it_is_right(options, embedders, tiny_protocol, tiny, capsys):
    main(options)
    card = json.loads((options.out / "scorer.json").read_text())
    assert card["learnt_from"] == {"questions": 4, "episodes": 16, "pairs": 4 * 6}
    assert card["held_out"] == {"questions": 2, "episodes": 8, "pairs": 2 * 6}
    assert (card["embedder"], card["embedder_weights"], card["dimension"]) == ("words", "0123", 16)
    assert card["rewards"] == {"answer_similarity": 1.0, "mrr": 1.0}
    assert tuple(card["scalars"]) == SCALARS
    assert card["options"]["learning"]["seed"] == 0
    assert set(card["accuracy"]) == {"finished", "going on"}
    assert card["accuracy"]["finished"]["learned"]["mean"] > 0.7
    assert card["accuracy"]["going on"]["learned"]["mean"] == 1  # what was found tells the two queries apart
    assert "right on held-out pairs" in capsys.readouterr().out
    scorer = Preference.load(options.out, WordEmbedder())
    held_out = read_questions(tiny / "data" / "eval.jsonl")[0]
    scores = scorer(tiny_protocol, held_out, samples_of(held_out, tiny_protocol))
    assert max(range(4), key=lambda n: scores[n]) == 0
    assert min(range(4), key=lambda n: scores[n]) == 1


def test_a_killed_training_goes_on_to_the_very_same_scorer(options, embedders, monkeypatch):
    main(options)
    undisturbed = parts(options.out)
    assert len(list((options.out / "features").iterdir())) == 3
    other, compute, calls = replace(options, out=options.out.with_name("killed")), shards.write, []

    def dying(path, examples):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(path)
        compute(path, examples)

    monkeypatch.setattr(shards, "write", dying)
    with pytest.raises(KeyboardInterrupt):
        main(other)
    assert not (other.out / "scorer.json").exists()
    monkeypatch.setattr(shards, "write", compute)
    main(other)
    whole = {path: content for path, content in parts(other.out).items() if path.name != "scorer.json"}
    assert whole == {path: content for path, content in undisturbed.items() if path.name != "scorer.json"}
    cards = [json.loads((o.out / "scorer.json").read_text()) for o in (options, other)]
    assert cards[0].pop("options") | {"out": ""} == cards[1].pop("options") | {"out": ""}
    assert cards[0] == cards[1]
    assert embedders[2].encoded < embedders[0].encoded / 2


def test_another_training_embeds_nothing_unless_what_is_embedded_changed(options, embedders, episodes):
    main(options)
    main(replace(options, margin=0.2, weights=(1.0, 0.0), learning=replace(options.learning, rank=0, seed=3)))
    assert embedders[1].encoded == 1  # the probe
    assert read_card(options.out).rewards == {"answer_similarity": 1.0, "mrr": 0.0}
    write_episodes(options.files[0], [replace(e, answer="Other.") if e.id == "q5/0" else e for e in episodes])
    main(options)
    assert 1 < embedders[2].encoded < embedders[0].encoded / 2


def test_each_sample_counts_once_and_only_as_it_was_played(options, episodes, tmp_path):
    failed = replace(episodes[0], id="q0/9", stop="engine")
    append_episodes(tmp_path / "again.jsonl", [*episodes, failed, fused(replace(episodes[0], id="q0/8"), episodes[:4])])
    main(replace(options, files=(*options.files, tmp_path / "again.jsonl")))
    card = read_card(options.out)
    assert card.learnt_from["episodes"] + card.held_out["episodes"] == 24


def test_without_held_out_questions_the_card_says_nothing_of_its_accuracy(options, capsys):
    main(replace(options, held_out=0.0))
    card = read_card(options.out)
    assert card.accuracy == {"finished": {}, "going on": {}}
    assert card.held_out == {"questions": 0, "episodes": 0, "pairs": 0}
    assert "no pair was held out" in capsys.readouterr().out


def test_which_questions_are_held_out_depends_on_the_seed_alone():
    names = [f"q{n}" for n in range(20)]
    drawn = {names[n] for n in draw_held_out(names, 0.2, 0)}
    assert len(drawn) == 4
    assert {names[::-1][n] for n in draw_held_out(names[::-1], 0.2, 0)} == drawn
    assert {names[n] for n in draw_held_out(names, 0.2, 1)} != drawn


def test_held_out_questions_are_refused(options, tiny, tiny_protocol, tmp_path):
    held_out = read_questions(tiny / "data" / "eval.jsonl")[0]
    append_episodes(tmp_path / "eval.jsonl", samples_of(held_out, tiny_protocol))
    told = r"eval.jsonl: 1 of its questions are not in .*train.jsonl, such as q6; .*--split train plays them"
    with pytest.raises(UserError, match=told):
        main(replace(options, files=(tmp_path / "eval.jsonl",)))
    assert not options.out.exists()


def test_tokens_of_another_tokenizer_are_refused(options, episodes):
    write_episodes(options.files[0], [replace(episode, transcript="What?") for episode in episodes])
    with pytest.raises(UserError, match=r"its tokens are not of .*policy's tokenizer; name the --policy"):
        main(options)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"files": ()}, "name one or more files"),
        ({"held_out": 1.0}, "--held-out 1 must be at least 0 and less than 1"),
        ({"margin": -0.1}, "--margin -0.1 must be at least 0"),
        ({"margin": 5.0}, "no two episodes of a question differ by --margin 5"),
        ({"weights": (1.0,)}, "--weights 1 must be 2 numbers of at least 0, not all 0"),
        ({"learning": Learning(steps=0)}, "--steps 0 must be at least 1"),
    ],
)
def test_bad_options_are_told(options, changed, told):
    with pytest.raises(UserError, match=told):
        main(replace(options, **changed))


def test_bad_files_are_told(options, tmp_path):
    with pytest.raises(UserError, match=r"none.jsonl is missing; name files of episodes"):
        main(replace(options, files=(tmp_path / "none.jsonl",)))
    (tmp_path / "broken.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match=r"broken.jsonl:1: not an episode"):
        main(replace(options, files=(tmp_path / "broken.jsonl",)))
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(UserError, match="no episode is left to learn from"):
        main(replace(options, files=(tmp_path / "empty.jsonl",)))
    with pytest.raises(UserError, match=r"--out .*policy is --policy"):
        main(replace(options, out=options.policy))
    main(options)
    [first, *_] = (options.out / "features").iterdir()
    first.write_bytes(b"x")
    with pytest.raises(UserError, match=r"safetensors is damaged .*; delete it"):
        main(options)


def test_the_command_line(options, monkeypatch, capsys):
    paths = [str(options.files[0]), "--data", str(options.data), "--policy", str(options.policy)]
    monkeypatch.setattr(sys, "argv", ["x", *paths, "--out", str(options.out), "--rank", "0", "--steps", "2"])
    run_script(main)
    assert read_card(options.out).rank == 0
    assert "use it: python evaluate.py --scorer" in capsys.readouterr().out
    assert len(list(read_episodes(options.files[0]))) == 24
