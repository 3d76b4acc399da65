"""The comparison of PPO and GRPO on a tiny model, and its table by hand."""

import json

import pytest

from bench import rewriting
from bench.expansion import WHOLE
from bench.rewriting import Options, Row, main, table
from forage.data.records import Document
from forage.store.document_store import DocumentStore
from forage.store.options import StoreOptions
from tests.tiny_rewriter import make_tiny


def row(arm, seed, recall, minutes=0.0):
    return Row("held-out", "2026-11-26", arm, seed, 0.0, "", {"recall@5": recall}, minutes=minutes)


def test_the_table_pairs_each_way_with_the_warm_start():
    rows = [row("the question", 0, [0, 0]), row("warm start", 0, [0, 1]), row("ppo", 2, [1, 1], 7.2)]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table(rows).splitlines()]
    assert cells[0] == ["", "seed", "recall@5", "recall@5 over the warm start", "minutes"]
    assert cells[2][:3] == ["the question", "", "0.000"]
    assert cells[2][3].startswith("-0.500 (")
    assert cells[3] == ["warm start", "", "0.500", "", ""]
    # Differences 1 and 0: both draws may be 0, so it is not clear of zero.
    assert cells[4] == ["ppo", "2", "1.000", "+0.500 (0.000 to 1.000)", "7"]


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
