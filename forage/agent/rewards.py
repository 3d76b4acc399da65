"""Rewards: pure functions of episodes and their questions that return a number from 0 to 1 for each episode.

None says that the reward does not exist for this question, as a comparison with its reference answer where it has none.
That may depend on the question alone, never on the episode. Below: how rewards are combined into one, and credit for
the words of a query.
"""

from __future__ import annotations

import inspect
import math
import re
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from forage.agent.episode import AS_ASKED, Episode, Search
from forage.agent.options import DEPTH, weights_named
from forage.agent.protocol import CALL, RESPONSE
from forage.agent.tools import SEARCH
from forage.arguments import imported
from forage.data.records import Question, documents_of
from forage.errors import UserError
from forage.metrics import reciprocal_rank, token_f1
from forage.text import IDLE, body_of, words_of

if TYPE_CHECKING:
    from forage.agent.searcher import AnswerRank, Searcher
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
        reciprocal_rank(episode.hits, question.relevant_chunk_ids)
        for episode, question in zip(episodes, questions, strict=True)
    ]


def get_found(episodes: Sequence[Episode], questions: Sequence[Question]) -> list[float]:
    """Whether the agent was shown a chunk that answers: 1, else 0."""
    return [float(mrr > 0) for mrr in get_mrr(episodes, questions)]


def get_documents_found(episodes: Sequence[Episode], questions: Sequence[Question]) -> list[float]:
    """Share of the documents that a question needs of which the agent was shown a chunk that answers.

    Example: a#0, a#3 and b#1 answer, and c#0 and a#3 were shown: .5.
    """
    return [
        len(documents_of(hit for hit in episode.hits if hit in question.relevant_chunk_ids))
        / max(1, len(documents_of(question.relevant_chunk_ids)))
        for episode, question in zip(episodes, questions, strict=True)
    ]


def get_own_reward(episodes: Sequence[Episode], questions: Sequence[Question]) -> list[float]:
    """What an agent of get_agent returned beside its answer; 0 where it did not."""
    return [episode.own_reward or 0.0 for episode in episodes]


def get_best_search(episodes: Sequence[Episode], questions: Sequence[Question], searcher: Searcher) -> list[float]:
    """`rank_score` of the best search by itself, however many came before it: for questions that need more than one.

    Example, searched for 100 chunks: the first search finds nothing, the second what answers at rank 10: .5, where
    get_mrr counts the chunks shown before.
    """
    return _best(episodes, questions, searcher, lambda _, place: rank_score(place.rank))


def get_search_gain(episodes: Sequence[Episode], questions: Sequence[Question], searcher: Searcher) -> list[float]:
    """What the agent's searches found beyond a search for the question itself: .5 if as much, 1 at best, 0 at worst.

    Both are judged by `rank_score` of the first relevant chunk, searched for DEPTH chunks deep, so a step from rank
    40 to 12 counts too. A second search only helps if the first one failed: it comes after the chunks shown from the
    first. Without a search nothing is found. Example: found at rank 10 (.5) where the question finds at rank 100 (0):
    (1 + .5) / 2 = .75.
    """

    def score(before: int, place: AnswerRank) -> float:
        return rank_score(place.rank and place.rank + before * searcher.settings.k)

    scores = _best(episodes, questions, searcher, score)
    own = searcher.own_places(questions)
    return [(1 + score - rank_score(raw.rank)) / 2 for score, raw in zip(scores, own, strict=True)]


def get_search_margin(episodes: Sequence[Episode], questions: Sequence[Question], searcher: Searcher) -> list[float]:
    """By how much the best search scores a chunk that answers above the best one that doesn't: above .5 at rank 1.

    Ranks are the same for many queries, margins for hardly any two, so beside a reward for ranks this one tells apart
    what ranks alike. Example: scores 2 for what answers and 3 for another chunk: 2 / (2 + 3) = .4.
    """
    return _best(episodes, questions, searcher, lambda _, place: place.margin)


def _best(
    episodes: Sequence[Episode], questions: Sequence[Question], searcher: Searcher,
    score: Callable[[int, AnswerRank], float],
) -> list[float]:  # fmt: skip
    """The best score of each episode's searches, of those whose results were read; 0 without any.

    `score` is given the number of searches before, and what this one found.
    """
    searches = [
        (number, before, search.query)
        for number, episode in enumerate(episodes)
        for before, search in enumerate(episode.read_searches)
    ]
    asked = [questions[number] for number, _, _ in searches]
    found = searcher.places(asked, [query for _, _, query in searches])
    scores = [0.0] * len(episodes)
    for (number, before, _), place in zip(searches, found, strict=True):
        scores[number] = max(scores[number], score(before, place))
    return scores


