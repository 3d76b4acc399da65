"""evaluate.py end to end on a tiny policy: what it writes, what it refuses, and what it plays again."""

import json
import math
import shutil
from collections import deque
from dataclasses import replace

import numpy as np
import pytest

import grpo_rollout
from evaluate import LAB, SYSTEMS, main
from forage.agent.options import SearchOptions
from forage.agent.rewards import get_mrr
from forage.data.records import Question, read_questions
from forage.engines.base import EngineOptions, Sampling
from forage.evaluation import baselines
from forage.evaluation.measures import COSTS
from forage.evaluation.options import EvaluationOptions
from forage.evaluation.outcomes import OutcomeLog
from forage.evaluation.report import SystemScores, say_missing, summary
from forage.evaluation.setting import choose
from forage.extras.gateway import own_agent
from forage.extras.testtime.best_of import BestOf
from forage.extras.testtime.preference import FEATURES
from forage.extras.testtime.scorers import confidence, looks_good
from forage.files import write_jsonl
from forage.manifest import write_manifest
from forage.policy.adapters import list_contents
from forage.policy.manifest import read_policy_manifest, write_policy_manifest
from tests.extras.gateway.own_agents import as_our_loop
from tests.options import with_options
from tests.refusals import refused

SCORES = ["mrr", "mrr@1", "mrr@3", "recall@1", "recall@3", "ndcg@1", "ndcg@3", "answer_similarity", "format",
          "groundedness", "telling_words", "token_f1", "rouge_l", "answered"]  # fmt: skip


@pytest.fixture(scope="module")
def tiny(tiny, tmp_path_factory):
    """The tiny policy, with questions of two types to evaluate on."""
    folder = shutil.copytree(tiny, tmp_path_factory.mktemp("evaluated") / "tiny")
    questions = [replace(q, question_type="what" if n % 2 else "how")
                 for n, q in enumerate(read_questions(folder / "data" / "train.jsonl"))]  # fmt: skip
    write_jsonl(folder / "data" / "eval.jsonl", questions)
    return folder


@pytest.fixture(autouse=True)
def one_embedder(embedder, monkeypatch):
    """Loaded once for all tests."""
    monkeypatch.setattr("forage.evaluation.setting.open_embedder", lambda *_: embedder)


def options_of(tiny, out, **changed):
    options = EvaluationOptions(
        data=tiny / "data", policy=(f"tiny={tiny / 'policy'}",), output_dir=out, engine=EngineOptions(engine="local"),
        cutoffs=(1, 3), search=SearchOptions(mode="sparse", max_turns=2, max_turn_tokens=6),
        sampling=Sampling(temperature=1.0), concurrency=3,
    )  # fmt: skip
    return with_options(options, **changed)


def stored(out, system, policy="tiny"):
    """A system's episodes by their ids."""
    log = OutcomeLog(out, f"{policy}/{system}")
    return {episode.id: episode for outcome in log.results().values() for episode in outcome.tried}


def refuses(what, options):
    with refused(f"was begun with {what}[;:] give that, or another"):
        main(options)


def counted(name, strategy, monkeypatch):
    """Questions that a system is asked, in SYSTEMS under a name of its own."""
    asked = deque()

    async def counting(agent, question, seed):
        asked.append(question.id)
        return await strategy(agent, question, seed)

    monkeypatch.setitem(SYSTEMS, name, lambda setting: counting)
    return asked


def test_two_policies_in_one_table(tiny, tmp_path, capsys):
    policies = (f"warm={tiny / 'policy'}", f"plain={tiny / 'base'}")
    main(options_of(tiny, tmp_path, policy=policies, engine=EngineOptions(urls=("http://127.0.0.1:9",))))
    whole = json.loads((tmp_path / "eval.json").read_text())
    assert (whole["schema"], whole["questions"], whole["unit"], whole["reference"]) == (1, 6, "chunk", "warm/plain_rag")
    systems = ["plain_rag", "no_retrieval", "hyde", "single"]
    assert [row["name"] for row in whole["systems"]] == [f"{p}/{s}" for p in ("warm", "plain") for s in systems]
    assert [row["adapter"] for row in whole["systems"]] == ["v000000"] * 4 + ["base"] * 4
    first, second = whole["systems"][:2]
    assert list(first["metrics"]) == SCORES + list(COSTS)
    # The store has remedy n in document n, so that the raw question finds it first; without a search nothing is found.
    assert first["metrics"]["mrr"] == {"mean": 1, "low": 1, "high": 1}
    assert second["over_reference"]["mrr"] == {"mean": -1, "low": -1, "high": -1}
    assert (first["metrics"]["searches"]["mean"], second["metrics"]["searches"]["mean"]) == (1, 0)
    for policy in ("warm", "plain"):
        for system in systems:
            episodes = stored(tmp_path, system, policy)
            assert sorted(episodes) == [f"q{n}/0" for n in range(6)]
            assert {e.adapter for e in episodes.values()} == {"warm-v000000" if policy == "warm" else "base"}
    assert (tmp_path / "table.md").exists()
    said = capsys.readouterr().out
    assert said.count("engine: this process, as no vLLM server answers at ") == 1  # for both policies
    assert all(verdict in said for verdict in whole["verdicts"])


