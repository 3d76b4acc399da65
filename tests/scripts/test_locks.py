"""The lock files have what the requirement files ask for, each file by its hash and none by its host."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig

import pytest
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from forage.extras.doctor.checks import pins
from tests import ROOT

# Each lock, and the requirement files whose packages it has.
LOCKS = {
    "base": ("requirements.txt",),
    "cpu": ("requirements/cpu.txt",),
    "cuda": ("requirements/cuda.txt",),
    "models": ("requirements/models.txt",),
    "dev": ("requirements/dev.txt", "requirements/serving.txt", "requirements/trackers.txt"),
}
ENTRY = re.compile(r"^(\S+)==(\S+)(?: \\\n    --hash=sha256:[0-9a-f]{64})+\n((?:    # .+\n)+)", re.MULTILINE)
WAY_OUT = "a requirement file and its lock differ: make lock"


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_has_what_its_requirement_files_ask_for_and_nothing_they_dropped(name):
    asked = {
        canonicalize_name(package): bounds
        for file in LOCKS[name]
        for package, bounds in pins(file).items()
        if (file, package) != ("requirements.txt", "torch")  # which has a lock for each build
    }
    locked = {
        package: version
        for package, version, by in ENTRY.findall((ROOT / f"requirements/{name}.lock").read_text())
        if any(f"-r {file}\n" in by for file in LOCKS[name])
    }
    assert locked.keys() == asked.keys(), WAY_OUT
    assert [p for p in asked if not SpecifierSet(asked[p]).contains(locked[p], prereleases=True)] == [], WAY_OUT


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_is_nothing_but_packages_with_hashes_whichever_index_has_them(name):
    text = (ROOT / f"requirements/{name}.lock").read_text()
    assert re.sub(r"^#.*\n|^\n", "", ENTRY.sub("", text), flags=re.MULTILINE) == ""
    assert "://" not in text


@pytest.mark.skipif(
    (sysconfig.get_platform(), sys.version_info[:2]) != ("linux-x86_64", (3, 11)), reason="the locks are for another"
)
def test_a_package_of_another_hash_ends_the_installation_with_a_line(tmp_path):
    """The index is a folder with a setuptools of that version that is not the one whose hash is locked."""
    (tmp_path / "repo/scripts").mkdir(parents=True)
    (tmp_path / "index").mkdir()
    (tmp_path / "repo/requirements").mkdir()
    for path in [ROOT / "requirements.txt", *ROOT.glob("requirements/*"), *ROOT.glob("scripts/install*.sh")]:
        shutil.copy(path, tmp_path / "repo" / path.relative_to(ROOT))
    version = re.search("^setuptools==(.*) ", (ROOT / "requirements/base.lock").read_text(), re.MULTILINE)[1]
    (tmp_path / "index" / f"setuptools-{version}-py3-none-any.whl").write_bytes(b"something else")
    env = {**os.environ, "PYTHON": sys.executable, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "index")}
    done = subprocess.run(["scripts/install.sh"], cwd=tmp_path / "repo", env=env, capture_output=True, text=True)
    assert done.returncode == 1
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert done.stderr.splitlines()[-1] == (
        "error: pip can't get what the lock files name (above: why); with LOCK=no it chooses by requirements.txt"
    )
    assert not (tmp_path / "repo/.venv/.installed").exists()
