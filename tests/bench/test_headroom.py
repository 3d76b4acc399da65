"""Headroom is measured by the agent's own search."""

from bench import headroom
from forage.agent.options import SearchOptions
from forage.store.fusion import Hit
from forage.store.options import Fusion, StoreOptions


class Asked:
    """A store that keeps how it was searched, and finds the first document."""

    def __init__(self):
        self.how, self.options = [], StoreOptions()

    def search(self, queries, k, mode, *, fusion):
        self.how.append((len(queries), k, mode, fusion))
        return [[Hit("d0#0", "d0", "", "", 1.0, 1)] for _ in queries]


def test_it_searches_with_the_weights_that_it_is_given(tiny, monkeypatch, capsys):
    store = Asked()
    monkeypatch.setattr(headroom, "open_store", lambda path: store)
    search = SearchOptions(k=2, question_weight=1, title_weight=0.1, dense_weight=0.5)
    headroom.main(headroom.Options(tiny / "data", search=search))
    assert store.how == [(6, 2, "hybrid", Fusion(dense_weight=0.5, title_weight=0.1))] * 3
    assert "the question" in capsys.readouterr().out
