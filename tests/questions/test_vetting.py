"""Which questions are kept, on a store whose ranking by words is worked out by hand."""

import pytest

from forage.data.records import Document
from forage.questions.candidates import Candidate
from forage.questions.vetting import (
    BY_TITLE,
    DUPLICATE,
    GIVEN_AWAY,
    NOT_IN_PASSAGE,
    Kept,
    Vetter,
    fault,
    is_in_passage,
    not_found,
    told_share,
)
from forage.store.document_store import DocumentStore
from forage.store.options import StoreOptions

TEXTS = {
    "bees": "Keepers feed nine litres of syrup to each hive before the frost.",
    "nets": "Fishers choose waxed twine because salt rots plain cotton.",
    "rye": "A starter ferments for thirty hours beside the warm oven.",
}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    documents = [Document(name, f"On {name}", text) for name, text in TEXTS.items()]
    return DocumentStore.build(tmp_path_factory.mktemp("vetting") / "store", documents, StoreOptions(embedder="none"))


def made(store, name, question, answer, term=""):
    return Candidate("model", store.chunk_by_id[f"{name}#0"], question, answer, term)


def judged(store, *candidates, k=1):
    return [one if isinstance(one, Kept) else one.reason for one in Vetter(store, "sparse", k).judged(candidates)]


def test_each_reason_and_a_good_question(store):
    good = made(store, "nets", "Which twine do fishers take?", "Fishers choose waxed twine because salt rots cotton")
    [kept, *reasons] = judged(
        store,
        good,
        made(store, "nets", "which TWINE do fishers take", "Fishers choose waxed twine because salt rots"),
        made(store, "bees", "What ferments beside an oven?", "nine litres of syrup"),
        made(store, "rye", "How long does it ferment?", "It ferments for forty days under the cold stairs"),
        made(store, "rye", "What ferments for thirty hours?", "A starter ferments for thirty hours"),
        made(store, "bees", "What is kept in a hive in frost?", "bees: Keepers feed nine litres of syrup", "bees"),
    )
    assert kept == Kept(good, 1)
    assert reasons == [DUPLICATE, not_found(1), NOT_IN_PASSAGE, GIVEN_AWAY, NOT_IN_PASSAGE]


def test_a_passage_further_down_counts_within_k(store):
    """The question has two words of rye's passage and one of nets'."""
    asked = made(store, "nets", "What ferments beside cotton?", "Fishers choose waxed twine")
    assert judged(store, asked, k=1) == [not_found(1)]
    assert judged(store, asked, k=2) == [Kept(asked, 2)]


def test_what_the_title_answers(store):
    chunk = store.chunk_by_id["bees#0"]
    title = Candidate("model", chunk, "Who is fed?", "feeding hives", "hive")
    assert fault(Candidate("model", chunk, "What do they feed?", "syrup to each hive", "syrup")) == ""
    assert fault(title) == NOT_IN_PASSAGE
    titled = type(chunk)(chunk.doc_id, "Syrup for a hive", chunk.text, 0, len(chunk.text), 0, 1)
    assert fault(Candidate("model", titled, "What do they feed?", "syrup to each hive", "syrup")) == BY_TITLE


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
    assert judged(store, asked) == [Kept(asked, 1)]
    only_there = Candidate("model", first, "beta iota kappa lambda mu", "Alpha beta gamma delta.")
    assert judged(store, only_there) == [not_found(1)]


def test_shares():
    assert told_share("Waxed twines", "What is the twine?") == 0.5  # wax and twine, by their stems
    assert told_share("It is", "What is it?") == 1.0  # nothing to tell


def test_an_answer_must_be_said_word_by_word_if_short_and_mostly_if_long(store):
    assert is_in_passage(made(store, "rye", "", "thirty hours: A starter ferments for thirty hours", "Thirty hours"))
    assert not is_in_passage(
        made(store, "rye", "", "hours thirty: A starter ferments for thirty hours", "hours thirty")
    )
    # "for thirty", "ferments for thirty": words 5, triples 3, of which 2 are said (starter ferments for, ferments for
    # thirty)
    assert is_in_passage(made(store, "rye", "", "starter ferments for thirty days"))
    assert not is_in_passage(made(store, "rye", "", "starter ferments for some thirty days"))
