"""The embedder's tokens and prompts; with the real packaged model."""

import json
import shutil

import numpy as np
import pytest

from forage.store.embedder import PACKAGED_EMBEDDER, Embedder, locate


def copy_of_the_packaged_model(folder):
    return shutil.copytree(locate(PACKAGED_EMBEDDER)[0], folder)


def test_tokens_are_counted_without_special_ones(embedder):
    assert embedder.count_tokens(["big toe", "", "fever"]) == [2, 0, 1]
    assert embedder.count_tokens([]) == []
    assert embedder.max_tokens == 254  # 256 less [CLS] and [SEP]


def test_e5_models_get_the_prompts_they_do_not_carry(tmp_path, embedder):
    e5 = Embedder(str(copy_of_the_packaged_model(tmp_path / "e5-tiny-v2")))
    assert e5.prompts == ("query: ", "passage: ")
    np.testing.assert_allclose(e5.encode_queries(["toe"]), embedder.encode_queries(["query: toe"]), atol=1e-5)
    np.testing.assert_allclose(e5.encode_passages(["toe"]), embedder.encode_queries(["passage: toe"]), atol=1e-2)
    assert e5.max_tokens == 254 - 2


@pytest.mark.parametrize("name", ["e5-mistral-7b-instruct", "bge-small", "made5-model"])
def test_other_models_get_none(tmp_path, name):
    assert Embedder(str(copy_of_the_packaged_model(tmp_path / name))).prompts == ("", "")


def test_a_models_own_prompts_win(tmp_path):
    folder = copy_of_the_packaged_model(tmp_path / "e5-with-prompts")
    config = folder / "config_sentence_transformers.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"prompts": {"query": "Q: ", "document": "D: "}}))
    assert Embedder(str(folder)).prompts == ("Q: ", "D: ")
