"""Warm start: batches, schedule and stopping by hand; demonstrations that are real episodes; a run that is resumed."""

import json
import random
import shutil
from dataclasses import replace

import pytest
import torch

from forage.agent.episode import read_episodes, write_episodes
from forage.agent.protocol import RESPONSE
from forage.data.records import Document, Question, read_questions
from forage.policy.adapters import newest_adapter, weights_digest
from forage.policy.checkpoint import checkpoints
from forage.policy.packing import Budget, pack
from forage.sft import training
from forage.sft.options import SFTOptions
from forage.sft.teacher import (
    choose_queries,
    name_queries,
    phrases_of,
    queries_of,
    short_answer,
    title_query,
)  # fmt: skip
from forage.sft.training import Row, best_row, height, loss_of, out_of_patience, split
from forage.text import body_of
from sft_train import main
from tests.factories import EPISODE as EXAMPLE
from tests.refusals import refused
from tests.tiny import make_ground, make_policy
from tests.tiny_training import tiny_sft

GOUT = Question(
    "g", "What are the symptoms of gout?", "It hurts. The toe is red and hot, mostly at night.", "symptoms", "Gout",
    ("d",), ("d#1",),
)  # fmt: skip


def test_queries_by_hand():
    assert queries_of(GOUT) == ["Gout symptoms", "symptoms gout", "Gout", "What are the symptoms of gout?"]
    assert queries_of(replace(GOUT, focus="", question_type="information")) == ["symptoms gout", GOUT.question]


def test_the_body_of_an_answer_by_hand():
    headed = "What are the symptoms? How do\nthey begin? It hurts. Why? Nobody knows."
    assert body_of(headed) == "It hurts. Why? Nobody knows."
    assert body_of("What is it? Why?") == "What is it? Why?"


def test_short_answers_are_whole_sentences_where_one_fits():
    count = lambda text: len(text.split())  # noqa: E731
    assert short_answer(GOUT.answer, count, 99) == GOUT.answer
    assert short_answer(GOUT.answer, count, 5) == "It hurts."
    assert short_answer("one two three four five", count, 3) == "one two three"


def test_a_plan_by_hand():
    plans = [choose_queries({"a": 2, "b": 3, "c": None, "d": 2}, random.Random(seed)) for seed in range(200)]
    assert {tuple(queries) for queries in plans} == {("a",), ("d",), ("c", "a"), ("c", "d")}
    assert 5 <= sum(len(queries) == 2 for queries in plans) <= 40
    assert choose_queries({"a": None}, random.Random(1)) is None


def test_what_a_blind_teacher_searches_for_by_hand():
    behind = replace(GOUT, question="crystals kidney: What causes this?")
    assert title_query(behind, [Document("d", "Gout", "It hurts.")]) == "Gout What causes this?"
    shown = "Crystals of the kidney, as in a very long enumeration of mild gout: rest - ice (Kidney)"
    phrases = ["Crystals", "very long enumeration", "mild gout"]  # of six letters at least
    assert phrases_of(shown) == [*phrases[:1], "kidney", *phrases[1:], "Kidney"]
    assert phrases_of("one two three four five six") == ["one two three four", "three four five six"]
    queries = [name_queries(behind, shown, 2, random.Random(seed)) for seed in range(50)]
    assert {query for two in queries for query in two} == {f"What causes this? {each}" for each in phrases[1:]}
    assert all(len(set(two)) == 2 for two in queries)
    assert name_queries(behind, "in the kidney", 2, random.Random(0)) == []


def test_the_rate_rises_and_falls():
    # With 20 steps, it rises over 2 and falls over the other 18.
    assert [round(height(step, 20), 3) for step in (0, 1, 2, 3, 19)] == [0.5, 1.0, 1.0, 0.944, 0.056]
    assert [height(step, 1) for step in (0,)] == [1.0]


def test_no_question_is_learnt_and_measured_by():
    episodes = [replace(EXAMPLE, id=f"{n}/{m}", question_id=str(n)) for n in range(10) for m in range(2)]
    learnt, held_out = split(episodes, SFTOptions(eval_share=0.2))
    assert len(held_out) == 4
    assert not {e.question_id for e in learnt} & {e.question_id for e in held_out}


