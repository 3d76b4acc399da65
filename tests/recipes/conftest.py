"""Each page's reader."""

import pytest


@pytest.fixture
def here(tiny, tmp_path, monkeypatch):
    """The reader's folder, with the policies that the stages before leave."""
    (tmp_path / "models").mkdir()
    for name in ("policy", "warm"):
        (tmp_path / "models" / name).symlink_to(tiny / "policy")
    monkeypatch.chdir(tmp_path)
    return tmp_path
