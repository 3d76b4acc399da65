"""What a run will write, by hand, and a disk that can't hold it."""

import pytest

from forage.errors import UserError
from forage.grpo.disk_use import TOKEN_BYTES, DiskUse, check_room, disk_use
from forage.grpo.options import KeepOptions, TrainOptions
from forage.rollout.options import RolloutOptions


def options_of(run_dir, **keep):
    return TrainOptions(
        RolloutOptions(batch_size=2, num_rollouts=4), run_dir=run_dir, max_steps=20, eval_every=10, eval_questions=3,
        keep=KeepOptions(**keep),
    )  # fmt: skip


def test_what_is_still_to_be_written_by_hand(tmp_path):
    """Among 0 to 20, 0, 10 and the last seven stay, and 0 is there; from 5, 15 steps and 2 evaluations are left."""
    start = tmp_path / "v000000"
    start.mkdir()
    (start / "adapter_model.safetensors").write_bytes(b"x" * 1000)
    (tmp_path / "run" / "adapters" / "v000000").mkdir(parents=True)
    needs = disk_use(options_of(tmp_path / "run", keep_adapters=7), start, 5, 100)
    assert needs == DiskUse(8, 1000, (15 * 8 + 2 * 3) * 100 * TOKEN_BYTES)
    assert needs.certain == 8 * 1000 + 2 * 3 * 1000
    assert disk_use(options_of(tmp_path / "run", keep_adapters=0), start, 5, 100).adapters == 20


def test_a_disk_without_the_room_is_refused_before_the_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("Usage", (), {"free": 14 * 2**20}))
    check_room(DiskUse(8, 2**20, 2**30), tmp_path)  # just enough, though episodes may be longer than that
    said = (
        f"{tmp_path} will hold 8 more adapters of 1.0 MiB, a checkpoint of 3.0 MiB and at most 1,024.0 MiB of episodes"
    )
    assert said in capsys.readouterr().out
    with pytest.raises(UserError, match=r"has 14\.0 MiB free, but adapters and checkpoints need 15\.0 MiB; free some"):
        check_room(DiskUse(9, 2**20, 0), tmp_path)