def rank_score(rank: int | None) -> float:
    """From 1 at rank 1 to 0 at DEPTH, on a log scale. Example: rank 10 gives .5; not found gives 0."""
    return 0.0 if rank is None or rank > DEPTH else 1 - math.log(rank) / math.log(DEPTH)


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
        # Nothing counts as shown where the policy wrote a response itself: a transcript can't tell whose it is.
        responses = [] if "forged_response" in episode.faults else RESPONSE.findall(episode.transcript)
        shown = set(words_of(UNFOUND.sub("", "\n".join(responses))))
        shares.append(len(words & shown) / len(words) if words else 0.0)
    return shares


def where_known(scores: Sequence[float], questions: Sequence[Question]) -> list[float | None]:
    """The scores, None for a question without a reference answer."""
    return [score if has_reference(question) else None for score, question in zip(scores, questions, strict=True)]


def has_reference(question: Question) -> bool:
    return bool(question.answer.strip())


def get_format_reward(episodes: Sequence[Episode], questions: Sequence[Question]) -> list[float]:
    """A third each for running a search, for ending as asked, and for the share of turns without faults.

    As asked is with an answer or, where --max-turns leaves only searches, with the last of them.

    Example: a well-formed search, then a turn with broken JSON, then an answer: 1/3 + 1/3 + 1/3 * 2/3.
    """
    return [
        (bool(e.searches) + (e.stop in AS_ASKED) + sum(not t.faults for t in e.all_turns) / max(1, len(e.all_turns)))
        / 3
        for e in episodes
    ]


# What the trainer measures, since only it has the policy (forage/grpo/gain.py).


def get_information_gain(episodes: Sequence[Episode], questions: Sequence[Question]) -> list[None]:
    """By how much likelier all that was found makes the reference answer to the policy: (1 + gain) / 2.

    The reference is taken as the policy's next answer, once after the prompt and once after the last result, and needs
    no label of what answers. Example: its tokens have a probability of .2, then of .6: .7. None without a reference.
    https://arxiv.org/abs/2510.14967
    """
    return [None for _ in zip(episodes, questions, strict=True)]


MEASURED = "information_gain"


# Combination: an episode's named rewards become one. Pure functions of arrays.
#
# Shapes: N episodes, R rewards. A reward that does not exist for an episode's question (there is no reference answer to
# compare with) is NaN in the arrays and absent from `Episode.rewards`: it counts neither for nor against the episode.

Floats = NDArray[np.float64]
RewardFunction = Callable[[Sequence[Episode], Sequence[Question]], Sequence[float | None]]
ROUNDING = 1e-6  # a mean of ones may come out a little over 1
Method = Literal["uniform", "std", "pca", "l2"]


class MakeRewards(Protocol):
    """Returns the reward functions by name, as grpo_rollout.get_reward_functions does.

    One without the parameter `searcher` is taken too (`rewards_of`).
    """

    def __call__(self, embedder: Embedder, searcher: Searcher) -> Mapping[str, RewardFunction]: ...


def rewards_of(
    make: MakeRewards, embedder: Embedder, searcher: Searcher, weights: Sequence[str] = ()
) -> Mapping[str, RewardFunction]:
    """The rewards of `make`, or exactly those that --weights names: of `make`, of this module, or any module:name."""
    given = {"embedder": embedder, "searcher": searcher}
    edited: Mapping[str, RewardFunction] = fitted(make, {"searcher": searcher})(embedder)
    if not weights:
        return checked(edited)
    named = weights_named(weights)
    shipped = {re.sub("^get_|_reward$", "", n): f for n, f in globals().items() if n.startswith("get_")}
    found = shipped | {name: imported("--weights", name) for name in named if ":" in name}
    known = {name: fitted(function, given) for name, function in found.items()} | dict(edited)
    if unknown := named.keys() - known.keys():
        raise UserError(f"--weights: there is no reward {min(unknown)!r}; choose among {', '.join(sorted(known))}")
    return checked({name: known[name] for name in named})


