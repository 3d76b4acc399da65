"""The tiny model that the tests share is what they take it for."""

import json

from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.tiny import VOCABULARY, _trained, make_tokenizer

TOKENIZER = make_tokenizer()


def test_the_tokenizer_is_the_same_each_time_and_as_large_as_the_model(tiny_base):
    trained = _trained()
    _trained.cache_clear()
    assert _trained() == trained
    assert len(TOKENIZER) == VOCABULARY == AutoModelForCausalLM.from_pretrained(tiny_base).config.vocab_size
    loaded = AutoTokenizer.from_pretrained(tiny_base)
    assert loaded("What is gout?")["input_ids"] == TOKENIZER("What is gout?")["input_ids"]
    assert json.loads((tiny_base / "config.json").read_text())["eos_token_id"] == loaded.eos_token_id


def test_special_tokens_are_those_of_smollm2():
    assert TOKENIZER.convert_tokens_to_ids(["<|endoftext|>", "<|im_start|>", "<|im_end|>"]) == [0, 1, 2]
    assert (TOKENIZER.bos_token_id, TOKENIZER.eos_token_id, TOKENIZER.pad_token_id) == (1, 2, 2)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back(text):
    assert TOKENIZER.decode(TOKENIZER(text)["input_ids"], clean_up_tokenization_spaces=False) == text


def test_prompts_are_as_short_as_a_real_models(tiny_protocol, protocol):
    question = "What mends disease 3?"
    assert len(tiny_protocol.prompt(question)) < len(protocol.prompt(question))
