"""docs/recipes/nfcorpus.md: its commands on a folder with NFCorpus's files and field names, to nDCG by hand."""

import json
import math

import pytest

from forage.data.records import read_questions
from tests.recipes.run import calls_of, run

CORPUS = {
    "MED-10": ("Statin use and breast cancer survival", "Statins were taken by patients with breast cancer."),
    "MED-14": ("Statins after a diagnosis", "Patients on a statin lived longer."),
    "MED-118": ("Bones in winter", "Bones and vitamin D, and bones again: vitamin D in winter."),
    "MED-301": ("Sunlight", "Vitamin D comes from the sun and keeps bones strong, as a study of many years has found."),
    "MED-306": ("Hair", "Mercury in hair."),
    "MED-329": ("Fish", "Omega-3 in fish and what it does to the heart."),
    "MED-330": ("Tea", "Green tea in the morning."),
}
QUERIES = {
    "PLAIN-2": "breast cancer statin", "PLAIN-12": "vitamin D bones", "PLAIN-23": "fish heart",
    "PLAIN-33": "hair mercury", "PLAIN-44": "green tea",
}  # fmt: skip
QRELS = {
    "train": [("PLAIN-23", "MED-329", 2), ("PLAIN-44", "MED-330", 1)],
    "dev": [("PLAIN-33", "MED-306", 1)],
    "test": [("PLAIN-2", "MED-10", 2), ("PLAIN-2", "MED-14", 1), ("PLAIN-12", "MED-301", 1)],
}


def write_collection(folder):
    (folder / "qrels").mkdir(parents=True)
    corpus = [
        {"_id": name, "title": title, "text": text, "metadata": {"url": f"http://www.ncbi.nlm.nih.gov/pubmed/{n}"}}
        for n, (name, (title, text)) in enumerate(CORPUS.items())
    ]
    queries = [
        {"_id": name, "text": text, "metadata": {"url": f"http://nutritionfacts.org/{name}"}}
        for name, text in QUERIES.items()
    ]
    for name, rows in (("corpus", corpus), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for split, rows in QRELS.items():
        lines = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, row)) for row in rows)]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(lines) + "\n")


def test_the_commands(here, monkeypatch):
    write_collection(here / "nfcorpus")
    prepare, evaluate = [call for call in calls_of("nfcorpus.md") if call]
    run(prepare, "--embedder", "none")
    train, held_out = (read_questions(here / f"data/nfcorpus/{name}.jsonl") for name in ("train", "eval"))
    assert [question.id for question in train] == ["PLAIN-23", "PLAIN-44"]
    assert {question.id: question.question for question in held_out} == {
        name: QUERIES[name] for name in ("PLAIN-2", "PLAIN-12")
    }
    run(evaluate, "--engine", "local", "--mode", "sparse", "--max-turn-tokens", "8", "--max-turns", "2")
    found = json.loads((here / "runs/nfcorpus/eval.json").read_text())
    assert (found["unit"], found["questions"], found["agent"]["k"]) == ("document", 2, 10)
    plain, single = found["systems"]
    assert (plain["system"], single["system"]) == ("plain_rag", "single")
    # PLAIN-2 finds both in the right order; PLAIN-12 finds MED-118 before what is relevant.
    assert plain["metrics"]["ndcg@10"]["mean"] == pytest.approx((1 + 1 / math.log2(3)) / 2, abs=1e-6)
    assert plain["metrics"]["mrr"]["mean"] == pytest.approx(0.75)
    assert not {"answer_similarity", "token_f1"} & plain["metrics"].keys()
    assert "ndcg@10" in single["over_reference"]
