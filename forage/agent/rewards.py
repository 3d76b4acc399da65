"""Rewards: pure functions of episodes and their questions that return a number from 0 to 1 for each episode.

None says that the reward does not exist for this question, as a comparison with its reference answer where it has none.
That may depend on the question alone, never on the episode.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from forage.agent.episode import Episode
from forage.agent.protocol import RESPONSE
from forage.data.records import Question
from forage.metrics import token_f1
from forage.text import IDLE, body_of, words_of

if TYPE_CHECKING:
    from forage.agent.searcher import Place, Searcher
    from forage.store.embedder import Embedder

TELLING = 5  # words of a reference that get_telling_words wants: as many as a short answer can say
# In a tool's response: the number before a passage, and what no passage says.
UNFOUND = re.compile(r"^(\[\d+\] |nothing found$|error: .*)", re.MULTILINE)


def get_mrr(episodes: Sequence[Episode], questions: Sequence[Question]) -> list[float]:
    """Reciprocal rank of the first relevant chunk among all chunks the agent saw, in that order, without repeats.

    A second search only helps if the first one failed. Example: hits (a, b), then (b, c), where c is relevant: the
    agent saw a, b, c, which gives 1/3.
    """
    return [
        next((1 / place for place, hit in enumerate(episode.hits, 1) if hit in question.relevant_chunk_ids), 0.0)
        for episode, question in zip(episodes, questions, strict=True)
    ]


def get_found(episodes: Sequence[Episode], questions: Sequence[Question]) -> list[float]:
    """Whether the agent was shown a chunk that answers: 1, else 0."""
    return [float(mrr > 0) for mrr in get_mrr(episodes, questions)]


def get_own_reward(episodes: Sequence[Episode], questions: Sequence[Question]) -> list[float]:
    """What an agent of get_agent returned beside its answer; 0 where it did not."""
    return [episode.own_reward or 0.0 for episode in episodes]


def get_best_search(
    episodes: Sequence[Episode], questions: Sequence[Question], searcher: Searcher, depth: int = 100
) -> list[float]:
    """`rank_score` of the best search by itself, however many came before it: for questions that need more than one.

    Example, searched for 100 chunks: the first search finds nothing, the second what answers at rank 10: .5, where
    get_mrr counts the chunks shown before.
    """
    scores = [0.0] * len(episodes)
    for number, _, place in _places(episodes, questions, searcher, depth):
        scores[number] = max(scores[number], rank_score(place.rank, depth))
    return scores


def get_search_gain(
    episodes: Sequence[Episode], questions: Sequence[Question], searcher: Searcher, depth: int = 100
) -> list[float]:
    """What the agent's searches found beyond a search for the question itself: .5 if as much, 1 at best, 0 at worst.

    Both are judged by `rank_score` of the first relevant chunk, searched for `depth` chunks deep, so a step from rank
    40 to 12 counts too. A second search only helps if the first one failed: it comes after the chunks shown from the
    first. Without a search nothing is found. Example: found at rank 10 (.5) where the question finds at rank 100 (0):
    (1 + .5) / 2 = .75.
    """
    scores = [0.0] * len(episodes)
    for number, search, place in _places(episodes, questions, searcher, depth):
        shown_at = place.rank and place.rank + search * searcher.settings.k
        scores[number] = max(scores[number], rank_score(shown_at, depth))
    own = searcher.own_places(questions, depth)
    return [(1 + score - rank_score(raw.rank, depth)) / 2 for score, raw in zip(scores, own, strict=True)]


def get_search_margin(
    episodes: Sequence[Episode], questions: Sequence[Question], searcher: Searcher, depth: int = 100
) -> list[float]:
    """By how much the best search scores a chunk that answers above the best one that doesn't: above .5 at rank 1.

    Ranks are the same for many queries, margins for hardly any two, so beside a reward for ranks this one tells apart
    what ranks alike. Example: scores 2 for what answers and 3 for another chunk: 2 / (2 + 3) = .4.
    """
    margins = [0.0] * len(episodes)
    for number, _, place in _places(episodes, questions, searcher, depth):
        margins[number] = max(margins[number], place.margin)
    return margins


def _places(
    episodes: Sequence[Episode], questions: Sequence[Question], searcher: Searcher, depth: int
) -> Iterator[tuple[int, int, Place]]:
    """(episode's number, search's number in it, what it found) of every search whose results were read."""
    searches = [
        (number, place, search.query)
        for number, episode in enumerate(episodes)
        for place, search in enumerate(episode.read_searches)
    ]
    asked = [questions[number] for number, _, _ in searches]
    found = searcher.places(asked, [query for _, _, query in searches], depth)
    return ((number, search, place) for (number, search, _), place in zip(searches, found, strict=True))


def rank_score(rank: int | None, depth: int) -> float:
    """From 1 at rank 1 to 0 at `depth`, on a log scale. Example, depth 100: rank 10 gives .5; not found gives 0."""
    return 0.0 if rank is None or rank > depth else 1 - math.log(rank) / math.log(depth)


def get_answer_similarity(
    episodes: Sequence[Episode], questions: Sequence[Question], embedder: Embedder
) -> list[float | None]:
    """Cosine of the embeddings of answer and reference; 0 if it is negative or there is no answer.

    Unrelated texts do not score 0: about 0.1 with MiniLM, about 0.7 with E5. None without a reference.
    """
    if not any(map(has_reference, questions)):
        return [None] * len(questions)
    given = embedder.encode_passages([episode.answer for episode in episodes])
    wanted = embedder.encode_passages([question.answer for question in questions])
    cosines = np.einsum("nd,nd->n", given, wanted).clip(0, 1)
    scores = [float(c) if episode.answer else 0.0 for c, episode in zip(cosines, episodes, strict=True)]
    return where_known(scores, questions)


def get_token_f1(episodes: Sequence[Episode], questions: Sequence[Question]) -> list[float | None]:
    """F1 of the answer's words against the reference's; None without a reference."""
    scores = [token_f1(episode.answer, question.answer) for episode, question in zip(episodes, questions, strict=True)]
    return where_known(scores, questions)


def get_telling_words(
    episodes: Sequence[Episode], questions: Sequence[Question], searcher: Searcher
) -> list[float | None]:
    """Share of the reference's most telling words that the answer says.

    None without a reference that has any. A cosine rewards every answer on the topic; these words stand in few other
    texts (`telling_words`). An answer of many words says some of them by chance, which --max-turn-tokens bounds.
    Example: of crystals, joint, uric the answer "Crystals in a big joint." says two: 2/3.
    """
    wanted = {question: set(telling_words(question, searcher)) for question in set(questions)}
    return [
        len(words & set(words_of(episode.answer))) / len(words) if (words := wanted[question]) else None
        for episode, question in zip(episodes, questions, strict=True)
    ]


def telling_words(question: Question, searcher: Searcher) -> list[str]:
    """What tells the reference from other texts: its TELLING rarest words in the store that the question lacks.

    What the reference says more than once counts double, and of equals comes what it says first. Example: of 3 passages
    all say "rest" and one says "ice". Of "Rest, ice and rest." ice (log 4/2) comes before rest (2 log 4/4).
    """
    said, asked = Counter(words_of(body_of(question.answer))), set(words_of(question.question))
    words = [word for word in said if word not in IDLE | asked]
    return sorted(words, key=lambda word: -min(said[word], 2) * searcher.rarity(word))[:TELLING]


def get_groundedness(episodes: Sequence[Episode], questions: Sequence[Question]) -> list[float]:
    """Share of the answer's words that the shown passages say.

    Idle words and the question's are left out; without others it is 0. It tells reading from memory, not right from
    wrong. Example: to "What is gout?", after "[1] Gout: Crystals in a joint.", "Gout is crystals and pain." says
    crystals and pain, of which crystals was shown: 1/2.
    """
    shares = []
    for episode, question in zip(episodes, questions, strict=True):
        words = set(words_of(episode.answer)) - IDLE - set(words_of(question.question))
        shares.append(len(words & set(words_of(shown_to(episode)))) / len(words) if words else 0.0)
    return shares


def shown_to(episode: Episode) -> str:
    """What the tools' responses say; nothing where the policy wrote one itself, as a transcript can't tell whose."""
    if "forged_response" in episode.faults:
        return ""
    return UNFOUND.sub("", "\n".join(RESPONSE.findall(episode.transcript)))


def where_known(scores: Sequence[float], questions: Sequence[Question]) -> list[float | None]:
    """The scores, None for a question without a reference answer."""
    return [score if has_reference(question) else None for score, question in zip(scores, questions, strict=True)]


def has_reference(question: Question) -> bool:
    return bool(question.answer.strip())


def get_format_reward(episodes: Sequence[Episode], questions: Sequence[Question]) -> list[float]:
    """A third each for running a search, for ending with an answer, and for the share of turns without faults.

    With --max-turns 1 no answer is asked for, and 2/3 is the most.

    Example: a well-formed search, then a turn with broken JSON, then an answer: 1/3 + 1/3 + 1/3 * 2/3.
    """
    return [
        (bool(e.searches) + (e.stop == "answer") + sum(not t.faults for t in e.all_turns) / max(1, len(e.all_turns)))
        / 3
        for e in episodes
    ]
