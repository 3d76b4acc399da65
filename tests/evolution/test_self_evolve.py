"""The launcher: what it refuses, what it starts and skips, how it ends; and a real evolution, killed and resumed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from forage.agent.episode import read_episodes, write_episodes
from forage.agent.options import SearchOptions
from forage.cli import run_script
from forage.data.records import read_questions
from forage.errors import UserError
from forage.evolution import self_evolve
from forage.evolution.options import EvolveOptions
from forage.evolution.self_evolve import main
from forage.evolution.stages import Place, imitation_stages, round_stages, start_stage
from forage.files import write_jsonl
from forage.policy.adapters import newest_adapter, weights_digest
from tests import ROOT
from tests.factories import EPISODE
from tests.tiny import make_data, make_policy, make_taught_base, teach


@pytest.fixture
def options(tiny, tmp_path):
    """Two rounds of three questions each."""
    return EvolveOptions(
        tiny / "data", tiny / "policy", tmp_path / "out", questions=3, search=SearchOptions(mode="sparse")
    )


class Stages:
    """In the place of processes: each start writes what its stage is known by, unless it is to fail."""

    def __init__(self, options):
        self.options, self.started, self.reports, self.statuses = options, [], [], {}

    def run(self, command, api_key):
        options = self.options
        stages = [start_stage(options), *(stage for number in (1, 2, 3) for stage in round_stages(options, number))]
        stages += imitation_stages(options, 4)
        [stage] = [stage for stage in stages if stage.command == command]
        self.started.append(stage.title)
        if status := self.statuses.get(stage.title, 0):
            return status
        stage.made.parent.mkdir(parents=True, exist_ok=True)
        if stage.made.suffix == ".jsonl":
            write_episodes(stage.made, [EPISODE] * 2)
        else:
            stage.made.touch()
        return 0

    def report(self, options, rounds):
        self.reports.append(rounds)
        whole = {"rounds": [{"name": f"round_{number}"} for number in range(1, rounds + 1)]}
        (options.output_dir / "evolution.json").write_text(json.dumps(whole))


@pytest.fixture
def stages(options, monkeypatch):
    stages = Stages(options)
    monkeypatch.setattr("forage.evolution.report.report", stages.report)
    monkeypatch.setattr(self_evolve, "run_module", stages.run)
    return stages


START = "the start, measuring on held-out questions"
ROUND = ("playing training questions", "training the scorer", "choosing the episodes to learn from",
         "training the policy", "measuring on held-out questions")  # fmt: skip


def titles(number):
    return [f"round {number}, {words}" for words in ROUND]


def test_the_rounds_in_their_order_each_stage_once(options, stages, capsys):
    main(options)
    assert stages.started == [START, *titles(1), *titles(2)]
    assert stages.reports == [1, 2]
    said = capsys.readouterr().out
    assert "round 1, training the policy\n$ python -m sft_train --data " in said
    main(options)  # all is there
    assert len(stages.started) == 11
    assert stages.reports == [1, 2, 2]


def test_a_stage_that_fails_is_named_and_ends_with_its_status(options, stages, capsys):
    stages.statuses = {"round 1, training the policy": 137}
    with pytest.raises(SystemExit) as end:
        main(options)
    assert end.value.code == 137
    assert stages.started == [START, *titles(1)[:4]]
    told = (
        "error: round 1, training the policy: sft_train ended with status 137, see above; re-run the same command to "
        "resume, or give another --output-dir for other options\n"
    )
    assert capsys.readouterr().err == told
    stages.statuses, stages.started = {}, []
    main(options)
    assert stages.started == [*titles(1)[3:], *titles(2)]


def test_more_rounds_go_on_from_those_that_are_there(options, stages):
    stages.options = one = replace(options, rounds=1)
    main(one)
    stages.started = []
    main(options)
    assert stages.started == titles(2)
    assert stages.reports == [1, 2]


def test_a_report_that_a_kill_prevented_is_made_up_for(options, stages):
    stages.statuses = {f"round 2, {ROUND[0]}": 1}
    with pytest.raises(SystemExit):
        main(options)
    (options.output_dir / "evolution.json").unlink()
    stages.reports = []
    with pytest.raises(SystemExit):
        main(options)
    assert stages.reports == [1]


def test_the_imitation_has_as_many_demonstrations_as_the_rounds_kept(options, stages):
    main(replace(options, imitation=True))  # Stages knows the command with 2 + 2 of them
    assert stages.started[11:] == ["imitation, training the policy", "imitation, measuring on held-out questions"]
    assert stages.reports == [1, 2, 2]


def test_other_options_do_not_go_on_with_an_evolution(options, stages):
    main(options)
    with pytest.raises(UserError, match=r"was begun with --questions 3, not 2; give that, or another --output-dir"):
        main(replace(options, questions=2))
    with pytest.raises(UserError, match=r"was begun with --system learned_tree, not learned_8; give that, or"):
        main(replace(options, system="learned_8"))
    main(replace(options, concurrency=3))


def test_an_evolution_is_written_by_one_process(options, stages):
    with self_evolve.filling_folder(options.output_dir), pytest.raises(UserError, match="is being written by another"):
        main(options)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"system": "lerned_8"}, r"--system lerned_8 is unknown; choose among plain_rag, "),
        ({"first_system": "learned_8"}, r"--first-system learned_8 chooses by a learned scorer, and round 1 has none"),
        ({"first_system": "single"}, "--first-system single plays one episode of a question"),
        ({"system": "forced_16"}, "--system forced_16 plays one episode of a question"),
        ({"weights": (1.0,)}, "--weights 1 must be 3 numbers"),
        ({"rounds": 0}, "--rounds 0 must be at least 1"),
        ({"questions": 4}, r"--rounds 2 of --questions 4 need 8 training questions, and .*train.jsonl has 6 that"),
        ({"policy": Path("none")}, "none"),
        ({"search": SearchOptions(max_turns=0)}, "--max-turns 0"),
    ],
)
def test_bad_options_are_told_before_anything_is_written(options, stages, changed, told):
    with pytest.raises(UserError, match=told):
        main(replace(options, **changed))
    assert not options.output_dir.exists()
    assert stages.started == []


def test_a_question_on_both_sides_is_refused(options, stages, tmp_path):
    data = make_data(tmp_path / "data")
    write_jsonl(data / "eval.jsonl", read_questions(data / "train.jsonl")[:1])
    with pytest.raises(UserError, match=r"1 questions of train.jsonl are in eval.jsonl too, such as q0"):
        main(replace(options, data=data))
    (data / "eval.jsonl").unlink()
    with pytest.raises(UserError, match=r"eval.jsonl has no question to measure on"):
        main(replace(options, data=data))
    assert not options.output_dir.exists()


def test_the_command_line(options, stages, monkeypatch, capsys):
    stages.options = replace(options, rounds=1, questions=2)
    arguments = ["--data", options.data, "--policy", options.policy, "--output-dir", options.output_dir, "--mode",
                 "sparse", "--rounds", "1", "--questions", "2"]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["x", *map(str, arguments)])
    run_script(main)
    assert stages.started == [START, *titles(1)]


# A real one


COUNT, PER_ROUND = 18, 8


@pytest.fixture(scope="module")
def able(tmp_path_factory):
    """Data with sixteen training questions, and a policy that searches and answers, not always well."""
    folder = tmp_path_factory.mktemp("able")
    make_data(folder / "data", COUNT)
    questions = read_questions(folder / "data" / "train.jsonl")
    make_policy(folder / "policy", make_taught_base(folder / "base", teach(folder, questions), steps=STEPS))
    return folder


STEPS = 82  # of teaching: with fewer it finds nothing, with many more its first samples are all right


def command(able, out, *more):
    return [
        sys.executable, "-m", "forage.evolution.self_evolve", "--data", able / "data", "--policy", able / "policy",
        "--output-dir", out, "--questions", str(PER_ROUND), "--eval-questions", "0", "--engine", "local", "--mode",
        "sparse", "--max-turns", "3", "--max-turn-tokens", "40", "--temperature", "1", "--concurrency", "4",
        "--max-steps", "20", "--batch-size", "2", "--learning-rate", "0.005", *more,
    ]  # fmt: skip


def start(command):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    return subprocess.Popen(
        list(map(str, command)), cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def finish(command):
    process = start(command)
    said = process.communicate()[0]
    assert process.returncode == 0, said[-4000:]
    return said


def wait_for(process, path):
    while not path.exists():
        assert process.poll() is None, process.stdout.read()[-4000:]
        time.sleep(0.05)


def child_of(process):
    while not (found := Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()):
        assert process.poll() is None, process.stdout.read()[-4000:]
        time.sleep(0.01)  # between two stages
    [pid] = found
    return int(pid)


def ends(out):
    """What two evolutions of a seed must agree on: which episodes were kept, the policies, their scores."""
    places = [Place.of(out, number) for number in (1, 2)]
    kept = [[(e.id, e.ids, e.rewards) for e in read_episodes(place.kept)] for place in places]
    whole = json.loads((out / "evolution.json").read_text())
    scores = [(row["name"], {name: found for name, found in row["metrics"].items() if name not in MEASURED})
              for row in whole["systems"]]  # fmt: skip
    weights = [weights_digest(newest_adapter(place.policy)) for place in places]
    return kept, weights, whole["rounds"], scores


MEASURED = ("seconds", "latency")


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_two_rounds_killed_and_stopped_come_to_the_end_of_undisturbed_ones(able, tmp_path):
    whole, out = tmp_path / "whole", tmp_path / "disturbed"
    said = finish(command(able, whole))
    evolution = json.loads((whole / "evolution.json").read_text())
    names = [f"round_0/{system}" for system in ("single", "best_of_8")]
    names += [f"round_{n}/{system}" for n in (1, 2) for system in ("single", "best_of_8", "learned_8")]
    assert [row["name"] for row in evolution["systems"]] == names
    assert "Difference to round_0/single, paired" in said
    first, second = evolution["rounds"]
    assert (first["system"], second["system"]) == ("best_of_8", "learned_tree")
    assert first["played"] == second["played"] == PER_ROUND
    assert second["demonstrations"] == first["kept"] + second["kept"] > 2
    assert min(first["search_tokens"], second["search_tokens"], second["trained_tokens"]) > 100
    train, held_out = ({q.id for q in read_questions(able / "data" / f"{name}.jsonl")} for name in ("train", "eval"))
    played = [{e.question_id for e in read_episodes(Place.of(whole, n).played / "episodes" / "policy" / "single.jsonl")}
              for n in (1, 2)]  # fmt: skip
    assert played[0] | played[1] == train
    assert not played[0] & played[1]
    assert not held_out & train
    for name in ("table.md", "evolution.png"):
        assert (whole / name).stat().st_size > 100

    process = start(command(able, out))
    wait_for(process, Place.of(out, 1).policy / "demonstrations.jsonl")
    child = child_of(process)
    process.kill()
    os.kill(child, signal.SIGKILL)
    process.wait()
    process = start(command(able, out))
    wait_for(process, Place.of(out, 2).played / "outcomes" / "policy" / "learned_tree.jsonl")
    process.send_signal(signal.SIGTERM)
    said = process.communicate()[0]
    assert process.returncode == 143
    assert said.splitlines()[-1] == "stopped; re-run the same command to resume"
    assert not re.search("round 1, (playing|training the scorer|choosing)", said)
    finish(command(able, out))
    assert ends(out) == ends(whole)
