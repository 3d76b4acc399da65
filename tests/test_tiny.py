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


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back(text):
    assert TOKENIZER.decode(TOKENIZER(text)["input_ids"], clean_up_tokenization_spaces=False) == text
