"""The rewriter's warm start: what is learnt, the loss by hand, and a run that begins with it."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from forage.errors import UserError
from forage.rewriter.options import WarmOptions
from forage.rewriter.rewrites import Row, with_padding
from forage.rewriter.warm_start import beginning_of, loss_of, warm_started
from tests.tiny_rewriter import make_tiny, metrics, run, tiny_args


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    make_tiny(folder)
    return folder


@pytest.fixture
def tokenizer(tiny):
    return AutoTokenizer.from_pretrained(tiny / "model")


def test_beginnings_by_hand():
    assert beginning_of("Gout\nWhat is gout? A joint hurts and swells.", 3) == "A joint hurts"
    assert beginning_of("A joint hurts.", 9) == "A joint hurts."
    assert beginning_of("Gout\n", 9) == "Gout"
    assert beginning_of("Gout\nWhat is it?\nWhy?", 9) == "What is it? Why?"


def test_the_loss_is_that_of_the_wanted_tokens_and_their_ends(tiny, tokenizer):
    lm = AutoModelForCausalLM.from_pretrained(tiny / "model").eval()
    pad_id = with_padding(tokenizer).pad_token_id
    prompts, wanted = [(5, 6, 7), (8, 9)], ["rest", "ice and rest and ice"]
    told = [tokenizer(text, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id] for text in wanted]
    most = len(told[1]) - 2  # the second is cut, and has no end
    told[1] = told[1][:most]
    found = []
    with torch.no_grad():
        for prompt, text in zip(prompts, told, strict=True):
            logprobs = lm(torch.tensor([[*prompt, *text]])).logits[0].log_softmax(-1)
            found += [-float(logprobs[len(prompt) + place - 1, token]) for place, token in enumerate(text)]
        loss = loss_of(lm, tokenizer, prompts, wanted, most, pad_id)
    assert len(found) == sum(map(len, told)) < len(tokenizer(wanted[0])["input_ids"]) + most + 3
    assert float(loss) == pytest.approx(sum(found) / len(found), abs=1e-5)


def test_it_learns_the_first_relevant_document(tiny, tokenizer):
    pad_id = with_padding(tokenizer).pad_token_id
    rows = [Row("gout", ("a", "b"), (5, 6, 7)), Row("cough", ("c",), (8, 9))]
    texts = {"a": "rest", "b": "never this", "c": "honey"}
    options = WarmOptions(warm_steps=40, warm_batch_size=4, warm_learning_rate=1e-2)
    lm = warm_started(str(tiny / "model"), tokenizer, rows, texts, options, 8, pad_id, 0)
    again = warm_started(str(tiny / "model"), tokenizer, rows, texts, options, 8, pad_id, 0)
    assert all(torch.equal(one, other) for one, other in zip(lm.parameters(), again.parameters(), strict=True))
    with torch.no_grad():
        for row in rows:
            wanted = [texts[row.relevant_doc_ids[0]]]
            assert float(loss_of(lm, tokenizer, [row.prompt], wanted, 8, pad_id)) < 0.1
        assert float(loss_of(lm, tokenizer, [rows[0].prompt], ["never this"], 8, pad_id)) > 1


def test_a_run_that_begins_with_it_measures_it_and_makes_it_once(tiny, tmp_path, capsys):
    args = tiny_args(tiny, tmp_path, "--backend", "own", "--warm-steps", "3")
    run([*args, "--max-steps", "1"])
    said = capsys.readouterr().out
    assert "warm start, update 3 of 3: loss " in said
    assert "query x 3 + trained over query x 3 + warm" in said
    ways = [json.loads(line)["way"] for line in (tmp_path / "evaluation.jsonl").read_text().splitlines()]
    assert ways == [
        "raw query", "untrained", "query x 3 + untrained", "pseudo-answer (HyDE)", "query x 3 + pseudo-answer (HyDE)",
        "warm", "query x 3 + warm", "trained", "query x 3 + trained",
    ]  # fmt: skip
    assert metrics(tmp_path)[0]["objective/kl"] == pytest.approx(0, abs=1e-4)  # the reference has had it too
    weights = (tmp_path / "warm" / "model.safetensors").stat().st_mtime_ns
    run([*args, "--max-steps", "2"])
    assert "warm start, update" not in capsys.readouterr().out
    assert (tmp_path / "warm" / "model.safetensors").stat().st_mtime_ns == weights


@pytest.mark.parametrize("wrong", [{"warm_steps": -1}, {"warm_words": 0}, {"warm_learning_rate": 0.0}])
def test_bad_options(wrong):
    with pytest.raises(UserError, match="warm"):
        WarmOptions(**wrong).check()