def checked(functions: Mapping[str, RewardFunction]) -> Mapping[str, RewardFunction]:
    """The same; refuses another function by the name of what the trainer measures, and that by another name."""
    for name, function in functions.items():
        if (getattr(function, "func", function) is get_information_gain) != (name == MEASURED):
            raise UserError(
                f"reward {name!r}: the trainer measures {MEASURED} by this name alone; give it another name, or "
                "get_information_gain this one"
            )
    return functions


def fitted(function: Callable[..., Any], given: Mapping[str, Any]) -> Callable[..., Any]:
    """The function with those of the given arguments that it takes by name."""
    return partial(function, **{key: given[key] for key in inspect.signature(function).parameters if key in given})


def reward_matrix(
    functions: Mapping[str, RewardFunction], episodes: Sequence[Episode], questions: Sequence[Question]
) -> Floats:
    """(N, R): each function's value for each episode, NaN where it gave None.

    A function that fails stops the run with its name, as does a value that is no number from 0 to 1.
    """
    columns = [_column(name, function, episodes, questions) for name, function in functions.items()]
    return np.stack(columns, axis=1)


def _column(name: str, function: RewardFunction, episodes: Sequence[Episode], questions: Sequence[Question]) -> Floats:
    try:
        given = function(episodes, questions)
        column: Any = np.asarray(given, dtype=np.float64)  # None becomes NaN
    except UserError as error:
        raise UserError(f"reward {name!r}: {error}") from error
    except Exception as error:  # a user's code may raise anything; it is reported, not hidden
        at = traceback.extract_tb(error.__traceback__)[:2][-1]  # where the reward, or numpy, was when it failed
        raise UserError(
            f"reward {name!r} raised {type(error).__name__}: {error} ({at.filename}:{at.lineno})"
        ) from error
    if column.shape != (len(episodes),):
        raise UserError(f"reward {name!r} gave {column.shape} values for {len(episodes)} episodes")
    absent = np.array([value is None for value in given], dtype=bool)
    wrong = ~absent & ~((column >= -ROUNDING) & (column <= 1 + ROUNDING))
    if wrong.any():
        first = int(np.flatnonzero(wrong)[0])
        raise UserError(
            f"reward {name!r} gave {column[first]} for episode {episodes[first].id}; scale it to lie between 0 and 1, "
            "and return None where it does not exist"
        )
    exists = {episode.question_id: not missing for episode, missing in zip(episodes, absent, strict=True)}
    for episode, missing in zip(episodes, absent, strict=True):
        if exists[episode.question_id] == missing:
            raise UserError(
                f"reward {name!r} gave None for some episodes of question {episode.question_id} only, which can't be "
                "compared with the others; whether a reward exists must depend on the question alone"
            )
    return np.asarray(column.clip(0, 1))


def weights_by_name(names: Iterable[str], given: Sequence[str]) -> dict[str, float]:
    """The weight of each reward, from --weights; 1 each if none is given."""
    named = weights_named(given)
    return {name: named.get(name, 0.0) if named else 1.0 for name in names}


def names_of_rewards(episodes: Iterable[Episode]) -> list[str]:
    """The rewards that any of the episodes has."""
    return list(dict.fromkeys(name for episode in episodes for name in episode.rewards))


def combine_rewards(rewards_NR: Floats, method: Method = "uniform", weights_R: Sequence[float] | None = None) -> Floats:
    """(N,): one reward per episode. `weights_R` multiply the method's own weights; by default all are 1.

    An episode that lacks a reward is combined from the others: that reward's weight is 0 for it.

    uniform   weighted mean. [[1, 0], [0, 0]] with weights 3 and 1 gives .75 and 0.
    std       mean weighted by each reward's standard deviation over the batch: a reward on which all episodes agree
              can't tell them apart and has weight 0. If none varies, same as uniform.
    pca       mean weighted by each reward's absolute loading in the first principal component of the standardised
              rewards (what they have in common); rewards that don't vary have weight 0. If fewer than two vary, same
              as uniform. A missing reward counts as its column's mean.
    l2        length of the weighted vector divided by that of all ones: one high reward counts more than the same sum
              spread over several. [[1, 0]] gives .707.

    An episode whose existing rewards have no weight by std or pca is combined by uniform.
    """
    weights = np.ones(rewards_NR.shape[1]) if weights_R is None else np.asarray(weights_R, np.float64)
    exists_NR = ~np.isnan(rewards_NR)
    if not (exists_NR @ weights).all():
        raise UserError(
            "an episode's question has no reward of a weight over 0; give such a weight to a reward that every "
            "question has, or leave out the questions without a reference answer"
        )
    given_NR = np.where(exists_NR, rewards_NR, 0.0)
    if method == "l2":
        lengths_N = [np.linalg.norm(weights[exists_R]) for exists_R in exists_NR]
        return np.asarray(np.linalg.norm(given_NR * weights, axis=1) / np.array(lengths_N))
    uniform_N = given_NR @ weights / _totals(exists_NR, weights)
    if method == "uniform":
        return np.asarray(uniform_N)
    found = _deviations(rewards_NR) if method == "std" else first_component(rewards_NR)
    weights = weights * (found if (found * weights).sum() > 0 else 1.0)
    totals_N = _totals(exists_NR, weights)
    return np.where(totals_N > 0, given_NR @ weights / np.where(totals_N > 0, totals_N, 1.0), uniform_N)


