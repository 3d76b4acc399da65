"""Credit of single words: which tokens say them, and what the search loses without them, by hand."""

from dataclasses import replace

import pytest

from forage.agent.episode import Search, Turn
from forage.agent.rewards import Word, counted, credited, ends_of, without_each, words_in
from tests.factories import EPISODE
from tests.ranked_library import GOUT, opened

# A token for each piece; a call that was begun for the policy is not sampled.
PIECES = (
    '<tool_call>{"name": "search", "arguments": {"query": "', "go", "ut", " si", "gns", '"}}', "</tool_call>", "<end>",
    " signs", "-x", '\\"', '<tool_call>{"name": "search", "arguments": {"why": "', '", "query": "', ' "',
    '<tool_call>{"name": "look", "arguments": {"query": "', "search",
)  # fmt: skip


TENTH = (0.5 + 91 / 191) / 2


def decode(ids):
    return "".join(PIECES[number] for number in ids)


def saying(query, ids, mask=None):
    """An episode of one turn after a prompt of one token."""
    tokens = (99, *ids)
    sampled = (0, *(mask or [int(number != 0) for number in ids]))
    return replace(
        EPISODE, ids=tokens, mask=sampled, logprobs=(0.0,) * len(tokens), turns=(Turn(1, len(tokens)),),
        searches=(Search(0, query),), answer="", stop="search",
    )  # fmt: skip


def words(query, ids, mask=None):
    episode = saying(query, ids, mask)
    return list(words_in(episode, episode.searches[0], decode))


@pytest.mark.parametrize(
    ("query", "ids", "said"),
    [
        # `go` and `ut` say gout, ` si` and `gns` say signs; the call around them says no word.
        ("gout signs", [0, 1, 2, 3, 4, 5, 6, 7], {"gout": [2, 3], "signs": [4, 5]}),
        # `-x` ends the second word and ` signs` is the third: a token of two words is the last one's.
        ("gout signs-x signs", [0, 1, 2, 8, 9, 8, 5, 6], {"gout": [2, 3], "signs-x": [4, 5], "signs": [6]}),
        ('go"', [0, 1, 10, 5, 6], {}),  # escaped in the call
        ("", [0, 5, 6], {}),
        # {"why": "gout", "query": "gout"}
        ("gout", [11, 1, 2, 12, 1, 2, 5, 6], {"gout": [5, 6]}),
        ("gout", [0, 1, 2, 3, 4, 5, 6], {}),  # the query is longer
        # <tool_call>{"query": "gout"}</tool_call> "gout"}, and the other way round
        ("gout", [0, 1, 2, 5, 6, 13, 1, 2, 5], {"gout": [2, 3]}),
        ("gout", [13, 1, 2, 5, 0, 1, 2, 5, 6], {"gout": [6, 7]}),
    ],
)
def test_the_tokens_of_each_word(query, ids, said):
    assert words(query, ids) == [Word(word, tokens) for word, tokens in said.items()]


def test_each_of_a_turns_calls_is_credited_with_its_own_query():
    """Searches for search and gout, between them another tool's for gout, and gout once more."""
    ids = [0, 15, 5, 6, 14, 1, 2, 5, 6, 0, 1, 2, 5, 6, 0, 1, 2, 5, 6]
    episode = saying("search", ids)
    for query, again, tokens in (("search", 0, [2]), ("gout", 0, [11, 12]), ("gout", 1, [16, 17])):
        assert list(words_in(episode, Search(0, query), decode, again)) == [Word(query, tokens)]
    assert [again for _, again in counted([Search(0, "a"), Search(0, "a"), Search(1, "a"), Search(0, "a")])] == [
        0,
        1,
        0,
        2,
    ]


def test_a_search_whose_result_was_never_read_has_no_credit():
    episode = replace(saying("gout", [0, 1, 2, 5, 6]), stop="tokens")
    _, searcher = opened({"gout": 1})
    assert credited([episode], GOUT, searcher, decode) == [replace(episode, credits=(0.0,) * 6)]


@pytest.mark.parametrize("sentencepiece", [False, True])
def test_long_turns_are_decoded_in_stretches(sentencepiece):
    """A token of three bytes, which show as one mark each until the last is there, and spaces at the beginning that
    some tokenizers leave out."""
    pieces = ["  ", "Why", " go", "ut", "\xe2", "\x82", "\xac", " ", "\n", " rest"] * 30

    def decode(numbers):
        text = b"".join(pieces[number].encode("latin-1") for number in numbers).decode(errors="replace")
        return text.removeprefix(" ") if sentencepiece else text

    seen = []
    found = ends_of(range(300), lambda numbers: seen.append(len(numbers)) or decode(numbers))
    whole = [len(decode(range(place + 1)).rstrip()) for place in range(300)]
    spoken = [place for place in range(300) if pieces[place].strip()]
    assert [found[place] for place in spoken] == [whole[place] for place in spoken]
    assert max(seen) < 20


def test_credits_by_hand():
    """Ranks 1, 10 and none score 1, .5 and 0 at depth 100. Where nothing wrong is found the margin is 1; at rank 10
    what answers has a score of 91, and the best other one of 100."""
    _, searcher = opened({"gout signs": 1, "gout": 10})
    [episode] = credited([saying("gout signs", [0, 1, 2, 3, 4, 5, 6, 7])], GOUT, searcher, decode)
    gout, signs = 1 - 0, 1 - TENTH  # "signs" alone finds nothing, "gout" alone what rank 10 is worth
    assert episode.credits == pytest.approx([0, 0, gout, gout, signs, signs, 0, 0, 0])


def test_a_word_said_again_has_no_credit_and_the_first_answers_for_both():
    """Without signs the search is for gout, which ranks tenth; the second signs costs, and no more."""
    said = saying("gout signs signs", [0, 1, 2, 3, 4, 8, 5, 6])
    library, searcher = opened({"gout signs signs": 1, "gout": 10})
    [episode] = credited([said], GOUT, searcher, decode, cost=0.25)
    gout, signs = 1 - 0.25, 1 - TENTH - 0.25
    assert episode.credits == pytest.approx([0, 0, gout, gout, signs, signs, -0.25, 0, 0])
    assert [queries for queries, *_ in library.searched] == [("gout signs signs", "signs signs", "gout")]
    assert list(without_each([Word("Gout", []), Word("toe", []), Word("gout", [], again=True)])) == ["toe", "Gout gout"]


def test_each_search_of_an_episode_is_judged_by_itself():
    """Two turns that say gout; the second is followed by nothing else."""
    ids = (99, 0, 1, 2, 5, 6, 98, 0, 1, 2, 5, 6)
    two = replace(
        EPISODE, ids=ids, mask=(0, 0, 1, 1, 1, 1) * 2, logprobs=(0.0,) * 12, turns=(Turn(1, 6), Turn(7, 12)),
        searches=(Search(0, "gout"), Search(1, "gout")),
    )  # fmt: skip
    _, searcher = opened({"gout": 1, "": 10})
    [episode] = credited([two], GOUT, searcher, decode)
    credit = 1 - TENTH
    assert episode.credits == pytest.approx([0, 0, credit, credit, 0, 0, 0, 0, credit, credit, 0, 0])


def test_a_token_that_was_given_has_no_credit():
    assert words("gout signs", [0, 1, 2, 3, 4, 5, 6], mask=[0, 0, 0, 1, 1, 1, 1]) == [
        Word("gout", []), Word("signs", [4, 5]),
    ]  # fmt: skip