def test_patience_by_hand():
    rows = [Row(n, 0, None, loss) for n, loss in enumerate([3, 1, 2, 2])]
    assert best_row(rows).step == 1
    assert out_of_patience(rows, 2)
    assert not out_of_patience(rows, 3)


def test_the_loss_is_the_mean_over_the_policys_tokens_whatever_the_micro_batches():
    from tests.factories import Sequence, plain_logprobs, tiny_model

    model = tiny_model()
    demos = [Sequence((3, 4, 5, 6, 7), (0, 0, 1, 1, 1)), Sequence((9, 8, 7), (0, 1, 0)), Sequence((3, 4), (0, 1))]
    expected = -sum(plain_logprobs(model, b).sum() for b in pack(demos, 100)) / 5
    for budget in (3, 8, 100):
        model.zero_grad()
        loss = loss_of(model, demos, Budget(budget), backward=True)
        gradient = model.model.layers[0].mlp.up_proj.weight.grad.clone()
        assert loss == pytest.approx(expected.item(), abs=1e-5)
        if budget == 3:
            first = gradient
        torch.testing.assert_close(gradient, first, atol=1e-6, rtol=1e-4)


@pytest.fixture(scope="module")
def ground(tiny_base, tmp_path_factory):
    """A small library with questions, and a policy."""
    folder = tmp_path_factory.mktemp("ground")
    make_ground(folder)
    make_policy(folder / "policy", tiny_base)
    return folder


def options(ground, output, **more):
    return tiny_sft(ground, output, **{"data": ground, "max_steps": 4, "max_turns": 2, "max_turn_tokens": 32} | more)


@pytest.fixture(scope="module")
def trained(ground, tmp_path_factory):
    output = tmp_path_factory.mktemp("trained") / "warm"
    main(options(ground, output))
    return output


@pytest.mark.parametrize("blind", ["names", "title"])
def test_a_blind_teacher_says_only_what_it_has_seen(ground, tmp_path, blind):
    given = {"blind": blind, "max_turns": 3, "max_turn_tokens": 96, "answer_tokens": 12, "max_steps": 1}
    main(options(ground, tmp_path / "warm", **given, phrases=2))
    episodes = list(read_episodes(tmp_path / "warm" / "demonstrations.jsonl"))
    asked = {question.id: question.question for question in read_questions(ground / "train.jsonl")}
    assert [episode.searches[0].query for episode in episodes] == [asked[episode.question_id] for episode in episodes]
    assert {episode.id.rpartition("/")[2] for episode in episodes} == ({"0", "1"} if blind == "names" else {"0"})
    for episode in episodes:
        first, second = episode.searches
        shown = RESPONSE.findall(episode.transcript)
        assert all(word in f"{shown[0]} {first.query}" for word in second.query.split())
        assert episode.answer in shown[-1]


def test_a_first_search_is_written_for_the_policy_and_not_learnt(ground, tmp_path, capsys):
    given = {"blind": "names", "search_first": True, "force_search": True, "max_turns": 2, "max_steps": 1}
    main(options(ground, tmp_path / "warm", **given))
    questions = {question.id: question for question in read_questions(ground / "train.jsonl")}
    asked = {name: question.question for name, question in questions.items()}
    episodes = list(read_episodes(tmp_path / "warm" / "demonstrations.jsonl"))
    hits = [(episode, {hit for search in episode.searches for hit in search.hits}) for episode in episodes]
    find = sum(not found.isdisjoint(questions[each.question_id].relevant_chunk_ids) for each, found in hits)
    assert f"; {find} find what answers" in capsys.readouterr().out
    for episode in episodes:
        first, second = episode.turns
        assert (episode.stop, episode.searches[0].query) == ("search", asked[episode.question_id])
        assert not any(episode.mask[first.start : first.end])
        learnt = sum(episode.mask[second.start : second.end])
        assert 0 < learnt < second.end - second.start  # the call's beginning is written too


