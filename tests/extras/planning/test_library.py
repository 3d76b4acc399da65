"""The library of query templates by hand, and the whole chain on a tiny policy: episodes, library, plans, GRPO."""

import json
from dataclasses import replace

import grpo_rollout
from forage.agent.episode import Search, append_episodes, read_episodes
from forage.agent.options import SearchOptions
from forage.data.records import Question, read_questions
from forage.extras.planning import teaching
from forage.extras.planning.library import Options, cover, earnings, main, merged, shares_of
from forage.extras.planning.tool import planner, read_library
from forage.files import write_jsonl
from forage.manifest import file_digest
from tests.factories import EPISODE as EXAMPLE
from tests.refusals import refused
from tests.tiny import make_base, make_data, make_policy

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


def test_a_library_serves_all_kinds():
    """With one episode each, a template is worth half of what it earned."""
    shapes = {"x": {"a": [0.8]}, "y": {"a": [0.7]}, "z": {"b": [0.2], "a": [0.6]}}
    assert cover(shapes, {"a": 0.5, "b": 0.5}, 12) == ["x", "z"]  # gains .2 (z: .2) and .05; y gains nothing after x
    assert cover(shapes, {"a": 0.25, "b": 0.75}, 12) == ["z", "x"]  # .15 against .1; then x adds .25 * .1
    assert cover(shapes, {"a": 0.5, "b": 0.5}, 1) == ["x"]
    assert cover({"w": {"a": [0.0]}}, {"a": 1.0}, 12) == cover({}, {"a": 1.0}, 12) == []


def test_the_command(tmp_path, capsys):
    held_out = replace(GOUT, id="eval-1", question="What mends gout?")
    cause = played(GOUT, 0.9, Search(0, "cause gout", ("right",)))
    episodes = [cause, cause, played(held_out, 1.0, Search(0, "gout cure"))]
    append_episodes(tmp_path / "run" / "episodes" / "000003" / "w.jsonl", episodes)
    append_episodes(tmp_path / "few" / "episodes" / "000003" / "w.jsonl", [cause])
    write_jsonl(tmp_path / "train.jsonl", [GOUT])
    write_jsonl(tmp_path / "eval.jsonl", [held_out])
    options = Options(tmp_path / "run", tmp_path, tmp_path / "library.jsonl")
    main(options)
    assert read_library(options.out) == {"cause": "cause [topic]"}
    assert "cause: cause [topic] (0.90, 2)" in capsys.readouterr().out
    run_json = {"data": {"train": file_digest(tmp_path / "train.jsonl")}}
    (tmp_path / "run" / "run.json").write_text(json.dumps(run_json))
    main(options)
    write_jsonl(tmp_path / "train.jsonl", [replace(GOUT, focus="toe")])  # made again
    with refused(r"train.jsonl has other questions than .*run was trained on; give the run's"):
        main(options)
    for name, says in {"few": "gives a template", "none": "has no episodes"}.items():
        with refused(says):
            main(replace(options, run_dir=tmp_path / name))


# What plans are taught by


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


def test_the_teachers_plans_are_written_as_demonstrations(tmp_path, monkeypatch):
    data, library, plans = kinds_of_questions(tmp_path), tmp_path / "library.jsonl", tmp_path / "plans.jsonl"
    wrote = {"rest": "[topic] rest", "remedy": "remedy for [topic]"}
    write_jsonl(library, [{"name": name, "query": query} for name, query in wrote.items()])
    monkeypatch.setattr(grpo_rollout, "get_tools", lambda: {"plan": planner(library)})
    make_policy(tmp_path / "policy", make_base(tmp_path / "bare"))
    search = SearchOptions(mode="sparse", max_turns=2, max_turn_tokens=80)
    teaching.main(teaching.Options(library, data, tmp_path / "policy", plans, search=search))
    taught = list(read_episodes(plans))
    assert taught
    assert all('"plan"' in episode.transcript and episode.well_formed for episode in taught)
