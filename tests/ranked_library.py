"""A library that finds what answers at the rank that a test gives for each query, and the agent's searcher over it."""

from types import SimpleNamespace

from forage.agent.options import AgentSettings
from forage.agent.searcher import Searcher
from forage.data.records import Question

GOUT = Question("q1", "gout?", "Rest.", relevant_chunk_ids=("right", "also"))


class Library:
    """Finds the chunk `right` at the rank that is given for a query, after others; remembers what was searched."""

    def __init__(self, ranks):
        self.ranks, self.searched = ranks, []

    def search(self, queries, k, mode, *, fusion):
        self.searched.append((tuple(queries), k, mode, fusion))
        return [self.found(query, k) for query in queries]

    def found(self, query, k):
        rank = self.ranks.get(query, k + 1)
        names = [f"other{n}" for n in range(rank - 1)] + ["right", "also"]
        return [SimpleNamespace(chunk_id=name, score=100.0 - place) for place, name in enumerate(names[:k])]


def opened(ranks, **settings):
    library = Library(ranks)
    return library, Searcher(lambda: library, AgentSettings(mode="sparse", **settings))
