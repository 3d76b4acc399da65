"""Who may write an output folder, and what is cleared away in it."""

from forage.files import clear_half_written, clear_superseded, empty_folder, filling_folder, making_folder
from forage.runs.run_folder import run_folder
from tests.refusals import refused


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_what_a_killed_process_left_is_cleared_and_nothing_else(tmp_path):
    """A user's hidden names may look like any that a library makes."""
    users = [".app.settings/a", ".draft.12.part", ".env", ".git/config", ".my.aside/b", "a/x.part"]
    for name in (".x.1.forage", ".v000001.a1b2c3d4.forage/half", *users):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    clear_half_written(tmp_path)
    assert [name for name in names(tmp_path) if (tmp_path / name).is_file()] == users


def test_a_run_leaves_hidden_folders_of_the_users_alone(tmp_path):
    for name in ("adapters/.git/config", "state/.my.projects/thesis", ".lock"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("mine")
    before = names(tmp_path)
    with run_folder(tmp_path):
        pass
    assert names(tmp_path) == before
    assert (tmp_path / ".lock").read_text() == "mine"


def test_only_the_newest_checkpoint_stays(tmp_path):
    """random-000012 belongs to a checkpoint that was not written any more."""
    for name in ("000003", "000010", ".000011.a1b2c3d4.forage"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "kept.json").touch()
    for name in ("random-000003.safetensors", "random-000010.safetensors", "random-000012.safetensors", "notes"):
        (tmp_path / name).touch()
    clear_superseded(tmp_path)
    left = [".000011.a1b2c3d4.forage", "000010", "notes", "random-000010.safetensors", "random-000012.safetensors"]
    assert sorted(path.name for path in tmp_path.iterdir()) == left
    clear_superseded(tmp_path / "state")  # there is none yet


def test_a_folder_is_filled_by_one_process_at_a_time(tmp_path):
    with filling_folder(tmp_path / "data", "rewriter"):
        told = r"data is being written by another process; wait until it ends, or give another --output-dir"
        with refused(told), filling_folder(tmp_path / "data"):
            pass
    (tmp_path / "data" / "rewriter").mkdir()
    (tmp_path / "data" / "rewriter" / ".train.jsonl.7.forage").touch()
    with filling_folder(tmp_path / "data", "rewriter"):
        assert names(tmp_path) == ["data", "data/.lock", "data/rewriter"]


def test_a_folder_is_made_by_one_process_at_a_time_and_not_twice(tmp_path):
    policy = tmp_path / "policy"
    (tmp_path / ".policy.a1b2c3d4.forage").mkdir()
    (tmp_path / ".policy2.a1b2c3d4.forage").mkdir()  # another's, which may be at work
    with making_folder(policy) as partial:
        (partial / "model.json").touch()
        with refused("is being written by another process"), making_folder(policy):
            pass
    assert names(tmp_path) == [".policy2.a1b2c3d4.forage", "policy", "policy/model.json"]
    with refused("was made by another process meanwhile"), making_folder(policy):
        pass
    with making_folder(policy, overwrite=True) as partial:
        (partial / "other").touch()
    assert names(policy) == ["other"]


def test_an_emptied_folder_stays_locked(tmp_path):
    (tmp_path / "state" / "000001").mkdir(parents=True)
    (tmp_path / "stats.jsonl").touch()
    with filling_folder(tmp_path):
        empty_folder(tmp_path, mark="config.json")
        assert names(tmp_path) == [".lock"]
        with refused("another process"), filling_folder(tmp_path):
            pass