def first_component(rewards_NR: Floats) -> Floats:
    """(R,) absolute loadings of the standardised rewards' first principal component; zeros if fewer than two vary.

    A component's sign is arbitrary, and a reward must never count against itself, so loadings are made positive.
    Example: two equal columns have equal loadings: [[0, 0], [1, 1]] gives .707 and .707.
    """
    varying = _deviations(rewards_NR) > 0
    rewards_NR = _filled(rewards_NR)
    if varying.sum() < 2:
        return np.zeros(rewards_NR.shape[1])
    loadings = np.zeros(rewards_NR.shape[1])
    chosen_NR = rewards_NR[:, varying]
    standardised_NR = (chosen_NR - chosen_NR.mean(axis=0)) / _deviations(chosen_NR)
    _, _, components = np.linalg.svd(standardised_NR, full_matrices=False)
    loadings[varying] = np.abs(components[0])
    return loadings


def rewarded(
    functions: Mapping[str, RewardFunction], episodes: Sequence[Episode], questions: Sequence[Question],
    weights_R: Sequence[float] | None = None,
) -> list[Episode]:  # fmt: skip
    """The episodes with those rewards that exist, by name, and with their weighted mean."""
    weights = dict(zip(functions, weights_R or [1.0] * len(functions), strict=True))
    return weighed(episodes, reward_matrix(functions, episodes, questions), weights)


def weighed(episodes: Sequence[Episode], rewards_NR: Floats, weights: Mapping[str, float]) -> list[Episode]:
    """The same of given values, NaN where a reward does not exist; `weights` are by name, in the order of columns."""
    means_N = combine_rewards(rewards_NR, "uniform", [*weights.values()])
    rows = [
        {name: value for name, value in zip(weights, row, strict=True) if not math.isnan(value)}
        for row in rewards_NR.tolist()
    ]
    triples = zip(episodes, rows, means_N.tolist(), strict=True)
    return [replace(episode, rewards=row, reward=mean) for episode, row, mean in triples]


def _deviations(values_NR: Floats) -> Floats:
    """Standard deviations, exactly 0 where all values are equal, whatever rounding does to their mean.

    Of a column with NaN, that of its other values.
    """
    if np.isnan(values_NR).any():
        return np.concatenate([_deviations(column[~np.isnan(column)][:, None]) for column in values_NR.T])
    varies = values_NR.max(axis=0, initial=-np.inf) > values_NR.min(axis=0, initial=np.inf)
    return np.where(varies, values_NR.std(axis=0) if len(values_NR) else 0.0, 0.0)


def _filled(values_NR: Floats) -> Floats:
    """The values with each NaN replaced by the mean of its column's others, which changes no mean."""
    counts_R = np.maximum((~np.isnan(values_NR)).sum(axis=0), 1)
    return np.where(np.isnan(values_NR), np.nansum(values_NR, axis=0) / counts_R, values_NR)


def _totals(exists_NR: NDArray[np.bool_], weights: Floats) -> Floats:
    """(N,): the weight of each episode's rewards."""
    return np.where(exists_NR.all(axis=1), weights.sum(), exists_NR @ weights)


# Credit: what each word of a query added to what its search found, for the tokens that say the word.

Decode = Callable[[Sequence[int]], str]
STRETCH = 16  # tokens that are decoded together
CALLED = re.compile(rf'"name"\s*:\s*"{SEARCH}"')
QUERY = r'"query"\s*:\s*"({})"'


