"""What a server says that it serves must be the policy's base, as far as that can be seen from here."""

import shutil

from forage.engines.vllm import check_root
from forage.policy.base_models import base_digest
from forage.policy.manifest import PolicyManifest
from tests.refusals import refused
from tests.tiny import make_model


def manifest_of(base, digest=""):
    return PolicyManifest(None, str(base), str(base), False, full_base_digest=digest)


def test_the_same_base_under_any_name_is_served(tiny_base, tmp_path):
    copy = shutil.copytree(tiny_base, tmp_path / "copy")
    (tmp_path / "link").symlink_to(copy)
    for root in (
        tiny_base,
        tiny_base / ".." / "base",
        copy,
        tmp_path / "link",
        "",
        "/a/folder/that/only/the/server/sees",
    ):
        check_root(str(root), manifest_of(tiny_base), "the server")
    check_root(str(copy), manifest_of("Someone/Model", base_digest(tiny_base)), "the server")  # known by its digest
    check_root("Someone/Model", manifest_of("Someone/Model"), "the server")


def test_another_base_is_refused(tiny, tiny_base, tmp_path):
    other = shutil.copytree(tiny_base, tmp_path / "base")  # the same name, the same shapes
    make_model(seed=1).save_pretrained(other)
    for root, asked in (
        (other, tiny_base), (tiny / "policy", tiny_base), ("Someone/Model", tiny_base), (tiny_base, "Someone/Model"),
    ):  # fmt: skip
        with refused(f"the server serves {root}, not {asked}; start it with that model"):
            check_root(str(root), manifest_of(asked), "the server")
