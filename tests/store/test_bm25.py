"""Our precomputed BM25 is rank_bm25's BM25Okapi."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_bm25 import BM25Okapi

from forage.data.corpus import QUESTIONS
from forage.data.records import clean
from forage.errors import UserError
from forage.files import json_lines
from forage.store.bm25 import BM25, Tokenizer
from forage.store.document_store import DocumentStore
from forage.store.fusion import top_k
from forage.store.options import StoreOptions

WORDS = st.sampled_from(["a", "b", "c", "d", "e", "f", "g"])
CORPUS = st.lists(st.lists(WORDS, max_size=12), min_size=1, max_size=40).filter(lambda texts: any(texts))


@settings(max_examples=300)
@given(corpus=CORPUS, query=st.lists(WORDS | st.just("unknown"), max_size=6))
def test_scores_equal_okapi_on_any_corpus(corpus, query):
    expected = BM25Okapi(corpus).get_scores(query)
    np.testing.assert_allclose(BM25.build(corpus).scores(query), expected, rtol=0, atol=1e-9)


def test_ids_and_scores_equal_okapi_on_the_sample_data():
    tokenize = Tokenizer()
    rows = [row for _, row in json_lines(QUESTIONS)]
    corpus = [tokenize(clean(row["answer"])) for row in rows]
    ours, okapi = BM25.build(corpus), BM25Okapi(corpus)
    for row in rows:
        words = tokenize(row["question"])
        expected = okapi.get_scores(words)
        found = ours.rank(words, 10)
        assert found.ids.tolist() == top_k(expected, 10, above=0.0).tolist()
        np.testing.assert_allclose(found.scores, expected[found.ids], rtol=0, atol=1e-9)


def test_texts_without_any_of_the_words_are_no_hits():
    index = BM25.build([["gout"], ["flu"], ["toe"]])
    assert index.rank(["gout", "unknown"], 10).ids.tolist() == [0]
    assert index.rank([], 10).ids.tolist() == []


def test_saved_and_loaded_scores_are_the_same(tmp_path):
    index = BM25.build([["gout", "toe"], ["flu", "é"], []])
    index.save(tmp_path / "bm25.npz")
    loaded = BM25.load(tmp_path / "bm25.npz")
    for query in (["gout"], ["é", "flu"], ["nothing"]):
        assert loaded.scores(query).tolist() == index.scores(query).tolist()
    (tmp_path / "bm25.npz").write_bytes(b"torn")
    with pytest.raises(UserError, match="damaged"):
        BM25.load(tmp_path / "bm25.npz")


def test_words():
    assert Tokenizer()("What are the Causes of Crohn's disease?") == ["caus", "crohn", "s", "diseas"]


def test_a_store_that_scores_by_rank_bm25_finds_the_same(tmp_path):
    texts = ["Gout hurts a toe at night.", "Asthma narrows airways at night.", "Rest helps a toe."]
    found = []
    for bm25 in ("own", "rank_bm25"):
        DocumentStore.build(tmp_path / bm25, texts, StoreOptions("none", bm25=bm25))
        hits = DocumentStore.open(tmp_path / bm25).search("why does a toe hurt at night", 3, "sparse")
        found.append([(hit.chunk_id, pytest.approx(hit.score)) for hit in hits])
    assert len(found[0]) == 3
    assert found[0] == found[1]


def test_of_one_or_two_texts_a_word_finds_those_that_have_it():
    """By hand: BM25Okapi's idf of a word in 1 of 2 texts is log(1.5 / 1.5) = 0, and below 0 where all have it."""
    one, two = BM25.build([["gout", "toe"]]), BM25.build([["gout", "toe", "toe"], ["flu", "toe"]])
    assert found(one, ["toe"]) == found(one, ["toe", "flu"]) == [(0, 1.0)]
    assert found(one, ["flu"]) == found(two, ["asthma"]) == found(BM25.build([]), ["toe"]) == []
    assert found(two, ["flu"]) == [(1, 1.0)]
    assert found(two, ["toe", "gout", "gout"]) == [(0, 2.0), (1, 1.0)]


def found(index, words):
    ranking = index.rank(words, 3)
    return list(zip(ranking.ids.tolist(), ranking.scores.tolist(), strict=True))


@pytest.mark.parametrize("bm25", ["own", "rank_bm25"])
def test_a_store_of_two_chunks_finds_words_and_one_without_words_nothing(tmp_path, bm25):
    texts = ["Crystals hurt the toe.", "Fever and a cough."]
    store = DocumentStore.build(tmp_path / "store", texts, StoreOptions("none", bm25=bm25))
    assert [hit.text for hit in store.search("a cough", 2, "sparse")] == [texts[1]]
    silent = DocumentStore.build(tmp_path / "silent", ["This is it."], StoreOptions("none", bm25=bm25))
    assert silent.search("is it gout?", 2, "sparse") == []