@dataclass(frozen=True)
class Word:
    """A word of a query."""

    text: str
    tokens: list[int]
    """Places of the sampled tokens that say it."""
    again: bool = False
    """Whether the query has said it before."""

    @property
    def name(self) -> str:
        return self.text.casefold()


def credited(
    episodes: Sequence[Episode], question: Question, searcher: Searcher, decode: Decode, cost: float = 0.0
) -> list[Episode]:
    """A question's episodes with `credits`: what the search would lose without the word that a token says.

    Example: "gout signs" ranks what answers first (1), "gout" tenth (.5) and "signs" not at all (0):
    the tokens of "gout" have a credit of 1 and those of "signs" one of .5 (here without margins, which count as much as
    ranks). `cost` is subtracted from each word's credit. A word that is said again has no credit but its cost: the
    search would weigh it more, and a policy that learns to repeat itself does not end when it takes the likeliest word.

    Words after the one that is left out were sampled with it in sight, so this is no unbiased estimate of what the
    word is worth. Its variance is much smaller than that of the whole query's reward.
    """
    said = [
        (number, list(words_in(episode, search, decode, again)), search.query)
        for number, episode in enumerate(episodes)
        for search, again in counted(episode.read_searches)
    ]
    asked = [text for _, words, query in said for text in (query, *without_each(words))]
    places = iter(searcher.places([question] * len(asked), asked))
    credits = [[0.0] * len(episode.ids) if episode.searches else [] for episode in episodes]
    for number, words, _ in said:
        whole = value(next(places))
        for word in words:
            lost = 0.0 if word.again else whole - value(next(places))
            for token in word.tokens:
                credits[number][token] = lost - cost
    return [replace(episode, credits=tuple(each)) for episode, each in zip(episodes, credits, strict=True)]


def value(place: AnswerRank) -> float:
    """From 0 to 1: the mean of rank and margin, as get_search_gain and get_search_margin measure them."""
    return (rank_score(place.rank) + place.margin) / 2


def without_each(words: Sequence[Word]) -> Iterator[str]:
    """The query without each of its words, however often it says it.

    Example: "gout signs gout" gives "signs" and "gout gout".
    """
    for left_out in words:
        if not left_out.again:
            yield " ".join(word.text for word in words if word.name != left_out.name)


def counted(searches: Sequence[Search]) -> Iterator[tuple[Search, int]]:
    """Each search, and how many of its turn before it had the same query."""
    for number, search in enumerate(searches):
        yield search, sum((each.turn, each.query) == (search.turn, search.query) for each in searches[:number])


def words_in(episode: Episode, search: Search, decode: Decode, again: int = 0) -> Iterator[Word]:
    """Each word of a search's query, where its turn has said the same query `again` times before.

    A token belongs to the word of its last character that is no space. A query that does not stand in a call between
    quotes as it was searched for, such as one with escaped characters, has no words here, and so no credit.
    """
    if search.turn < 0:  # no turn of this conversation asked for it
        return
    first, last = episode.turns[search.turn].start, episode.turns[search.turn].end
    text, field = decode(episode.ids[first:last]), re.compile(QUERY.format(re.escape(search.query)))
    found = [(call.start(1), field.search(call[1])) for call in CALL.finditer(text) if CALLED.search(call[1])]
    places = [start + match.start(1) for start, match in found if match]
    if again >= len(places):
        return
    offset, ends = places[again], ends_of(episode.ids[first:last], decode)
    said = set[str]()
    for match in re.finditer(r"\S+", search.query):
        start, end = match.start() + offset, match.end() + offset
        tokens = [first + n for n, at in enumerate(ends) if start < at <= end and (not n or ends[n - 1] < at)]
        word = Word(match[0], [token for token in tokens if episode.mask[token]], match[0].casefold() in said)
        said.add(word.name)
        yield word


def ends_of(ids: Sequence[int], decode: Decode) -> list[int]:
    """How long the text is up to each token, without spaces at its end.

    What was decoded long before a token isn't decoded again for it. Each stretch begins with the last token of the one
    before, so that it does not matter how a tokenizer decodes the first one, whose space some leave out.
    """
    ends, first, before = list[int](), 0, 0
    for place in range(len(ids)):
        text = decode(ids[first : place + 1])
        ends.append(before + len(text.rstrip()))
        if place - first == STRETCH:
            first, before = place, before + len(text) - len(decode(ids[place : place + 1]))
    return ends
