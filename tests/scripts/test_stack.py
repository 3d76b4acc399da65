"""scripts/stack.sh: what it runs follows from .env, the environment and the GPUs, and no line of .env is ever run."""

import os
import re
import shlex
import shutil
import subprocess
from functools import partial

import pytest

from forage.grpo.own_server import row_of
from tests import ROOT
from tests.pages import parsed, python_call
from tests.stand_ins import machine_with


def stack(verb, env_file, **settings):
    plain = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(
        ["bash", ROOT / "scripts" / "stack.sh", verb], capture_output=True, text=True,
        env=plain | {"ENV_FILE": str(env_file), "DEVICE": "cpu"} | settings,
    )  # fmt: skip


@pytest.fixture
def cards(tmp_path):
    """Settings of a machine with GPUs; cards(n) has n of them, by default of 24 GB."""
    return partial(machine_with, tmp_path / "bin")


def shown(env_file, *names, **settings):
    done = stack("show", env_file, **settings)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    return [next(line for line in lines if name in line) for name in names] if names else done.stdout


def test_all_processes_agree_on_how_episodes_are_played(tmp_path):
    env_file = tmp_path / "env"
    env_file.write_text(
        "# a remark\nMAX_STEPS=12\nTRAIN_ARGS=--beta 0.01 --advantage rloo\nNUM_ROLLOUTS=4\n"
        f"VLLM_ARGS=$(touch {tmp_path}/run)\n"
    )
    train, rollout = shown(env_file, "grpo_train.py", "grpo_rollout.py", NUM_ROLLOUTS="6")
    assert "--max-steps 12" in train
    assert train.endswith("--beta 0.01 --advantage rloo")
    shared = rollout.split("--data ")[1].split()  # the same options, word for word
    assert train.split("--data ")[1].split()[: len(shared)] == shared
    assert "--num-rollouts 6" in rollout  # the environment goes before the file
    assert not (tmp_path / "run").exists()


def test_the_scripts_take_their_commands(tmp_path, cards):
    """Each, in every form; `parsed` ends the test where one is refused."""
    for settings in ({}, cards(4), {"OFFLOAD": "all", "SERVE": "bf16"}):
        calls = [
            python_call(shlex.split(line)) for line in shown(tmp_path / "none", TASK="Answer", **settings).splitlines()
        ]
        modules = [module for module, arguments in filter(None, calls) if parsed(module, arguments)]
        assert {"data_prep", "create_lora_model", "sft_train", "grpo_train", "grpo_rollout"} <= set(modules)


def test_lines_of_env_are_read_as_docker_reads_them(tmp_path, cards):
    env_file = tmp_path / "env"
    env_file.write_bytes(
        b"RUN=\"second\"\r\nBATCH_SIZE=16   # questions\nROLLOUT_ARGS='--seed 4 --concurrency 5'\n"
        b"NUM_ROLLOUTS=6  \nMAX_STEPS=5"  # the last line, without an end
    )
    text = shown(env_file)
    assert "--run-dir ./runs/second --engine" in text
    assert "--batch-size 16 --num-rollouts 6 " in text
    assert "--seed 4 --concurrency 5" in text
    assert "--max-steps 5 " in text
    # Each line of the example may be taken as it stands.
    example = (ROOT / ".env.example").read_text()
    env_file.write_text("".join(f"{line.removeprefix('# ')}\n" for line in example.splitlines() if "=" in line))
    text = shown(env_file, **cards())
    plain = shown(tmp_path / "none", CHROMA_URL="http://chroma:8000", **cards())
    told = (
        " --k 3 --passage-tokens 120 --mode hybrid --max-turns 4 --max-turn-tokens 512 --max-tokens 2048"
        " --task Answer the medical question from a library"
    )
    assert text.count(told) == 3  # warm start, rollout and training; without .env the policy tells the latter two
    assert plain.count(told) == 1
    assert text.replace(told, "") == plain.replace(told, "")
    assert "#" not in text.replace("# once", "").replace("# pane", "")


