"""Bugs that raise no error, put into a copy of this checkout one at a time: does a run stop, or a test fail?

    python -m bench.silent_bugs --work runs/silent_bugs              a row for each, those of KEPT last
    python -m bench.silent_bugs --work runs/silent_bugs --only "the base samples"
    python -m bench.silent_bugs --work runs/silent_bugs --trl        the same bugs in TRL's GRPOTrainer

Each is an edit like a bug that another project had. A model of 512 tokens is shown the protocol until it searches and
answers; then a broken copy trains it for four steps, resumes, and trains it for two more. A run stops with an error.
What its page shows is a note, or a figure that lies as far outside ten clean runs, of other seeds and settings, as
these lie apart. The test is the first to fail of those that lie nearest. A guard may be tuned on BUGS; KEPT are looked
at last. TRL's figures are held to the same criterion; its tests are not in its package, so none is run.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.harness import said_by_peer
from bench.step import write_tokenizer
from forage.arguments import run_script
from forage.errors import UserError
from forage.files import write_jsonl
from forage.runs.stats import StepStats, lessons, read_stats

Figures = dict[str, Any]
ROOT = Path(__file__).resolve().parents[1]
TRAIN = (
    "--engine local --mode sparse --max-turns 3 --max-turn-tokens 48 --batch-size 4 --num-rollouts 8 --temperature 0.8 "
    "--epochs 2 --beta 0.01 --learning-rate 3e-4 --token-budget 600 --eval-every 2 --report-to none"
)
CLEAN = (
    "--seed 0", "--seed 1", "--seed 2", "--seed 3 --loss gspo", "--seed 4 --loss cispo",
    "--seed 5 --advantage reinforce++", "--seed 6 --epochs 1", "--seed 7 --temperature 1", "--seed 8 --beta 0",
    "--seed 9 --learning-rate 1e-3",
)  # fmt: skip
PREPARE = """
import sys
from pathlib import Path
import sft_train
from tests.tiny import make_tiny
from tests.tiny_training import tiny_sft
tiny = make_tiny(Path(sys.argv[1]))
shape = {"max_turns": 3, "max_turn_tokens": 48, "batch_size": 6, "learning_rate": 0.02}
sft_train.main(tiny_sft(tiny, tiny / "warm", max_steps=300, eval_every=100, **shape))
"""
FOLDERS = ("bench", "docs", "forage", "requirements", "sample_data", "scripts", "tests")
LOCAL, PACKING, ROLLOUT = "forage/engines/local.py", "forage/policy/packing.py", "forage/rollout/rollout.py"
AGENT, REWARDS = "forage/agent/agent.py", "forage/agent/rewards.py"
UPDATE, LOSSES = "forage/grpo/update.py", "forage/grpo/losses.py"
ENGINE_TESTS, AGENT_TESTS = "tests/engines/test_local.py", "tests/agent"
UPDATE_TESTS = "tests/grpo/test_losses.py tests/grpo/test_update.py tests/grpo/test_any_update.py"
SCRIPT_TESTS = "tests/rollout/test_plans.py tests/policy/test_checkpoint.py tests/scripts/test_grpo_train.py"
HEAD_TESTS = "tests/policy/test_head.py tests/policy/test_logprobs.py"


@dataclass(frozen=True)
class Bug:
    name: str
    issue: str
    """Where one like it was reported."""
    file: str
    old: str
    """Stands in the file once."""
    new: str
    tests: str
    """Those that lie nearest."""
    also: tuple[tuple[str, str, str], ...] = ()
    """What makes it matter: edits of other files."""

    @property
    def edits(self) -> tuple[tuple[str, str, str], ...]:
        return (self.file, self.old, self.new), *self.also


BUGS = (
    Bug("the base samples", "unslothai/unsloth#8701", LOCAL,
        "self._hooks.append(layer.register_forward_hook(adding(layer, change)))", "del layer, change", ENGINE_TESTS),
    Bug("the first adapter samples for ever", "huggingface/trl#5312", LOCAL,
        "        self.unload_adapter()\n        weights =",
        "        if self._hooks:\n            self.adapter = name\n            return\n        weights =",
        ENGINE_TESTS),
    Bug("an adapter at half its scale", "verl-project/verl#5325", LOCAL,
        'scale = config["lora_alpha"] /', 'scale = 0.5 * config["lora_alpha"] /', ENGINE_TESTS),
    Bug("keys of the last adapter are used again", "NVIDIA-NeMo/RL#4018", LOCAL,
        'slot.ids, slot.episode = [], ""\n        self._free_idle()', 'slot.episode = ""\n        self._free_idle()',
        ENGINE_TESTS),
    Bug("the likeliest 20 sampled, all scored", "modelscope/ms-swift#8442", LOCAL,
        "inverse_cdf((logits_RV - top_R1).exp_(), draws_R)",
        "inverse_cdf((logits_RV - top_R1).exp_() * (logits_RV >= logits_RV.topk(20).values[:, -1:]), draws_R)",
        ENGINE_TESTS, ((LOCAL, "totals_R.log()", "(logits_RV - top_R1).logsumexp(-1)"),)),
    Bug("all samples have one seed", "modelscope/ms-swift#7858", AGENT,
        "{seed}/{episode}/{turn}", "{seed}/{episode.split('/')[0]}/{turn}", AGENT_TESTS),
    Bug("the mask goes a token too far", "verl-project/verl#5362", AGENT,
        "self.mask += [0] * len(ids)", "self.mask += [1] + [0] * (len(ids) - 1)", AGENT_TESTS),
    Bug("a tool's tokens are learnt", "unslothai/unsloth#5673", AGENT,
        "self.mask += [0] * len(ids)", "self.mask += [1] * len(ids)", AGENT_TESTS),
    Bug("the end of a turn is not learnt", "verl-project/verl#3562", AGENT,
        "self.mask += tokens.mask", "self.mask += (*tokens.mask[:-1], 0)", AGENT_TESTS),
    Bug("a turn's tokens are made again", "huggingface/trl#5224", AGENT,
        "        episode.add_turn(turn, reading)",
        "        again = self.protocol.encode(self.protocol.text(turn.ids)) + [turn.ids[-1]]\n"
        "        again = tuple(again[: len(turn.ids)] + [*turn.ids[len(again) :]])\n"
        "        episode.add_turn(replace(turn, ids=again), reading)", AGENT_TESTS),
    Bug("a failed rollout earns 0", "rllm-org/rllm#710", ROLLOUT,
        'if causes := [episode.cause for episode in episodes if episode.stop == "engine"]:',
        'if causes := list[str]():', "tests/rollout tests/grpo/test_players.py tests/grpo/test_update.py",
        ((LOCAL, "        future: asyncio.Future[Sample] =",
          '        if request.seed % 8 == 0:\n            raise EngineError("lost")\n'
          "        future: asyncio.Future[Sample] ="),)),
    Bug("rewards in another order", "verl-project/verl#2185", REWARDS,
        "for row in rewards_NR.tolist()", "for row in rewards_NR[::-1].tolist()", AGENT_TESTS),
    Bug("a missing reward is 0", "huggingface/trl#5902", REWARDS,
        "np.asarray(given, dtype=np.float64)  # None", "np.nan_to_num(np.asarray(given, dtype=np.float64))  # None",
        AGENT_TESTS),
    Bug("groups are mixed", "THUDM/slime#1918", UPDATE,
        "np.array([episode.question_id for episode in usable])",
        "np.roll([episode.question_id for episode in usable], 3)", UPDATE_TESTS),
    Bug("the loss leaves out the temperature", "huggingface/trl#3029", "forage/grpo/training.py",
        "UpdateContext(options.update, options.rollout.temperature, shared",
        "UpdateContext(options.update, 1.0, shared", "tests/grpo tests/scripts/test_grpo_train.py"),
    Bug("the old policy is the new one", "PrimeIntellect-ai/verifiers#320", UPDATE,
        "    if old_BT is None:", "    if True:", UPDATE_TESTS),
    Bug("each micro-batch has a mean of its own", "modelscope/ms-swift#10117", LOSSES,
        "return mask_BT.float() / max(totals.tokens, 1)", "return mask_BT.float() / mask_BT.sum().clamp(min=1)",
        UPDATE_TESTS),
    Bug("the KL term with the other sign", "mll-lab-nu/RAGEN#58", LOSSES,
        "terms_BT = terms_BT + options.beta *", "terms_BT = terms_BT - options.beta *", UPDATE_TESTS),
    Bug("the reference moves along", "GMISWE/tinker-cloud#16", UPDATE,
        "learner.kept(REFERENCE, part, temperature)", "learner.score_frozen(part, temperature)", UPDATE_TESTS),
    Bug("positions are one off after what is shared", "OpenRLHF/OpenRLHF#217", PACKING,
        "positions += range(shared, len(row))", "positions += range(shared + (shared > 0), len(row) + (shared > 0))",
        "tests/policy/test_packing.py"),
    Bug("held out are the questions trained on", "OpenRLHF/OpenRLHF#1089", "forage/data/splits.py",
        '"eval": read_held_out(data)', '"eval": read_train(data)', "tests/data tests/scripts/test_grpo_train.py"),
)  # fmt: skip
KEPT = (
    Bug("one kind of layer is not loaded", "vllm-project/vllm#55193", LOCAL,
        '            layer = self.model.get_submodule(key.removesuffix(".weight"))',
        '            if "down_proj" in key:\n                continue\n'
        '            layer = self.model.get_submodule(key.removesuffix(".weight"))', ENGINE_TESTS),
    Bug("resumed with a fresh optimizer", "thinking-machines-lab/tinker-feedback#126", "forage/policy/checkpoint.py",
        "    optimizer.load_state_dict(state)\n", "", SCRIPT_TESTS),
    Bug("packed rows see each other", "THUDM/slime#1686", PACKING,
        "_ranges(ways[-1])))", "((0, len(ids) + len(row) - shared),)))", "tests/policy/test_packing.py"),
    Bug("logits in bf16", "OpenRLHF/OpenRLHF#634", "forage/policy/precision.py",
        "return logits_NV.float()", "return logits_NV.bfloat16().float()", HEAD_TESTS),
    Bug("resumed at the first questions", "allenai/open-instruct#1523", "forage/rollout/plans.py",
        "in_rounds(ids, step, options", "in_rounds(ids, step % 4, options", SCRIPT_TESTS),
)  # fmt: skip
NOT_IN_TRL = {"packed rows see each other": "can't be made: it pads rows, and packs none"}


@dataclass(frozen=True)
class Options:
    """Options of the benchmark."""

    work: Path = Path("runs/silent_bugs")
    """Copies, runs and what was found; what is there is not done again."""
    only: tuple[str, ...] = ()
    """Names of bugs; left out: all."""
    trl: bool = False
    """Put them into TRL's GRPOTrainer (bench/peers/silent_bugs_trl.py), in .venv-peers."""


