"""The library of query templates by hand, and the whole chain on a tiny policy: episodes, library, plans, GRPO."""

from dataclasses import replace

import pytest

import grpo_rollout
import sft_train
from forage.agent.episode import Search, append_episodes, episode_files, read_episodes
from forage.agent.options import SearchOptions, read_agent
from forage.agent.protocol import Protocol
from forage.data.records import Question, read_questions
from forage.errors import UserError
from forage.files import write_jsonl
from forage.planning import teaching
from forage.planning.library import Options, cover, earnings, main, merged, shares_of, worth
from forage.planning.tool import planner, read_library
from forage.policy.adapters import weights_digest
from forage.sft.options import SFTOptions
from tests.factories import EPISODE as EXAMPLE
from tests.options import with_options
from tests.tiny import make_base, make_data, make_policy, make_taught_base, make_tokenizer
from tests.tiny_training import tiny_options, train

GOUT = Question("gout", "What causes gout?", "x", "causes", "Gout", (), ("right",))


def played(question, reward, *searches, **more):
    return replace(EXAMPLE, question_id=question.id, searches=searches, reward=reward, **more)


def test_a_query_earns_what_its_episode_did_if_it_found_the_answer():
    unknown = replace(GOUT, id="unknown", question_type="", relevant_chunk_ids=())
    nameless = replace(GOUT, id="nameless", focus="")
    episodes = [
        played(GOUT, 0.8, Search(0, "gout", ("wrong",)), Search(1, "why Gout", ("wrong", "right"))),
        played(GOUT, 0.6, Search(0, "why gout", ()), Search(1, "why  gout", ("right",))),  # once per episode
        played(GOUT, 0.9, Search(0, "toes", ("right",))),  # speaks of something else
        played(GOUT, 0.9, Search(0, "gout", ("right",)), stop="turns"),  # not well-formed
        played(unknown, 0.7, Search(0, "gout", ("a",))),  # no label says what answers
        played(nameless, 0.9, Search(0, "gout", ("right",))),
        played(replace(GOUT, id="stranger"), 0.9, Search(0, "gout", ("right",))),
    ]
    assert list(earnings(episodes, [GOUT, unknown, nameless])) == [
        ("[topic]", "causes", 0.0), ("why [topic]", "causes", 0.8), ("why [topic]", "causes", 0.6),
        ("[topic]", "What causes [topic]?", 0.7),
    ]  # fmt: skip
    assert shares_of([GOUT, unknown, nameless]) == {"causes": 0.5, "What causes [topic]?": 0.5}


def test_shapes_that_say_the_same_are_one():
    earned = [
        ("symptoms of [topic]", "a", 1.0), ("[topic] Symptoms", "a", 0.5), ("[topic] Symptoms", "b", 0.0),
        ("[topic] symptoms signs", "a", 0.25), ("what is [topic]?", "b", 0.5), ("[topic]", "b", 0.75),
    ]  # fmt: skip
    wordings, rewards = merged(earned)
    assert rewards == {
        "symptoms": {"a": [1.0, 0.5], "b": [0.0]}, "symptoms_signs": {"a": [0.25]}, "topic": {"b": [0.5, 0.75]},
    }  # fmt: skip
    assert wordings["symptoms"].most_common(1) == [("[topic] Symptoms", 2)]


def test_what_a_template_is_worth_by_hand():
    earned = {"a": [1.0, 0.5], "b": [0.5]}
    assert [worth(earned, kind) for kind in "abc"] == [0.5, 0.25, 0]


def test_a_library_serves_all_kinds():
    """With one episode each, a template is worth half of what it earned."""
    shapes = {"x": {"a": [0.8]}, "y": {"a": [0.7]}, "z": {"b": [0.2], "a": [0.6]}}
    assert cover(shapes, {"a": 0.5, "b": 0.5}, 12) == ["x", "z"]  # gains .2 (z: .2) and .05; y gains nothing after x
    assert cover(shapes, {"a": 0.25, "b": 0.75}, 12) == ["z", "x"]  # .15 against .1; then x adds .25 * .1
    assert cover(shapes, {"a": 0.5, "b": 0.5}, 1) == ["x"]
    assert cover({"w": {"a": [0.0]}}, {"a": 1.0}, 12) == cover({}, {"a": 1.0}, 12) == []