def test_what_nothing_reads_is_refused_and_what_is_set_stays(tmp_path, cards):
    env_file = tmp_path / "env"
    env_file.write_text("BATCHSIZE=4\n")
    done = stack("prepare", env_file, SHARED=str(tmp_path / "shared"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: {env_file}: nothing reads BATCHSIZE; is it BATCH_SIZE?\n"
    assert not (tmp_path / "shared").exists()
    env_file.write_text("VLLM_GPU_MEMORY=0.5\nTRAIN_ARGS=--token-budget 7\nCARD=24\n")
    done = stack("show", env_file, **cards(mib=81559))
    assert "vLLM has 0.5 of GPU 0 and serves nf4" in done.stderr
    assert done.stdout.strip().endswith("--token-budget 4096 --gradient-checkpointing --token-budget 7")


@pytest.mark.parametrize(
    ("there", "vllm", "train", "served", "trained"),
    [
        (2, "", "", "0.9 of GPU 0", "1"),
        (2, "1", "", "0.9 of GPU 1", "0"),
        (2, "", "0", "0.9 of GPU 1", "0"),
        (2, "1", "1", "0.49 of GPU 1", "1"),
        (4, "3", "0,1", "0.9 of GPU 3", "0,1"),
    ],
)
def test_the_gpus_that_each_takes(tmp_path, cards, there, vllm, train, served, trained):
    told = stack("show", tmp_path / "none", **cards(there), VLLM_GPUS=vllm, TRAIN_GPUS=train).stderr
    assert told.startswith(f"GPUs: vLLM has {served} and serves nf4, the trainer has {trained} with")


@pytest.mark.parametrize(
    ("mib", "size"), [(22580, 24), (24564, 24), (40960, 40), (46068, 48), (81559, 80), (143771, 80)]
)
def test_a_cards_row_is_the_largest_that_it_has_the_memory_for(tmp_path, cards, mib, size):
    row = re.search(rf"^{size} +(\w+) +(\S+) +(.*)", (ROOT / "scripts/cards.txt").read_text(), re.MULTILINE)
    serve, share, flags = row.groups()
    told = stack("show", tmp_path / "none", **cards(mib=mib)).stderr
    assert told == f"GPUs: vLLM has {share} of GPU 0 and serves {serve}, the trainer has 0 with {flags}\n"
    assert row_of(mib * 2**20 / 1e9) == [serve, share, *flags.split()]  # for a server that a run starts by itself


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "a GPU of 17 GB is too small .*; set a smaller BASE_MODEL .* VLLM_GPU_MEMORY"),
        ({"TRAIN_GPUS": "1"}, r"there is no GPU 1 \(VLLM_GPUS=0, TRAIN_GPUS=1\); give numbers of nvidia-smi, 0 to 0"),
        ({"TRAIN_GPUS": "a[$(touch {ran})]"}, "there is no GPU a"),
        ({"TRAIN_PROCESSES": "2"}, "TRAIN_PROCESSES=2 takes as many GPUs"),
        ({"VLLM_GPU_MEMORY": "2"}, "VLLM_GPU_MEMORY=2 is no share of a GPU"),
        ({"PATH": "/bin"}, "there is no GPU: nvidia-smi does not answer"),
    ],
)
def test_gpus_that_can_not_be_are_refused_in_one_line(tmp_path, cards, settings, says):
    told = {name: value.format(ran=tmp_path / "ran") for name, value in settings.items()}
    done = stack("prepare", tmp_path / "none", **cards(mib=16384) | {"SHARED": str(tmp_path / "shared")} | told)
    assert done.returncode == 1
    assert re.match(f"error: {says}", done.stderr)
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.glob("ran")) + list(tmp_path.glob("shared"))


# Starting the services on GPUs


@pytest.fixture
def prepared(tmp_path, cards):
    """prepared(n): settings of a machine with n cards on which prepare has gone through."""

    def prepare(count, env_file=None, **more):
        shared = tmp_path / f"shared{count}"
        python = str(tmp_path / "bin" / "python")
        settings = cards(count) | {"PY": python, "VLLM_PY": python, "SHARED": str(shared)} | more
        done = stack("prepare", env_file or tmp_path / "none", **settings)
        assert done.returncode == 0, done.stderr
        (shared / "models" / "served").mkdir()
        return settings, done

    return prepare