def main(options: Options) -> None:
    work = options.work.resolve()
    prepare(work)
    clean = [
        trl_ran(work, f"clean {number}") if options.trl else ran(ROOT, work, f"clean {number}", flags)
        for number, flags in enumerate(CLEAN)
    ]
    for number, (says, _) in enumerate(clean):
        print(f"clean {number}, {CLEAN[number]}: {says or 'nothing was noticed'}")
        others = [figures for _, history in clean[:number] + clean[number + 1 :] for figures in history]
        print(f"... its page, beside the other nine: {unusual(clean[number][1], others) or 'nothing unusual'}")
    usual = [figures for _, history in clean for figures in history]
    chosen = [bug for bug in (*BUGS, *KEPT) if not options.only or bug.name in options.only]
    for tests in sorted({bug.tests for bug in chosen if not options.trl}):
        if failed := once(work / "found" / f"{tests.replace('/', '-')}.json", partial(without_bug, work, tests)):
            raise UserError(f"{failed} fails without a bug")
    print("\n| bug, and where one like it was reported | the run stops | its page shows | a test |\n|---|---|---|---|")
    for bug in chosen:
        seen = (look_at_trl if options.trl else look)(bug, work, usual)
        print(f"| {bug.name} ({bug.issue}) | {' | '.join(seen)} |", flush=True)


