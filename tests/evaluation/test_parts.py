"""Parts of an evaluation, put together, are the whole; a part that was played otherwise is refused."""

import json
import shutil

import pytest

from evaluate import main
from forage.agent.episode import read_episodes
from forage.agent.options import SearchOptions
from forage.engines.base import Sampling
from forage.engines.options import EngineOptions
from forage.errors import UserError
from forage.evaluation.options import EvaluationOptions
from tests.options import with_options

SYSTEMS = ("best_of_8", "single")


@pytest.fixture(scope="module")
def tiny(tiny, tmp_path_factory):
    folder = shutil.copytree(tiny, tmp_path_factory.mktemp("parts") / "tiny")
    shutil.copy(folder / "data" / "train.jsonl", folder / "data" / "eval.jsonl")
    return folder


@pytest.fixture(autouse=True)
def light(embedder, monkeypatch):
    monkeypatch.setattr("forage.evaluation.setting.Embedder", lambda *_, **__: embedder)
    monkeypatch.setattr("forage.evaluation.report.draw_evaluation", lambda rows, path: None)


def options_of(tiny, out, **changed):
    options = EvaluationOptions(
        data=tiny / "data", policy=(f"tiny={tiny / 'policy'}",), output_dir=out, engine=EngineOptions(engine="local"),
        systems=SYSTEMS, search=SearchOptions(mode="sparse", max_turns=2, max_turn_tokens=6),
        sampling=Sampling(temperature=1.0), concurrency=3,
    )  # fmt: skip
    return with_options(options, **changed)


def answers(out):
    return {
        (name, episode.id): episode.ids
        for name in SYSTEMS
        for episode in read_episodes(out / "episodes" / "tiny" / f"{name}.jsonl")
    }


def scores(out):
    """Of every question, without what was measured by a clock."""
    rows = [json.loads(line) for line in (out / "per_question.jsonl").read_text().splitlines()]
    timed = ("seconds", "latency")
    return [
        (row["id"], name, {metric: value for metric, value in values.items() if metric not in timed})
        for row in rows
        for name, values in row["systems"].items()
    ]


def test_parts_are_what_one_process_plays(tiny, tmp_path, monkeypatch):
    whole, first, second = (tmp_path / name for name in ("whole", "first", "second"))
    main(options_of(tiny, whole, eval_questions=5))
    main(options_of(tiny, first, eval_questions=3))
    main(options_of(tiny, second, eval_questions=2, skip_questions=3))
    monkeypatch.setattr("forage.evaluation.player.open_engine", None)  # nothing is left to play
    main(options_of(tiny, first, eval_questions=5, parts=(second,)))
    assert answers(first) == answers(whole)
    assert scores(first) == scores(whole)
    main(options_of(tiny, first, eval_questions=5, parts=(second,)))  # again: nothing counts twice
    assert scores(first) == scores(whole)
    logs = list((first / "outcomes" / "tiny").iterdir())
    assert sorted(len(log.read_text().splitlines()) for log in logs) == [5, 5]


def test_a_part_that_is_still_being_played_gives_what_it_has(tiny, tmp_path):
    out, part = tmp_path / "out", tmp_path / "part"
    main(options_of(tiny, part, eval_questions=2))
    log = part / "outcomes" / "tiny" / "best_of_8.jsonl"
    log.write_bytes(log.read_bytes()[:-9])  # its second line is being written
    main(options_of(tiny, out, eval_questions=2, parts=(part,)))
    assert answers(out) == answers(part)


def test_what_was_played_otherwise_is_refused(tiny, tmp_path):
    out, part = tmp_path / "out", tmp_path / "part"
    main(options_of(tiny, out, eval_questions=1))
    main(options_of(tiny, part, eval_questions=1, skip_questions=1))
    together = options_of(tiny, out, eval_questions=2, parts=(part,))

    def refused(name, **changed):
        path = part / name
        kept = path.read_text()
        whole = json.loads(kept)
        path.write_text(json.dumps(whole | changed))
        with pytest.raises(UserError) as caught:
            main(together)
        path.write_text(kept)
        return str(caught.value)

    way_out = "; play it as the others, or leave it out"
    assert refused("config.json", seed=1).endswith(f"part was played with --seed 1, not 0{way_out}")
    assert "part was played with --max-turns 3, not 2" in refused("agent.json", max_turns=3)
    assert "part was played with tiny of other weights" in refused("policies.json", tiny={"sha256": "0"})
    for place, card in ((out, "1"), (part, "2")):
        (place / "scorer.json").write_text(json.dumps({"scorer": f"scorer{card}", "card": card}))
    with pytest.raises(UserError, match="part was played with --scorer scorer2; play it as the others"):
        main(together)
    (out / "scorer.json").unlink()
    main(together)
    assert json.loads((out / "scorer.json").read_text())["card"] == "2"


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("config.json", None, "part holds no config.json; name the --output-dir of another evaluate.py"),
        ("policies.json", None, "policies.json is missing: that evaluation has not begun"),
        ("policies.json", "{", "policies.json is broken .*; put it back, or leave out its --parts"),
    ],
)
def test_what_is_no_part_is_told(tiny, tmp_path, name, text, told):
    out, part = tmp_path / "out", tmp_path / "part"
    main(options_of(tiny, out, eval_questions=1))
    shutil.copytree(out, part)
    (part / name).unlink()
    if text:
        (part / name).write_text(text)
    with pytest.raises(UserError, match=told):
        main(options_of(tiny, out, eval_questions=1, parts=(part,)))


def test_a_folder_is_no_part_of_itself(tiny, tmp_path):
    main(options_of(tiny, tmp_path, eval_questions=1))
    with pytest.raises(UserError, match="--parts"):
        main(options_of(tiny, tmp_path, eval_questions=1, parts=(tmp_path,)))
