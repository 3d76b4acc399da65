"""Which passages hold an answer's words, and where each search ranks them: worked out by hand."""

from forage.agent.options import AgentSettings
from forage.chat.view import modes_of, ranks_of, used_passages
from forage.data.records import Document
from forage.store.document_store import DocumentStore
from forage.store.hit import Hit
from forage.store.options import StoreOptions


def hit(name, text, title=""):
    return Hit(name, name, title, text, 1.0, 1)


def test_passages_that_hold_half_of_the_answers_words_most_first():
    hits = [
        hit("ice", "Only ice."),
        hit("none", "Sleep."),
        hit("both", "Resting, with ices."),
        hit("title", "", "Rest"),
    ]
    used = used_passages("Rest and the ice.", hits)
    assert [(one.hit.chunk_id, one.share) for one in used] == [("both", 1.0), ("ice", 0.5), ("title", 0.5)]


def test_without_vectors_there_is_the_ranking_by_words(tmp_path):
    """Passage a holds the word twice, b once, c never: ranks 1, 2 and none."""
    texts = {"a": "gout gout", "b": "gout pain", "c": "asthma cough"}
    documents = [Document(name, "", text) for name, text in texts.items()]
    store = DocumentStore.build(tmp_path / "store", documents, StoreOptions(embedder="none", title_in_chunk=False))
    ranks = ranks_of(store, AgentSettings(mode="sparse"), "gout", "gout", ["c#0", "b#0", "a#0"])
    assert modes_of(store) == ("sparse",)
    assert ranks.by_mode == {"sparse": (None, 2, 1)}
    assert ranks.depth == 100