def prepare(work: Path) -> None:
    """A policy that knows the protocol, and questions of which one has no reference answer."""
    if (work / "tiny/tokenizer").exists():
        return
    shutil.rmtree(work / "tiny", ignore_errors=True)
    done = python(ROOT, "-c", PREPARE, str(work / "tiny"))
    if done.returncode:
        raise UserError(f"no policy was made: {done.stderr[-300:]}")
    train = work / "tiny/data/train.jsonl"
    rows = [json.loads(line) for line in train.read_text().splitlines()]
    write_jsonl(train, [rows[0] | {"answer": ""}, *rows[1:]])
    write_tokenizer(work / "tiny/warm", work / "tiny/tokenizer")


def look(bug: Bug, work: Path, usual: Sequence[Figures]) -> Any:
    """With what its run stops, what its page shows, and which test fails."""

    def found() -> Sequence[str]:
        stops, history = ran(copied(work / "copy", *bug.edits), work, bug.name, "--seed 0")
        return stops, unusual(history, usual), first_failing(copied(work / "copy", bug.edits[0]), bug.tests)

    return once(work / "found" / f"{bug.name}.json", found)


def look_at_trl(bug: Bug, work: Path, usual: Sequence[Figures]) -> Sequence[str]:
    if bug.name in NOT_IN_TRL:
        return NOT_IN_TRL[bug.name], "", ""
    stops, history = trl_ran(work, bug.name)
    if history and history == usual[: len(history)]:  # those of clean run 0
        raise UserError(f"{bug.name} changes nothing")
    return stops, unusual(history, usual), ""


