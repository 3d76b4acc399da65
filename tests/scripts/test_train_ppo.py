"""The whole stage on a tiny model: a run, a kill, bad data, every retriever, a reward of one's own."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import train_ppo
from document_store import StoreOptions
from forage.errors import UserError
from forage.rewriter.options import RewriteOptions
from forage.rewriter.rewards import CustomRewardModel
from forage.store.document_store import DocumentStore
from forage.store.embedder import PACKAGED_EMBEDDER
from tests.factories import tiny_cross_encoder
from tests.tiny_rewriter import make_tiny, metrics, run, tiny_args
from train_ppo import Options, batches_from, find_data, make_sample, open_search, read_data


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    make_tiny(folder)
    return folder


@pytest.fixture
def tokenizer(tiny):
    return AutoTokenizer.from_pretrained(tiny / "model")


@pytest.mark.parametrize("backend", ["trl", "own"])
def test_a_run_prints_saves_and_measures(tiny, tmp_path, capsys, backend):
    run(tiny_args(tiny, tmp_path, "--backend", backend, "--max-steps", "2", "--report-to", "tensorboard"))
    said = capsys.readouterr().out
    for episode in range(1, 9):
        assert f"Episode {episode}: Reward = " in said
    for way in ("raw query", "untrained", "query x 3 + untrained", "pseudo-answer (HyDE)", "query x 3 + trained"):
        assert way in said
    assert "query x 3 + trained over raw query" in said
    rows = metrics(tmp_path)
    wanted = {"objective/rlhf_reward", "val/ratio", "policy/entropy", "loss/policy_avg", "loss/value_avg",
              "objective/kl", "lr", "episode", "grad_norm"}  # fmt: skip
    assert all(wanted <= row.keys() for row in rows)
    assert [row["episode"] for row in rows] == [4, 8]
    ways = [json.loads(line) for line in (tmp_path / "evaluation.jsonl").read_text().splitlines()]
    assert ways[0]["way"] == "raw query"
    assert len(ways) == 7
    episodes = (tmp_path / "episodes" / "000002.jsonl").read_text().splitlines()
    assert len(episodes) == 4
    assert json.loads(episodes[0]).keys() == {"query", "written", "searched", "reward"}
    assert (tmp_path / "training.png").stat().st_size > 10_000
    assert list((tmp_path / "tensorboard").rglob("events*"))
    trained = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    source = AutoModelForCausalLM.from_pretrained(tiny / "model")
    assert not torch.equal(trained.lm_head.weight, source.lm_head.weight)


def start(args):
    environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
    return subprocess.Popen(
        [sys.executable, "train_ppo.py", *args],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["trl", "own"])
def test_a_killed_run_comes_to_the_same(tiny, tmp_path, backend):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    process = start(tiny_args(tiny, killed, "--backend", backend, "--save-every", "2", "--max-steps", "8"))
    deadline = time.time() + 200
    while not list((killed / "state").glob("0*")):
        assert process.poll() is None, process.communicate()
        assert time.time() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (killed / "model").exists()
    run(tiny_args(tiny, killed, "--backend", backend, "--save-every", "2", "--max-steps", "8"))
    run(tiny_args(tiny, whole, "--backend", backend, "--max-steps", "8"))
    assert len(metrics(whole)) == 8
    assert metrics(killed) == metrics(whole)
    for name in ("evaluation.jsonl", "episodes/000008.jsonl", "model/model.safetensors"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes()


def test_a_run_goes_on_under_its_own_options_alone(tiny, tmp_path, capsys):
    run(tiny_args(tiny, tmp_path, "--backend", "own", "--max-steps", "1"))
    with pytest.raises(UserError, match=r"--learning-rate 0\.001, not 0\.1"):
        run(tiny_args(tiny, tmp_path, "--backend", "own", "--learning-rate", "0.1"))
    run(tiny_args(tiny, tmp_path, "--backend", "own", "--max-steps", "2"))
    assert "going on from update 1" in capsys.readouterr().out
    run(tiny_args(tiny, tmp_path, "--backend", "own", "--max-steps", "2"))  # is finished
    assert len(metrics(tmp_path)) == 2


def test_every_query_is_trained_on_once_a_round_whatever_step_it_begins_at():
    class Plain:
        seed, ppo = 3, type("ppo", (), {"batch_size": 4})

    from tests.tiny_rewriter import tiny_rows

    rows = tiny_rows()
    batches = batches_from(0, Plain, rows, 99)
    first = [next(batches) for _ in range(3)]
    assert sorted(row.query for batch in first[:2] for row in batch.rows) == [row.query for row in rows]
    drawn = torch.rand(2)
    later = batches_from(2, Plain, rows, 99)
    assert next(later).rows == first[2].rows
    assert torch.equal(torch.rand(2), drawn)


class Longest(CustomRewardModel):
    """A user's: the more words the better."""

    def compute_reward(self, query, relevant_doc_ids):
        assert relevant_doc_ids[0].startswith("d")
        assert len(self.search([query])[0]) <= 3
        return float(len(query.split()))