def test_the_command(tmp_path, capsys):
    held_out = replace(GOUT, id="eval-1", question="What mends gout?")
    episodes = [played(GOUT, 0.9, Search(0, "cause gout", ("right",))), played(held_out, 1.0, Search(0, "gout cure"))]
    append_episodes(tmp_path / "run" / "episodes" / "000003" / "w.jsonl", episodes)
    write_jsonl(tmp_path / "train.jsonl", [GOUT])
    write_jsonl(tmp_path / "eval.jsonl", [held_out])
    options = Options(tmp_path / "run", tmp_path, tmp_path / "library.jsonl", min_episodes=1)
    main(options)
    assert read_library(options.out) == {"cause": "cause [topic]"}
    assert "cause: cause [topic] (0.90, 1)" in capsys.readouterr().out
    for wrong, says in (
        ({"min_episodes": 2}, "lower --min-episodes"), ({"most": 0}, "--most 0"),
        ({"run_dir": tmp_path / "none"}, "has no episodes"), ({"out": tmp_path / "train.jsonl"}, "--out"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=says):
            main(replace(options, **wrong))


# The chain


def kinds_of_questions(folder):
    """Tiny data whose questions have a focus and are of two types."""
    data = make_data(folder / "data")
    for split in ("train", "eval"):
        questions = [
            replace(question, focus=f"disease {n}", question_type="care" if n % 2 else "cure")
            for question in read_questions(data / f"{split}.jsonl")
            for n in [int(question.id[1:])]
        ]
        write_jsonl(data / f"{split}.jsonl", questions)
    return data


def test_the_chain_from_episodes_to_a_policy_that_plans(tmp_path, embedder, monkeypatch):
    data = kinds_of_questions(tmp_path)
    questions = read_questions(data / "train.jsonl")
    # Episodes of a run that wrote its queries, and their library.
    wrote = {"cure": "remedy for disease {}", "care": "disease {} rest"}
    episodes = [
        played(question, 1.0, Search(0, wrote[question.question_type].format(n), (f"d{n}#0",)))
        for n, question in enumerate(questions)
    ]
    append_episodes(tmp_path / "run" / "episodes" / "000000" / "w.jsonl", episodes)
    library = tmp_path / "library.jsonl"
    main(Options(tmp_path / "run", data, library))
    assert read_library(library) == {"rest": "[topic] rest", "remedy": "remedy for [topic]"}
    monkeypatch.setattr(grpo_rollout, "get_tools", lambda: {"plan": planner(library)})

    # A warm start on demonstrations of plans, over a base that has learnt to write them: a tiny one would take long to.
    search = SearchOptions(mode="sparse", max_turns=2, max_turn_tokens=80)
    make_policy(tmp_path / "policy", make_base(tmp_path / "bare"))
    plans = tmp_path / "plans.jsonl"
    teaching.main(teaching.Options(library, data, tmp_path / "policy", plans, search=search))
    taught = list(read_episodes(plans))
    assert taught
    assert all('"plan"' in episode.transcript and episode.well_formed for episode in taught)
    make_policy(tmp_path / "able", make_taught_base(tmp_path / "base", taught, steps=55))
    warm = SFTOptions(
        data=data, policy=tmp_path / "able", output_dir=tmp_path / "warm", max_steps=1, eval_every=1, batch_size=4,
        eval_questions=0, eval_share=0.3, num_demonstrations=0, demonstrations=(plans,), search=search,
    )  # fmt: skip
    sft_train.main(with_options(warm, learning_rate=1e-3))
    settings = read_agent(tmp_path / "warm")
    assert list(settings.tools) == ["plan"]

    # GRPO, in which it plans.
    run = tmp_path / "planning"
    more = {"policy": tmp_path / "warm", "search": SearchOptions(), "max_steps": 1, "eval_every": 1}
    train(tiny_options(tmp_path, run, temperature=0.3, **more))  # at 1 so small a model seldom ends a plan
    assert weights_digest(run / "adapters" / "v000001") != weights_digest(run / "adapters" / "v000000")
    rollouts = [episode for path in episode_files(run / "episodes" / "000000") for episode in read_episodes(path)]
    planned = [episode for episode in rollouts if any(use.tool == "plan" for use in episode.uses)]
    assert planned
    protocol = Protocol.playing(make_tokenizer(), settings)
    for episode in planned:
        first = episode.turns[0]
        assert '"plan"' in protocol.text(episode.ids[first.start : first.end])
        assert set(episode.mask[first.start : first.end]) == {1}
        assert all(search.hits for search in episode.searches)
