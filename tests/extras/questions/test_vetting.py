"""Which questions are kept, on a store whose ranking by words is worked out by hand."""

import pytest

from forage.data.records import Document
from forage.extras.questions.vetting import (
    DUPLICATE,
    GIVEN_AWAY,
    NOT_FOUND,
    NOT_IN_PASSAGE,
    Candidate,
    Vetter,
)
from forage.store.document_store import DocumentStore
from forage.store.options import StoreOptions
from tests.factories import plain_store

TEXTS = {
    "bees": "Keepers feed nine litres of syrup to each hive before the frost.",
    "nets": "Fishers choose waxed twine because salt rots plain cotton.",
    "rye": "A starter ferments for thirty hours beside the warm oven.",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    documents = [Document(name, f"On {name}", text) for name, text in TEXTS.items()]
    return plain_store(tmp_path_factory.mktemp("vetting") / "store", documents)


def made(store, name, question, answer):
    return Candidate("model", store.chunk_by_id[f"{name}#0"], question, answer)


def judged(store, *candidates, k=1):
    return [one.fault or one.rank for one in Vetter(store, k).judged(candidates)]


def test_each_reason_and_a_good_question(store):
    good = made(store, "nets", "Which twine do fishers take?", "Fishers choose waxed twine because salt rots cotton")
    assert judged(
        store,
        good,
        made(store, "nets", "which TWINE do fishers take", "Fishers choose waxed twine because salt rots"),
        made(store, "bees", "What ferments beside an oven?", "nine litres of syrup"),
        made(store, "rye", "How long does it ferment?", "It ferments for forty days under the cold stairs"),
        made(store, "rye", "What ferments for thirty hours?", "A starter ferments for thirty hours"),
        made(store, "bees", "What is kept in a hive in frost?", "bees"),
        Candidate("model", store.chunks[0], "", "status 400", "refused"),
    ) == [1, DUPLICATE, NOT_FOUND, NOT_IN_PASSAGE, GIVEN_AWAY, NOT_IN_PASSAGE, "refused"]


def test_a_passage_further_down_counts_within_k(store):
    """The question has two words of rye's passage and one of nets'."""
    asked = made(store, "nets", "What ferments beside cotton?", "Fishers choose waxed twine")
    assert judged(store, asked, k=1) == [NOT_FOUND]
    assert judged(store, asked, k=2) == [2]


def test_neighbours_that_share_the_answer_count(tmp_path):
    """Chunks of eight words overlap by whole sentences: the second sentence is in both."""
    text = "Alpha beta gamma delta. Epsilon zeta eta theta. Iota kappa lambda mu."
    options = StoreOptions(embedder="none", chunk_tokens=8, chunk_overlap=4)
    others = [Document(name, "", words) for name, words in TEXTS.items()]
    store = DocumentStore.build(tmp_path / "store", [Document("greek", "", text), *others], options)
    assert [chunk.text.strip() for chunk in store.chunks[:2]] == [text[:47].strip(), text[24:]]
    first = store.chunks[0]
    asked = Candidate("model", first, "zeta iota kappa lambda mu", "Epsilon zeta eta theta.")
    [hit] = store.search("zeta iota kappa lambda mu", 1, "sparse")
    assert hit.chunk_id == store.chunks[1].id
    assert judged(store, asked) == [1]
    only_there = Candidate("model", first, "beta iota kappa lambda mu", "Alpha beta gamma delta.")
    assert judged(store, only_there) == [NOT_FOUND]
