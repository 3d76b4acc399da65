"""A store with rank_bm25 in it finds what one with our BM25 finds, with the same scores."""

import numpy as np

from forage.data.records import Document
from forage.store.document_store import DocumentStore
from forage.store.okapi import Okapi
from forage.store.options import StoreOptions

TEXTS = {
    "Gout": "Uric acid crystals make the big toe hurt at night.", "Asthma": "The airways narrow, and breathing hurts.",
    "Flu": "Fever, a cough and a sore throat.", "Sprain": "The ankle hurts and swells after a fall.",
}  # fmt: skip
QUERIES = ["why does my toe hurt", "fever and cough", "gout", "", "nothing of this is anywhere xyzzy"]


def build(path, bm25):
    documents = [Document(title, title, text) for title, text in TEXTS.items()]
    return DocumentStore.build(path, documents, StoreOptions(embedder="none", bm25=bm25))


def test_it_finds_the_same_with_the_same_scores(tmp_path):
    ours, theirs = build(tmp_path / "ours", "own"), build(tmp_path / "theirs", "rank_bm25")
    again = DocumentStore.open(tmp_path / "theirs")
    assert isinstance(again._bm25, Okapi)
    assert not (tmp_path / "theirs" / "bm25.npz").exists()
    for expected, *others in zip(*(store.rank(QUERIES, 3, "sparse") for store in (ours, theirs, again)), strict=True):
        for found in others:
            assert found.ids.tolist() == expected.ids.tolist()
            np.testing.assert_allclose(found.scores, expected.scores, rtol=0, atol=1e-12)
    assert len(ours.rank(QUERIES, 3, "sparse")[0].ids) == 3


def test_texts_without_words_have_no_score():
    assert Okapi([[], []]).scores(["gout"]).tolist() == [0, 0]
    assert Okapi([[], ["gout"], ["flu"]]).rank(["gout"], 3).ids.tolist() == [1]