def test_a_reward_of_ones_own_on_a_model_without_a_template(tmp_path, capsys):
    make_tiny(tmp_path, template=False)
    args = tiny_args(tmp_path, tmp_path / "run", "--reward", "tests.scripts.test_train_ppo:Longest", "--k", "3",
                     "--max-steps", "1", "--mode", "replace", "--lora-rank", "4")  # fmt: skip
    run(args)
    rewards = [json.loads(line)["reward"] for line in (tmp_path / "run/episodes/000001.jsonl").read_text().splitlines()]
    assert any(reward > 1 for reward in rewards)
    assert "trained over untrained" in capsys.readouterr().out
    AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model")


# Data


def write(folder, corpus, **files):
    (folder / "pubmed_corpus.json").write_text(json.dumps(corpus))
    for name, rows in files.items():
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    return folder


CORPUS = [
    {"doc_id": "a", "text": "Gout is sore."},
    {"doc_id": "b", "text": "Flu is hot."},
    {"doc_id": "a", "text": "x"},
]
GOUT = {"query": "What is gout?", "relevant_doc_ids": ["a"]}
FLU = {"query": "What is flu?", "relevant_doc_ids": ["b"]}


def test_bad_rows_are_told_by_their_line_and_counted(tmp_path, tokenizer, capsys):
    bad = [{"query": "", "relevant_doc_ids": ["a"]}, {"query": "x"}, {"query": "y", "relevant_doc_ids": ["z"]}]
    folder = write(tmp_path, CORPUS, train=[GOUT, *bad, GOUT], eval=[FLU, {"query": 7}, GOUT])
    data = read_data(Options(data=folder), tokenizer)
    said = capsys.readouterr().out
    for words in ("entry 3 repeats doc_id 'a'", "train.jsonl:2: no query", "train.jsonl:3: no relevant_doc_ids",
                  "train.jsonl:4: none of its", "train.jsonl:5: the query occurs before", "eval.jsonl:2: no relevant",
                  "1 queries are trained on as well", "7 rows with problems"):  # fmt: skip
        assert words in said
    assert [row.query for row in data.train] == ["What is gout?"]
    assert [row.query for row in data.held_out] == ["What is flu?"]


def test_without_eval_a_part_is_held_out_by_document(tmp_path, tokenizer):
    corpus = [{"doc_id": f"d{n}", "text": f"t{n}"} for n in range(10)]
    rows = [{"query": f"{word} {n}", "relevant_doc_ids": [f"d{n}"]} for n in range(10) for word in ("who", "what")]
    data = read_data(Options(data=write(tmp_path, corpus, train=rows), eval_queries=0), tokenizer)
    assert (len(data.train), len(data.held_out)) == (16, 4)
    held = {row.relevant_doc_ids for row in data.held_out}
    assert not held & {row.relevant_doc_ids for row in data.train}


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (["{"], "no usable query among 2 rows .*train.jsonl:1: not JSON"),
        ([{"query": "x", "relevant_doc_ids": []}], "no usable query among 2 rows"),
        ([FLU], "0 queries to train on|1 queries to train on and 0 held out"),
    ],
)
def test_what_leaves_nothing_to_train_on_is_an_error(tmp_path, tokenizer, rows, says):
    with pytest.raises(UserError, match=says):
        read_data(Options(data=write(tmp_path, CORPUS, train=rows, eval=[FLU])), tokenizer)


def test_where_data_is_looked_for(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    options = Options(run_dir=tmp_path / "run")
    sample = find_data(options)
    assert sample == tmp_path / "run" / "sample"
    assert "sample data" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"here/train.jsonl is missing; --data needs"):
        find_data(Options(data=tmp_path / "here"))
    (tmp_path / "data" / "rewriter").mkdir(parents=True)
    write(tmp_path / "data" / "rewriter", CORPUS, train=[GOUT])
    assert str(find_data(options)) == "data/rewriter"
    (tmp_path / "data" / "rewriter" / "pubmed_corpus.json").unlink()
    with pytest.raises(UserError, match=r"data/rewriter has train\.jsonl alone"):
        find_data(options)


