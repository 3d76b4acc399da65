"""The comparison of PPO and GRPO on a tiny model."""

import json

import pytest

from bench import rewriting
from bench.expansion import WHOLE
from bench.rewriting import Options, main
from forage.data.records import Document
from forage.store.document_store import DocumentStore
from forage.store.options import StoreOptions
from tests.tiny_rewriter import make_tiny


def test_what_was_measured_is_not_measured_again(tmp_path, capfd, monkeypatch):
    make_tiny(tmp_path)
    passages = json.loads((tmp_path / "data" / "pubmed_corpus.json").read_text())
    DocumentStore.build(
        tmp_path / "data" / "store",
        [Document(row["doc_id"], "", row["text"]) for row in passages],
        StoreOptions("none"),
    )
    (tmp_path / "model").rename(tmp_path / "start")
    monkeypatch.setattr(
        rewriting, "IMITATED", ("--base-model", tmp_path / "start", "--warm-steps", 1, "--max-steps", 0)
    )
    options = Options(tmp_path / "data", tmp_path, tmp_path / "rows.jsonl", seeds=(3,), max_steps=1)
    main(options)
    lines = capfd.readouterr().out.splitlines()[-10:]
    ways = [
        "the question", "the first title found", "that, and what is asked", WHOLE, "warm start", "ppo", "grpo",
        "imitation",
    ]  # fmt: skip
    assert [line.split(" | ")[0] for line in lines[2:]] == [f"| {way}" for way in ways]
    monkeypatch.setattr(rewriting, "run", pytest.fail)
    main(options)
    assert capfd.readouterr().out.splitlines() == lines
