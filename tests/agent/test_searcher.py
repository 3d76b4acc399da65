"""The searcher, and the reward for what a search found beyond the question's own: ranks and scores by hand."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from forage.agent.episode import Search
from forage.agent.rewards import (
    get_best_search,
    get_documents_found,
    get_found,
    get_mrr,
    get_search_gain,
    get_search_margin,
    rank_score,
    rewards_of,
)
from forage.agent.searcher import AnswerRank, answer_rank, remembering
from tests.factories import EPISODE
from tests.ranked_library import GOUT, opened
from tests.refusals import refused


def searching(*queries):
    return replace(EPISODE, searches=tuple(Search(0, query) for query in queries))


def test_ranks_are_those_of_the_agents_own_search():
    library, searcher = opened({"gout? gout? toe": 7, "gout? gout? knee": 101}, question_weight=2)
    assert searcher.places([GOUT, GOUT], ["toe", "knee"]) == [AnswerRank(7, 94 / 194), AnswerRank(None, 0.0)]
    assert library.searched == [(("gout? gout? toe", "gout? gout? knee"), 100, "sparse", searcher.settings.fusion)]


def test_gain_by_hand():
    """The question finds it at rank 10, which scores .5 at depth 100."""
    _, searcher = opened({"gout?": 10, "best": 1, "copy": 10, "worse": 100}, k=3)
    episodes = [searching(*queries) for queries in (["best"], ["copy"], ["worse"], ["lost"], [])]
    gains = get_search_gain(episodes, [GOUT] * 5, searcher)
    assert gains == pytest.approx([0.75, 0.5, 0.25, 0.25, 0.25])  # (1 + score - .5) / 2 for 1, .5, 0, 0 and 0


def test_a_second_search_comes_after_what_the_first_one_showed():
    """Rank 7 of the second search is rank 3 + 7 = 10 of all that was shown."""
    _, searcher = opened({"gout?": 10, "seventh": 7, "fifth": 5}, k=3)
    episodes = [searching("lost", "seventh"), searching("fifth", "seventh"), searching("seventh", "fifth")]
    expected = [(1 + rank_score(rank) - 0.5) / 2 for rank in (10, 5, 7)]
    assert get_search_gain(episodes, [GOUT] * 3, searcher) == pytest.approx(expected)


def test_the_best_search_counts_by_itself():
    """Rank 10 of 100 scores .5 whether it is searched first or last, rank 1 scores 1."""
    _, searcher = opened({"tenth": 10, "first": 1}, k=3)
    episodes = [
        searching(*queries) for queries in (["tenth"], ["lost", "lost", "tenth"], ["tenth", "first"], ["lost"], [])
    ]
    assert get_best_search(episodes, [GOUT] * 5, searcher) == pytest.approx([0.5, 0.5, 1, 0, 0])


def test_a_search_whose_result_did_not_fit_finds_nothing():
    """The last turn's was dropped; that of the first found nothing, which the policy read."""
    unread = replace(EPISODE, searches=(Search(0, "lost"), Search(1, "first")), stop="tokens")
    _, searcher = opened({"gout?": 10, "first": 1}, k=3)
    assert [search.query for search in unread.read_searches] == ["lost"]
    assert get_best_search([unread], [GOUT], searcher) == get_search_margin([unread], [GOUT], searcher) == [0]
    assert get_search_gain([unread], [GOUT], searcher) == get_search_gain([searching()], [GOUT], searcher)
    assert get_best_search([replace(unread, stop="turns")], [GOUT], searcher) == [1]


def test_found_is_whether_an_answering_passage_was_shown():
    shown = [replace(EPISODE, searches=(Search(0, "a", ("x",)), Search(1, "b", hits))) for hits in (("y",), ("y", "a"))]
    question = replace(GOUT, relevant_chunk_ids=("a",))
    assert get_found([*shown, replace(EPISODE, searches=())], [question] * 3) == [0, 1, 0]


def test_how_many_of_the_documents_needed_were_found():
    shown = replace(EPISODE, searches=(Search(0, "a", ("c#0", "a#3")), Search(1, "b", ("a#0",))))
    question = replace(GOUT, relevant_chunk_ids=("a#0", "a#3", "b#1"))
    assert get_documents_found([shown, shown], [question, replace(GOUT, relevant_chunk_ids=())]) == [0.5, 0]


@pytest.mark.parametrize(
    ("scores", "answering", "place"),
    [
        ([3, 2, 1], [1], AnswerRank(2, 2 / 5)),
        ([3, 2, 1], [0, 1], AnswerRank(1, 3 / 4)),  # the best that does not answer is the third
        ([3, 2, 1], [], AnswerRank(None, 0.0)),
        ([3, 2], [0, 1], AnswerRank(1, 1.0)),
        ([2, -1], [1], AnswerRank(2, 0.0)),  # BM25 gives common words a score below 0
        ([], [], AnswerRank(None, 0.0)),
    ],
)
def test_places_by_hand(scores, answering, place):
    hits = [SimpleNamespace(chunk_id=f"c{n}", score=float(score)) for n, score in enumerate(scores)]
    assert answer_rank(replace(GOUT, relevant_chunk_ids=tuple(f"c{n}" for n in answering)), hits) == place


def test_the_margin_is_that_of_the_best_search():
    _, searcher = opened({"good": 1, "bad": 3})
    episodes = [searching("bad", "good"), searching("bad"), searching("lost"), searching()]
    assert get_search_margin(episodes, [GOUT] * 4, searcher) == pytest.approx(
        [1, 98 / 198, 0, 0]  # where it is first nothing else was found
    )


def test_a_dictionary_without_the_searcher_is_taken_too():
    made = rewards_of(lambda embedder: {"mrr": get_mrr, "given": embedder}, "the embedder", "the searcher")
    assert made == {"mrr": get_mrr, "given": "the embedder"}
    other = rewards_of(lambda embedder, k=3: {"given": k}, "the embedder", "the searcher")
    assert other == {"given": 3}  # a second parameter of another name is not the searcher
    both = rewards_of(lambda embedder, searcher: {"given": (embedder, searcher)}, "the embedder", "the searcher")
    assert both == {"given": ("the embedder", "the searcher")}


def test_rewards_are_chosen_by_name():
    def make(embedder):
        return {"mrr": get_mrr, "format": lambda *_: [0.5]}

    _, searcher = opened({"good": 1})
    chosen = rewards_of(make, "an embedder", searcher, ("best_search=3", "format=1"))
    assert list(chosen) == ["best_search", "format"]
    assert chosen["best_search"]([searching("good")], [GOUT]) == [1.0]  # one of this project's
    assert chosen["format"]([], []) == [0.5]  # one's own comes first
    with refused(
        r"no reward 'seen'; choose among answer_similarity, .*found, .*mrr, own, .*telling_words, token_f1",
    ):
        rewards_of(make, "an embedder", searcher, ("seen=1",))


def test_no_text_is_searched_for_twice():
    asked = []
    search = remembering(lambda texts: asked.append(texts) or [[text.upper()] for text in texts])
    assert search(["a", "b", "a"]) == [["A"], ["B"], ["A"]]
    assert search(["b", "c"]) == [["B"], ["C"]]
    assert search([]) == []
    assert asked == [["a", "b"], ["c"]]