def test_the_sample_leaves_room_for_rewriting(tmp_path, tokenizer):
    make_sample(tmp_path, 0)
    options = Options(data=tmp_path, eval_queries=0)
    data = read_data(options, tokenizer)
    found = open_search(options, data)([row.query for row in data.train])
    hit = [len(set(ids) & set(row.relevant_doc_ids)) / len(row.relevant_doc_ids) for ids, row in
           zip(found, data.train, strict=True)]  # fmt: skip
    assert 0.2 < sum(hit) / len(hit) < 0.6


# Retrievers


@pytest.mark.parametrize("retriever", ["bm25", "dense", "hybrid", "rerank"])
def test_every_retriever_finds_documents_once(tiny, tmp_path, tokenizer, retriever):
    reranker = str(tiny_cross_encoder(tmp_path / "cross")) if retriever == "rerank" else ""
    options = Options(data=tiny / "data", retriever=retriever, embedder=PACKAGED_EMBEDDER, reranker=reranker, k=3)
    options.check()
    search = open_search(options, read_data(options, tokenizer))
    found = search(["remedy4 disease", "What mends disease 7?"])
    assert [len(set(ids)) for ids in found] == [3, 3]
    if retriever != "rerank":  # its weights are random
        assert (found[0][0], found[1][0]) == ("d4", "d7")
    assert open_search(options, read_data(options, tokenizer))(["remedy4 disease"]) == [found[0]]  # the same store


def test_of_a_document_in_pieces_the_best_counts(tmp_path, tokenizer):
    sentences = " ".join(f"Sentence {n} speaks of topic{n} and of gout." for n in range(60))
    corpus = [{"doc_id": "long", "text": sentences}, {"doc_id": "a", "text": "Gout."}, {"doc_id": "b", "text": "Flu."}]
    folder = write(tmp_path, corpus, train=[GOUT, FLU], eval=[{"query": "long?", "relevant_doc_ids": ["long"]}])
    for retriever in ("bm25", "hybrid"):
        options = Options(data=folder, retriever=retriever, embedder=PACKAGED_EMBEDDER, k=2)
        found = open_search(options, read_data(options, tokenizer))(["topic7 gout"])
        assert sorted(found[0]) == ["a", "long"]


def test_a_store_that_is_there_is_searched_by_its_chunks(tiny, tmp_path, tokenizer):
    options = Options(data=tiny / "data", store=tmp_path / "store", k=2)
    data = read_data(options, tokenizer)
    DocumentStore.build(tmp_path / "store", data.documents, StoreOptions("none"))
    with pytest.raises(UserError, match=r"store lacks 12 of the 12 documents"):
        open_search(options, data)
    corpus = [{"doc_id": f"{d.id}#0", "text": d.text} for d in data.documents]
    (tmp_path / "data").mkdir()
    rows = [{"query": f"remedy{n}", "relevant_doc_ids": [f"d{n}#0"]} for n in range(12)]
    options = Options(
        data=write(tmp_path / "data", corpus, train=rows[:8], eval=rows[8:]), store=tmp_path / "store", k=2
    )
    assert open_search(options, read_data(options, tokenizer))(["remedy4"])[0] == ["d4#0"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"max_steps": 0}, "--max-steps"), ({"k": 0}, "--k"), ({"eval_queries": -1}, "--eval-queries"),
        ({"retriever": "rerank"}, "belong together"), ({"reranker": "x"}, "belong together"),
        ({"rewrite": RewriteOptions(query_weight=0)}, "--query-weight"),
    ],
)  # fmt: skip
def test_options_that_can_not_be(given, says):
    with pytest.raises(UserError, match=says):
        Options(**given).check()


def test_a_folder_of_other_things_is_not_replaced(tmp_path):
    (tmp_path / "mine").mkdir()
    Options(output_dir=tmp_path / "mine", run_dir=tmp_path / "run").check()  # empty
    (tmp_path / "mine" / "notes").touch()
    for folder in (tmp_path / "mine", tmp_path):
        with pytest.raises(UserError, match=r"holds other things than a model of train_ppo\.py; choose another"):
            Options(output_dir=folder, run_dir=tmp_path / "run").check()
    for run_dir in (tmp_path / "new", tmp_path / "new" / "run"):
        with pytest.raises(UserError, match="would take the place of --run-dir"):
            Options(output_dir=tmp_path / "new", run_dir=run_dir).check()


def test_a_run_that_diverges_says_so(tmp_path):
    after = train_ppo.Run(Options(run_dir=tmp_path), None, None, None, None, [1.0], [])
    with pytest.raises(UserError, match="update 1: loss/policy_avg is nan; training diverged"):
        after.after({"policy/entropy_avg": 0.1, "loss/policy_avg": float("nan")})