def test_systems_policies_and_questions_are_added_without_playing_again(tiny, tmp_path, monkeypatch):
    counts = {name: counted(name, getattr(baselines, name), monkeypatch) for name in ("plain_rag", "single")}
    main(options_of(tiny, tmp_path, systems=("plain_rag",), eval_questions=2))
    main(options_of(tiny, tmp_path, systems=("plain_rag", "single"), eval_questions=4, cutoffs=(2,)))
    assert [len(asked) for asked in counts.values()] == [4, 4]
    assert len(set(counts["plain_rag"])) == 4
    monkeypatch.setattr("forage.evaluation.player.open_engine", None)  # nothing is missing: no model is loaded
    main(options_of(tiny, tmp_path, systems=("single",), eval_questions=3))
    assert json.loads((tmp_path / "eval.json").read_text())["reference"] == "tiny/single"


def test_every_strategy_is_a_line_that_plays(tiny, tmp_path, scorer):
    systems = ("single", "best_of:3", "best_of:3:learned", "oracle:3", "self_consistency:3", "s1:2x4", "tpo:2x1",
               "tpo:2x1:learned", "s_star:2", "tree:3", "tree:3:learned", "rewrite", "hyde")  # fmt: skip
    assert {name.partition(":")[0] for name in systems} == SYSTEMS.keys() - ({*LAB, "own_agent"} - {"single"})
    out = tmp_path / "out"
    given = {"systems": systems, "eval_questions": 2, "max_turn_tokens": 4, "scorer": scorer("one", 0)}
    main(options_of(tiny, out, **given))
    rows = json.loads((out / "eval.json").read_text())["systems"]
    assert [row["system"] for row in rows] == list(systems)
    tokens = {row["system"]: row["metrics"]["sampled_tokens"]["mean"] for row in rows}
    assert tokens["best_of:3"] == tokens["best_of:3:learned"] == tokens["oracle:3"] > tokens["single"]
    assert tokens["self_consistency:3"] == tokens["best_of:3"]
    given["scorer"] = scorer("other", 1)
    refuses("another scorer", options_of(tiny, out, **given))


def test_what_was_played_otherwise_is_not_mixed(tiny, tmp_path):
    options = options_of(tiny, tmp_path, systems=("no_retrieval",), eval_questions=1)
    main(options)
    refuses("--k 3, not 5", with_options(options, k=5))
    refuses("--temperature 1.0, not 0.5", with_options(options, temperature=0.5))
    other = tmp_path / "other"
    shutil.copytree(tiny / "policy", other)
    main(replace(options, policy=(f"tiny={other}",)))  # the same weights
    weights = other / "adapters" / "v000000" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")  # trained anew under its old name
    with refused(r"v000000 is not what its contents.json says; put it back, or delete"):
        main(replace(options, policy=(f"tiny={other}",)))
    list_contents(weights.parent)
    refuses("another policy tiny", replace(options, policy=(f"tiny={other}",)))


@pytest.mark.parametrize("name", ["eval.jsonl", "store/chunks.jsonl", "qrels/eval.tsv"])
def test_data_made_again_under_the_same_name_is_not_mixed(tiny, tmp_path, name):
    data = shutil.copytree(tiny / "data", tmp_path / "data")
    options = options_of(tiny, tmp_path / "out", data=data, systems=("plain_rag",), eval_questions=1)
    main(options)
    path = data / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(path.read_text().replace("emedy 1", "emedy 9") if path.exists() else "q0 0 d1 1\n")
    part = {"eval.jsonl": "eval", "store/chunks.jsonl": "store", "qrels/eval.tsv": "qrels"}[name]
    refuses(rf"another data\.{part}", replace(options, eval_questions=2))


def test_systems_that_were_changed_are_not_mixed(tiny, tmp_path, monkeypatch):
    """Nor what they hold, such as how many candidates there are to choose among, or who chooses."""
    options = options_of(tiny, tmp_path, systems=("mine",), eval_questions=1)
    made = [BestOf(looks_good, 2), BestOf(looks_good, 3), BestOf(confidence, 2), baselines.single]
    monkeypatch.setitem(SYSTEMS, "mine", lambda setting: made[0])
    main(options)
    for strategy in made[1:]:
        monkeypatch.setitem(SYSTEMS, "mine", lambda setting, one=strategy: one)
        refuses("another system mine", options)
    monkeypatch.setitem(SYSTEMS, "mine", lambda setting: BestOf(looks_good, 2))
    main(replace(options, eval_questions=2))


