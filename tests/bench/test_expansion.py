"""What trained policies are compared with: RM3's weights and the order of whole documents, by hand."""

from collections import Counter
from types import SimpleNamespace

from bench.expansion import RM3
from forage.data.records import Document
from forage.extras.questions.headroom import whole_documents
from tests.factories import plain_store


def test_rm3_by_hand():
    """Two of the example's x .5, y .375 and z .125 are kept, .875 of all: 4/7 and 3/7 of the words' weight.

    The question has one word, 20 times. The words have as much weight: 20 * 4/7 = 11.4 and 20 * 3/7 = 8.6 times.
    """
    hits = [SimpleNamespace(score=3.0, text="X x y"), SimpleNamespace(score=1.0, text="y z, and the")]
    assert Counter(RM3(10, 2, 0.5).expand("gout", hits).split()) == {"gout": 20, "x": 11, "y": 9}
    # With three quarters for the question the words have a third of its weight: 6.67 * 4/7 and 6.67 * 3/7.
    assert Counter(RM3(10, 2, 0.75).expand("gout", hits).split()) == {"gout": 20, "x": 4, "y": 3}
    # By the first chunk alone x has 2/3 and y 1/3 of 20.
    assert Counter(RM3(1, 9, 0.5).expand("gout", hits).split()) == {"gout": 20, "x": 13, "y": 7}


def test_whole_documents_come_in_the_order_found_with_their_passages_in_order_of_what_is_asked(tmp_path):
    """Each sentence of the first document is a passage.

    "Crystals" finds gout, and what is asked of gout its third passage, then its second.
    """
    documents = [
        Document("a", "Gout", "Crystals hurt in the joint. Rest helps the gout. Gout treatments are ice and pills."),
        Document("b", "Asthma", "Treatments are inhalers. Asthma treatments differ."),
    ]
    store = plain_store(tmp_path / "store", documents, chunk_tokens=6, chunk_overlap=0)
    assert len(store.chunks) == 4
    asked = ["crystals joint: What are the treatments for this?"]
    assert [hit.chunk_id for hit in whole_documents(store, asked)[0]] == ["a#2", "a#1"]
