"""Where: what Chroma answers, and exact in each mode."""

import re

import chromadb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from forage.store import document_store
from forage.store.document_store import DocumentStore
from forage.store.fusion import Ranking, fuse
from forage.store.options import Fusion, StoreOptions
from forage.store.where import condition
from tests.refusals import refused
from tests.word_embedder import WordEmbedder

METADATA = [
    {"a": 1}, {"a": 1.0}, {"a": 2}, {"a": 2.5}, {"a": "x"}, {"a": True}, {"a": False}, {"b": 1}, {"a": "1"}, {"a": 0},
    {"a": "y", "b": 2}, {"a": "", "b": True}, {"c": "x"}, {"a": -1, "b": "x", "c": 0.5},
]  # fmt: skip

values = some.sampled_from([0, 1, 2, -1, 1.0, 2.5, True, False, "x", "y", "1", "", None])
operators = some.sampled_from(["$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$in", "$nin", "$like"])
operands = values | some.lists(values, max_size=3)
simple = some.dictionaries(
    some.sampled_from("abcz"), operands | some.dictionaries(operators, operands, max_size=2), max_size=2
)
wheres = some.recursive(
    simple,
    lambda inner: some.dictionaries(
        some.sampled_from(["$and", "$or", "$not"]), some.lists(inner, max_size=3), max_size=1
    ),
)


@pytest.fixture(scope="module")
def collection():
    client = chromadb.EphemeralClient()
    collection = client.create_collection("where", embedding_function=None)
    ids = [str(number) for number in range(len(METADATA))]
    collection.add(ids=ids, embeddings=np.ones((len(ids), 2)), metadatas=METADATA)
    yield collection
    client.delete_collection("where")


@settings(max_examples=500, deadline=None)
@given(where=wheres)
def test_it_says_what_chroma_says(collection, where):
    try:
        known = {int(number) for number in collection.get(where=where)["ids"]}
    except (ValueError, chromadb.errors.ChromaError):
        with refused(""):
            condition(where)
    else:
        fits = condition(where)
        assert {number for number, metadata in enumerate(METADATA) if fits(metadata)} == known


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ({}, "must be an object with one key; join several with $and"),
        ({"a": 1, "b": 2}, "must be an object with one key"),
        ({"$and": [{"a": 1}]}, "$and takes a list of two conditions or more"),
        ({"$not": {"a": 1}}, "'$not' is no key of metadata, and none of $and, $or"),
        ({"a": {"$like": "x"}}, "a needs one operator of $eq, $ne, $in, $nin, $gt, $gte, $lt, $lte, not {'$like'"),
        ({"a": {"$gt": "x"}}, "$gt takes a number, not 'x'"),
        ({"a": {"$in": []}}, "$in takes texts, numbers or truths, of one kind, not []"),
    ],
)  # fmt: skip
def test_what_it_can_not_be_is_one_line(store, where, says):
    with refused(re.escape(says)):
        store.search("gout", where=where)


def test_a_thousand_conditions_within_each_other_are_one_line(store):
    where = {"a": 1}
    for _ in range(1000):
        where = {"$and": [{"a": 1}, where]}
    with refused("too many conditions within each other"):
        store.search("gout", where=where)


WORDS = "gout toe night cough fever airway iron pale rest crystal".split()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store of 60 documents of all kinds."""
    draw = np.random.default_rng(3)
    documents = [
        {"title": " ".join(draw.choice(WORDS, 2)), "text": " ".join(draw.choice(WORDS, 20)) + ".",
         "metadata": {"year": int(2000 + number % 20)} if number % 7 else {}}
        for number in range(60)
    ]  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(document_store, "Embedder", WordEmbedder)
        store = DocumentStore.build(
            tmp_path_factory.mktemp("where") / "store",
            documents,
            StoreOptions("words", chunk_tokens=12, chunk_overlap=3),
        )
        yield store


@pytest.mark.parametrize("where", [{"year": {"$gte": 2010}}, {"year": 2003}, {"year": {"$ne": 2003}}, {"year": 1900}])
@pytest.mark.parametrize("k", [1, 5, 500])
def test_the_rest_ranks_as_if_nothing_else_were_there(store, where, k):
    """The reference ranks all there is, then leaves out what does not fit, and merges what is left."""
    queries = ["gout at night", "pale iron", "nothing known"]
    fits = condition(where)
    allowed = np.array([fits(store.get(chunk.doc_id).metadata) for chunk in store.chunks])

    def left(mode):
        return [
            Ranking(every.ids[allowed[every.ids]], every.scores[allowed[every.ids]])
            for every in store.rank(queries, len(store.chunks), mode)
        ]

    def first(ranking, count):
        return Ranking(ranking.ids[:count], ranking.scores[:count])

    fusion = Fusion(depth=4)
    depth, expected = max(4, k), {mode: left(mode) for mode in ("sparse", "dense")}
    expected["hybrid"] = []
    for query, dense, sparse in zip(queries, expected["dense"], expected["sparse"], strict=True):
        dense, sparse = first(dense, depth), first(sparse, depth)
        titles = store._titles.rank(store._tokenize(query), np.union1d(dense.ids, sparse.ids), fusion.title_share)
        expected["hybrid"].append(fuse(fusion, dense, sparse, titles))
    for mode, rankings in expected.items():
        for got, ranking in zip(store.rank(queries, k, mode, fusion=fusion, where=where), rankings, strict=True):
            np.testing.assert_array_equal(got.ids, ranking.ids[:k])
            np.testing.assert_array_equal(got.scores, ranking.scores[:k])