def test_another_template_or_type_is_not_mixed(tiny, tmp_path):
    options = options_of(tiny, tmp_path / "out", policy=(f"tiny={tmp_path / 'policy'}",), systems=("no_retrieval",),
                         eval_questions=1)  # fmt: skip
    for name in ("base", "policy"):
        shutil.copytree(tiny / name, tmp_path / name)
    manifest = replace(read_policy_manifest(tmp_path / "policy"), base=str(tmp_path / "base"))
    write_policy_manifest(manifest, tmp_path / "policy")
    main(options)
    write_policy_manifest(replace(manifest, dtype="bfloat16"), tmp_path / "policy")
    main(options)  # nothing is left to play
    refuses("another dtype tiny", replace(options, eval_questions=2))
    write_policy_manifest(manifest, tmp_path / "policy")
    path = tmp_path / "base" / "chat_template.jinja"
    text = path.read_text().replace("'\n' + message", "':\n' + message").replace("assistant\n", "assistant:\n")
    path.write_text(text)
    refuses("another template tiny", replace(options, eval_questions=2))


def own_rewards(embedder):
    """A reward of the user's, and two with the names of measures, which are left out."""
    return {
        "brief": lambda episodes, questions: [float(len(e.answer) < 10) for e in episodes],
        "mrr": get_mrr,
        "rouge_l": lambda episodes, questions: [0.25] * len(episodes),
        "odd": lambda episodes, questions: [float(q.id == "q1") if q.id in ("q1", "q3") else None for q in questions],
    }


def test_the_users_own_rewards_are_measured(tiny, tmp_path, capsys):
    main(options_of(tiny, tmp_path, systems=("no_retrieval", "plain_rag")), own_rewards)
    whole = json.loads((tmp_path / "eval.json").read_text())
    first, second = (row["metrics"] for row in whole["systems"])
    assert [name for name in first if name not in COSTS] == [
        *SCORES[:7], "brief", "odd", *SCORES[9:]
    ]  # fmt: skip
    assert second["mrr"]["mean"] == 1
    assert first["odd"]["mean"] == 0.5  # of the two questions that have it
    assert "4 of 6 questions have no odd of every system: left out of its means" in capsys.readouterr().out
    assert set(whole["rewards"]) == {"brief", "mrr", "rouge_l", "odd"}


@pytest.fixture
def scorer(tmp_path, embedder):
    """Weights that are all the same, which choose too."""

    def made(name, weight):
        parts = {"weights": dict.fromkeys(FEATURES, weight), "intercept": 0, "probe": embedder.probe().tolist()}
        write_manifest(tmp_path / name / "scorer.json", parts)
        return tmp_path / name

    return made


def test_an_own_agent_is_evaluated(tiny, tmp_path, monkeypatch):
    """One that does what our loop does finds what it finds; without one, a line says where it is wanted."""
    with refused(r"get_agent of grpo_rollout\.py returns None; return one"):
        main(options_of(tiny, tmp_path / "none", systems=("own_agent",)))
    monkeypatch.setattr(grpo_rollout, "get_agent", lambda: own_agent.recorded(as_our_loop))
    main(options_of(tiny, tmp_path / "both", systems=("single", "own_agent")))
    ours, theirs = (stored(tmp_path / "both", system) for system in ("single", "own_agent"))
    assert len(ours) > 1
    for name, episode in ours.items():
        assert (theirs[name].ids, theirs[name].searches) == (episode.ids, episode.searches)


def test_a_greater_number_of_questions_adds_to_a_smaller_one():
    questions = [Question(f"q{n}", "?", "") for n in range(50)]
    few, many = choose(questions, 10, 1), choose(questions, 30, 1)
    assert many[:10] == few
    assert choose(questions, 20, 1, skip=10) == many[10:]
    assert choose(questions[::-1], 10, 1) == few  # whatever the order of the file
    assert choose(questions, 10, 2) != few
    assert sorted(q.id for q in choose(questions, 0, 1)) == sorted(q.id for q in questions)


def test_means_are_over_the_questions_that_all_systems_have(capsys):
    """A judge that comes to its bound in the second system, and has nothing left for the third's other metric."""
    cost, nan = {name: np.ones(4) for name in COSTS}, math.nan
    judged = {"a/first": [0.25, 0.25, 0.5, 0], "a/second": [1, nan, nan, nan], "a/third": [0, nan, nan, 0]}
    partly = {"a/first": [1, nan, 0, 0], "a/second": [0, nan, 1, 1], "a/third": [1, nan, 1, 0]}
    systems = [
        SystemScores(*name.split("/"), "base", {"judge": np.array(judged[name]), "odd": np.array(partly[name]), **cost})
        for name in judged
    ]
    rows = summary(systems)
    assert [row["metrics"]["judge"]["mean"] for row in rows] == [0.25, 1, 0]  # of the first question
    assert rows[1]["over_reference"]["judge"]["mean"] == 0.75
    assert [row["metrics"]["odd"]["mean"] for row in rows] == pytest.approx([1 / 3, 2 / 3, 2 / 3])
    assert math.isnan(systems[1].arrays["judge"][1])
    assert systems[0].arrays["judge"].tolist() == judged["a/first"]  # as in per_question.jsonl
    say_missing(systems)
    assert capsys.readouterr().out.splitlines() == [
        "3 of 4 questions have no judge of every system: left out of its means",
        "1 of 4 questions have no odd of every system: left out of its means",
    ]