def once(file: Path, find: Callable[[], Any]) -> Any:
    """What was found before, or is now."""
    if not file.exists():
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(find()))
    return json.loads(file.read_text())


def copied(copy: Path, *edits: tuple[str, str, str]) -> Path:
    """What runs and tests need of this checkout, as it stands but for these edits."""
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir(parents=True)
    for path in ROOT.iterdir():
        if path.name in FOLDERS:
            shutil.copytree(path, copy / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        elif path.suffix in (".py", ".toml"):
            shutil.copy2(path, copy)
    for file, old, new in edits:
        (copy / file).write_text(edited((copy / file).read_text(), old, new))
    return copy


def edited(text: str, old: str, new: str) -> str:
    if text.count(old) != 1:
        raise UserError(f"{old!r} stands there {text.count(old)} times; write the edit anew")
    return text.replace(old, new)


def ran(code: Path, work: Path, name: str, flags: str) -> tuple[str, list[Figures]]:
    """What a run of four steps and two more ended with, if it was an error; and its figures."""
    run = work / "runs" / name.replace(" ", "_")
    paths = ["--data", str(work / "tiny/data"), "--policy", str(work / "tiny/warm"), "--run-dir", str(run)]
    says = ""
    for steps in ("4", "6"):
        if (run / f"training_stats_{int(steps) - 1}.json").exists() or says:
            continue
        done = python(code, "grpo_train.py", *paths, *TRAIN.split(), *flags.split(), "--max-steps", steps)
        if done.returncode:
            says = next(
                (line for line in done.stderr.splitlines()[::-1] if "error" in line.lower()), done.stderr[-300:]
            )
    says = re.sub(r"[;.] (The last adapter|start it) .*", "", says.removeprefix("error: "))
    history = read_stats(run) if run.exists() else []
    return says, [figures_of(stats) for stats in history]


def figures_of(stats: StepStats) -> Figures:
    """With the page's note, if it has one."""
    note = {"note": said[0]} if (said := lessons(stats)) else {}
    return {"step": stats.step, **note, **stats.training}


def trl_ran(work: Path, name: str) -> tuple[str, list[Figures]]:
    """The same of TRL's, which logs an evaluation by itself."""
    return once(work / "trl" / f"{name}.json", partial(said_by_peer, "silent_bugs_trl.py", work / "tiny", name))


def python(code: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(code), "HF_HUB_OFFLINE": "1"}
    return subprocess.run([sys.executable, *command], cwd=code, capture_output=True, text=True, env=environment)


def unusual(history: Sequence[Figures], usual: Sequence[Figures]) -> str:
    """The first step with a note, or a figure further from the clean runs' than these are from each other."""
    for figures in history:
        for name, value in figures.items():
            if name == "note":
                return str(value)
            known = [each[name] for each in usual if name in each] or [value]
            reach = max(known) - min(known)
            if not min(known) - reach <= value <= max(known) + reach:
                step = figures["step"]
                return f"{name} {value:.3g} at step {step}, in clean runs {min(known):.3g} to {max(known):.3g}"
    return ""


def without_bug(work: Path, tests: str) -> str:
    return first_failing(copied(work / "copy"), tests)


def first_failing(code: Path, tests: str) -> str:
    done = python(code, "-m", "pytest", "-n0", "-x", "-m", "not slow and not vllm", *tests.split())
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return failed[1] if failed else ""


if __name__ == "__main__":
    run_script(main)
