"""The rewriter's warm start: what is learned, and the loss by hand."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from forage.extras.rewriter.actors import Policy, with_padding
from forage.extras.rewriter.options import SamplingOptions
from forage.extras.rewriter.training import beginning_of, warm_loss


@pytest.fixture
def tokenizer(tiny_rewriter):
    return AutoTokenizer.from_pretrained(tiny_rewriter / "model")


def test_beginnings_by_hand():
    assert beginning_of("Gout\nWhat is gout? A joint hurts and swells.", 3) == "A joint hurts"
    assert beginning_of("A joint hurts.", 9) == "A joint hurts."
    assert beginning_of("Gout\n", 9) == "Gout"
    assert beginning_of("Gout\nWhat is it?\nWhy?", 9) == "What is it? Why?"


def test_the_loss_is_that_of_the_wanted_tokens_and_their_ends(tiny_rewriter, tokenizer):
    lm = AutoModelForCausalLM.from_pretrained(tiny_rewriter / "model").eval()
    pad_id = with_padding(tokenizer).pad_token_id
    prompts, wanted = [(5, 6, 7), (8, 9)], ["rest", "ice and rest and ice"]
    tokens = [tokenizer(text, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id] for text in wanted]
    most = len(tokens[1]) - 2  # the second text is cut, so it has no eos
    tokens[1] = tokens[1][:most]
    found = []
    with torch.no_grad():
        for prompt, text in zip(prompts, tokens, strict=True):
            logprobs = lm(torch.tensor([[*prompt, *text]])).logits[0].log_softmax(-1)
            found += [-float(logprobs[len(prompt) + place - 1, token]) for place, token in enumerate(text)]
        policy = Policy(lm, SamplingOptions(max_new_tokens=most), tokenizer.eos_token_id, pad_id)
        loss = warm_loss(policy, tokenizer, list(zip(prompts, wanted, strict=True)))
    assert len(found) == sum(map(len, tokens)) < len(tokenizer(wanted[0])["input_ids"]) + most + 3
    assert float(loss) == pytest.approx(sum(found) / len(found), abs=1e-5)