def test_a_run_ends_with_a_policy(ground, trained, tiny_base):
    rows = [json.loads(line) for line in (trained / "stats.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 2, 4]
    assert rows[-1]["held_out_loss"] < rows[0]["held_out_loss"]
    config = json.loads((trained / "adapters" / "v000000" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(tiny_base)
    again = options(ground, trained.parent / "second", learning_rate=3e-3)
    main(replace(again, policy=trained, max_steps=2))  # it can be started from


def test_a_policy_that_training_makes_no_better_is_left_as_it_was(ground, tmp_path, monkeypatch, capsys):
    rising = lambda policy, held_out, budget, step, loss, started: Row(step, 0.0, loss, 1.0 + step)  # noqa: E731
    monkeypatch.setattr(training, "measure", rising)
    main(options(ground, tmp_path / "warm"))
    assert "the held-out loss never fell" in capsys.readouterr().out
    before, after = (weights_digest(newest_adapter(folder)) for folder in (ground / "policy", tmp_path / "warm"))
    assert after == before


def killed(options, name, step, then=lambda: None):
    """Run the warm start until a function of its training is called for this step; `then` is called before each."""
    real = getattr(training, name)

    def dying(*given):
        if step in given:
            raise KeyboardInterrupt
        then()
        return real(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, name, dying)
        with pytest.raises(KeyboardInterrupt):
            main(options)


def stats_of(folder):
    """Without the seconds."""
    rows = map(json.loads, (folder / "stats.jsonl").read_text().splitlines())
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


@pytest.mark.parametrize(("every", "checkpoint"), [(60, "000002"), (0, "000003")])
def test_a_killed_run_ends_as_an_undisturbed_one(ground, trained, tmp_path, monkeypatch, every, checkpoint):
    """Killed by an error at update 3, after the checkpoint of the measurement at 2, or of an update that took long."""
    given = options(ground, tmp_path / "warm")
    monkeypatch.setattr(training, "SAVED_EVERY", every)
    killed(given, "update", 3)
    assert [path.name for path in checkpoints(given.output_dir / "state")] == [checkpoint]
    main(given)
    assert stats_of(given.output_dir) == stats_of(trained)
    first, second = (
        (folder / "adapters" / "v000000" / "adapter_model.safetensors").read_bytes()
        for folder in (trained, given.output_dir)
    )
    assert first == second


def test_a_run_that_is_ended_early_is_measured_where_it_stands(ground, tmp_path, monkeypatch):
    given = replace(options(ground, tmp_path / "warm"), eval_every=20)
    monkeypatch.setattr(training, "SAVED_EVERY", 0)
    killed(given, "update", 3)
    main(replace(given, max_steps=3))
    assert [row["step"] for row in stats_of(given.output_dir)] == [0, 3]


@pytest.mark.parametrize("name", ["train.jsonl", "store/chunks.jsonl", "more.jsonl"])
def test_a_killed_run_does_not_go_on_with_data_that_was_made_again(ground, tmp_path, monkeypatch, name):
    """It would learn from demonstrations of the old data."""
    data = shutil.copytree(ground, tmp_path / "data", symlinks=True)
    write_episodes(data / "more.jsonl", [])
    given = replace(options(data, tmp_path / "warm"), demonstrations=(data / "more.jsonl",))
    monkeypatch.setattr("forage.sft.training.Vetting.read", lambda *_: [])
    killed(given, "update", 0)
    before = (data / name).read_text()
    (data / name).write_text(before.replace("gout", "Gout") + "\n")
    part = {"train.jsonl": "data.train", "store/chunks.jsonl": "data.store"}.get(name, f"demonstrations.{data / name}")
    with refused(f"was begun with another {part}: give that"):
        main(given)
    (data / name).write_text(before)
    main(given)


def test_a_run_killed_before_a_checkpoint_keeps_the_last_ones_best_adapter(ground, tmp_path):
    """The update to step 4 is better than step 2; its checkpoint never comes."""
    given, digests = options(ground, tmp_path / "warm"), []
    best = given.output_dir / "best"
    killed(given, "save_checkpoint", 4, lambda: digests.append(weights_digest(newest_adapter(best))))
    there = [weights_digest(path) for path in (best / "adapters").iterdir()]
    assert digests[-1] in there
    assert len(there) == 2
    main(given)
    assert [path.name for path in (best / "adapters").iterdir()] == ["v000004"]