def test_one_card_is_shared_and_the_trainer_waits_for_the_server(tmp_path, prepared):
    settings, done = prepared(1)
    assert "GPUs: " in done.stderr
    vllm = stack("vllm", tmp_path / "none", **settings).stdout
    assert "--gpu-memory-utilization 0.49 --max-num-seqs 64 --enable-lora" in vllm
    assert "gpus=0 order=PCI_BUS_ID -m vllm.entrypoints" in vllm
    assert "--max-lora-rank 16 " in vllm
    # vLLM takes some ranks alone; an adapter may have a lower one than the server.
    assert "--max-lora-rank 32 " in stack("vllm", tmp_path / "none", **settings, LORA_RANK="24").stdout
    (tmp_path / "bin" / "Python.h").unlink()
    refused = stack("vllm", tmp_path / "none", **settings)
    assert refused.returncode == 1
    assert f"needs gcc and Python.h in {tmp_path / 'bin'}; install" in refused.stderr
    assert "gpus= order" in stack("rollout", tmp_path / "none", **settings | {"PATH": os.environ["PATH"]}).stdout
    done = stack("train", tmp_path / "none", **settings)
    assert done.stderr == "per_process_memory_fraction:0.48\n"  # the rest is vLLM's, and CUDA's own
    in_turns = stack("train", tmp_path / "none", **settings, TRAIN_ARGS="--rollouts own --vllm-sleep")
    assert in_turns.stderr == "\n"  # each has the whole card
    train = done.stdout.splitlines()
    assert train[0].startswith("asked -c")
    assert train[0].endswith("http://127.0.0.1:8100/health")
    assert "gpus=0 order=PCI_BUS_ID grpo_train.py" in train[1]
    assert train[1].endswith("--token-budget 4096 --gradient-checkpointing")
    [alone] = stack("train", tmp_path / "none", **settings, ENGINE="local").stdout.splitlines()  # waits for no server
    assert "--engine local" in alone


def test_settings_changed_after_something_was_made_by_them_are_refused(tmp_path, prepared):
    """Nothing would read them any more."""
    env_file, shared = tmp_path / "env", tmp_path / "shared1"
    settings, _ = prepared(1)
    for made in ("data/eval.jsonl", "models/policy/model.json", "models/warm/adapters/v000000"):
        (shared / made).parent.mkdir(parents=True, exist_ok=True)
        (shared / made).touch()
    again = stack("prepare", env_file, **settings)
    assert (again.returncode, again.stdout.count("there already")) == (0, 3)
    env_file.write_text("TEMPERATURE=0.8\nRUN=second\nMAX_STEPS=9\n")  # these may change from run to run
    assert stack("prepare", env_file, **settings).returncode == 0
    for line, folder in (("DATASET=sample", "data"), ("LORA_RANK=32", "models/policy"), ("K=5", "models/warm")):
        env_file.write_text(f"{line}\n")
        done = stack("prepare", env_file, **settings)
        assert done.returncode == 1
        assert f"error: {shared}/{folder} was made by `" in done.stderr
        assert f"or remove {shared}/{folder} to make it anew" in done.stderr
    on_cpu = stack("prepare", tmp_path / "none", **settings | {"DEVICE": "cpu"})
    assert f"error: {shared}/data was made for cuda, and this is the stack for cpu" in on_cpu.stderr
    shutil.rmtree(shared / "models" / "made")  # as a kill may have left it
    assert stack("prepare", env_file, **settings).returncode == 0


def test_every_knob_is_explained():
    """What scripts and compose files read stands in .env.example, and nothing else does."""
    stack_script = "".join((ROOT / name).read_text() for name in ("scripts/stack.sh", "cluster/node.sh"))
    files = [(ROOT / name).read_text() for name in ("docker-compose.yml", "docker-compose.cpu.yml")]
    read = set(re.findall(r"\$\{([A-Z][A-Z0-9_]+):?[-?+]", stack_script + "".join(files)))
    read |= set(re.findall(r"^ +([A-Z][A-Z0-9_]+):(?: #.*)?$", "".join(files), re.MULTILINE))  # passed on as they are
    explained = set(re.findall(r"^(?:# )?([A-Z][A-Z0-9_]+)=", (ROOT / ".env.example").read_text(), re.MULTILINE))
    own = {"PY", "VLLM_PY", "DEVICE", "SHARED", "ENV_FILE", "OMP_WAIT_POLICY"}  # set by images and compose themselves
    own |= {"CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "SLURM_JOB_ID"}  # of the machine
    own |= {"CARD_ARGS", "SHARED_GPU"}  # by choose_gpus
    assert read - own == explained
