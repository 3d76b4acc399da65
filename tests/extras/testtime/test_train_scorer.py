"""The command end to end without a model: what it learns and says, and what it refuses."""

import json
import shutil
from dataclasses import replace

import pytest

from forage.agent.episode import append_episodes, write_episodes
from forage.data.records import Question, read_questions
from forage.errors import UserError
from forage.extras.testtime import train_scorer
from forage.extras.testtime.preference import Preference
from forage.extras.testtime.train_scorer import Options, main, split
from tests.rated_samples import samples_of
from tests.word_embedder import WordEmbedder


@pytest.fixture(scope="module")
def episodes(tiny, tiny_protocol):
    """Four samples of each of the six training questions."""
    questions = read_questions(tiny / "data" / "train.jsonl")
    return [episode for question in questions for episode in samples_of(question, tiny_protocol)]


@pytest.fixture
def options(tiny, tmp_path, episodes, monkeypatch):
    monkeypatch.setattr(train_scorer, "open_embedder", lambda card: WordEmbedder())
    append_episodes(tmp_path / "samples" / "a.jsonl", episodes)
    return Options((tmp_path / "samples",), tiny / "data", tiny / "policy", tmp_path / "scorer", held_out=0.3)


def card_in(folder):
    return json.loads((folder / "scorer.json").read_text())


def test_it_learns_what_is_better_and_says_how_often_it_is_right(options, tiny_protocol, tiny, capsys):
    main(options)
    card = card_in(options.out)
    assert card["questions"] == 4
    assert (card["embedder"], card["options"]["seed"]) == ("words", 0)
    assert set(card["accuracy"]) == {"finished", "going on"}
    assert card["accuracy"]["finished"]["learned"] > 0.7
    assert card["accuracy"]["going on"]["learned"] == 1  # what was found tells the two queries apart
    assert "right on held-out pairs, finished: learned " in capsys.readouterr().out
    scorer = Preference.load(options.out, WordEmbedder())
    held_out = read_questions(tiny / "data" / "eval.jsonl")[0]
    scores = scorer(tiny_protocol, held_out, samples_of(held_out, tiny_protocol))
    assert max(range(4), key=lambda n: scores[n]) == 0
    assert min(range(4), key=lambda n: scores[n]) == 1
    before = {path.name: path.read_bytes() for path in options.out.iterdir()}
    main(options)  # the same again
    assert {path.name: path.read_bytes() for path in options.out.iterdir()} == before


def test_which_questions_are_held_out_depends_on_the_seed_alone():
    played = {Question(f"q{n}", "?", ""): [] for n in range(20)}
    learnt, drawn = split(played, 0.2, 0)
    assert (len(drawn), len(learnt)) == (4, 16)
    assert split(dict(reversed(played.items())), 0.2, 0)[1].keys() == drawn.keys()
    assert split(played, 0.2, 1)[1].keys() != drawn.keys()


def test_held_out_questions_are_refused(options, tiny, tiny_protocol, tmp_path):
    held_out = read_questions(tiny / "data" / "eval.jsonl")[0]
    append_episodes(tmp_path / "eval.jsonl", samples_of(held_out, tiny_protocol))
    told = r"eval.jsonl: 1 of its questions are not in .*train.jsonl, such as q6; .*--split train plays them"
    with pytest.raises(UserError, match=told):
        main(replace(options, files=(tmp_path / "eval.jsonl",)))
    assert not options.out.exists()


def test_other_questions_under_the_same_ids_are_refused(options, tiny, tmp_path):
    """As after the data was made again; other cases and marks are the same question."""
    data = shutil.copytree(tiny / "data", tmp_path / "data")
    text = (data / "train.jsonl").read_text()
    (data / "train.jsonl").write_text(text.replace("What mends disease 3?", "what mends disease 3"))
    main(replace(options, data=data))
    (data / "train.jsonl").write_text(text.replace("What mends disease 3?", "Whence disease 3?"))
    with pytest.raises(
        UserError, match=r"4 of its episodes answer another question .* under the id q3; give the --data"
    ):
        main(replace(options, data=data, out=tmp_path / "other"))


def test_what_cannot_be_learnt_from_is_told(options, episodes, tmp_path):
    def told(match, **changed):
        with pytest.raises(UserError, match=match):
            main(replace(options, **changed))

    (tmp_path / "empty.jsonl").write_text("")
    told("no episode is left to learn from", files=(tmp_path / "empty.jsonl",))
    write_episodes(tmp_path / "one.jsonl", episodes[:1])
    told("no two episodes of a question differ by", files=(tmp_path / "one.jsonl",), held_out=0.0)
    write_episodes(tmp_path / "other.jsonl", [replace(episode, transcript="What?") for episode in episodes])
    told(r"its tokens are of another tokenizer; name the --policy", files=(tmp_path / "other.jsonl",))
