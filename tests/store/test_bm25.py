"""Our precomputed BM25 is rank_bm25's BM25Okapi."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_bm25 import BM25Okapi

from forage.data.corpus import QUESTIONS
from forage.data.records import Document, clean
from forage.files import json_lines
from forage.store.bm25 import BM25, Titles, Tokenizer, said_share
from forage.store.document_store import DocumentStore
from forage.store.fusion import top_k
from forage.store.options import StoreOptions
from tests.factories import plain_store

WORDS = st.sampled_from(["a", "b", "c", "d", "e", "f", "g"])
CORPUS = st.lists(st.lists(WORDS, max_size=12), min_size=1, max_size=40).filter(lambda texts: any(texts))


@settings(max_examples=300)
@given(corpus=CORPUS, query=st.lists(WORDS | st.just("unknown"), max_size=6))
def test_scores_equal_okapi_on_any_corpus(corpus, query):
    expected = BM25Okapi(corpus).get_scores(query)
    np.testing.assert_allclose(BM25.build(corpus).scores(query), expected, rtol=0, atol=1e-9)


def test_ids_and_scores_equal_okapi_on_the_sample_data():
    tokenize = Tokenizer()
    rows = [row for _, row in json_lines(QUESTIONS)]
    corpus = [tokenize(clean(row["answer"])) for row in rows]
    ours, okapi = BM25.build(corpus), BM25Okapi(corpus)
    for row in rows:
        words = tokenize(row["question"])
        expected = okapi.get_scores(words)
        found = ours.rank(words, 10)
        assert found.ids.tolist() == top_k(expected, 10, above=0.0).tolist()
        np.testing.assert_allclose(found.scores, expected[found.ids], rtol=0, atol=1e-9)


def test_a_store_that_scores_by_rank_bm25_finds_the_same(tmp_path):
    texts = ["Gout hurts a toe at night.", "Asthma narrows airways at night.", "Rest helps a toe."]
    found = []
    for bm25 in ("own", "rank_bm25"):
        plain_store(tmp_path / bm25, texts, bm25=bm25)
        hits = DocumentStore.open(tmp_path / bm25).search("why does a toe hurt at night", 3, "sparse")
        found.append([(hit.chunk_id, pytest.approx(hit.score)) for hit in hits])
    assert len(found[0]) == 3
    assert found[0] == found[1]


def test_of_one_or_two_texts_a_word_finds_those_that_have_it():
    """By hand: BM25Okapi's idf of a word in 1 of 2 texts is log(1.5 / 1.5) = 0, and below 0 where all have it."""
    one, two = BM25.build([["gout", "toe"]]), BM25.build([["gout", "toe", "toe"], ["flu", "toe"]])
    assert found(one, ["toe"]) == found(one, ["toe", "flu"]) == [(0, 1.0)]
    assert found(one, ["flu"]) == found(two, ["asthma"]) == found(BM25.build([]), ["toe"]) == []
    assert found(two, ["flu"]) == [(1, 1.0)]
    assert found(two, ["toe", "gout", "gout"]) == [(0, 2.0), (1, 1.0)]


def found(index, words):
    ranking = index.rank(words, 3)
    return list(zip(ranking.ids.tolist(), ranking.scores.tolist(), strict=True))


# Titles against a query's words


TITLES = [
    "Gouty arthritis",
    "Gouty arthritis",
    "",
    "Asthma",
    "Heart attack",
    "Heart attack",
    "Chronic gouty nephropathy",
]
EVERY = np.arange(len(TITLES))


def scores_of(said, chunks=EVERY, by_share=True):
    """By chunk, the best first."""
    found = Titles.build(TITLES, Tokenizer()).rank(Tokenizer()(said), np.array(chunks, np.int64), by_share)
    return dict(zip(found.ids.tolist(), found.scores.tolist(), strict=True))


def test_shares_of_the_words_of_each_distinct_title():
    # Gouty arthritis, "", Asthma, Heart attack, Chronic gouty nephropathy; a word counts once, however often it is said
    said = Tokenizer()("Is it the heart, the heart or gouty?")
    titles = Titles.build(TITLES, Tokenizer()).words
    assert [said_share(title, said) for title in titles] == pytest.approx([1 / 2, 0, 0, 1 / 2, 1 / 3])
    assert said_share(titles[0], []) == 0


def test_the_best_title_counts_as_much_as_was_said_of_it():
    for by_share in (True, False):  # asthma is said in full
        assert next(iter(scores_of("Why does asthma attack at night?", EVERY, by_share).items())) == (3, 1.0)
    assert list(scores_of("an attack").items())[:3] == [(4, 0.5), (5, 0.5), (0, 0)]
    assert list(scores_of("an attack", EVERY, False).items())[:3] == [(4, 1), (5, 1), (0, 0)]


def test_a_title_that_scores_half_as_much_as_the_best_counts_a_quarter():
    said = "attack of gouty arthritis"
    scores = np.abs(Titles.build(TITLES, Tokenizer()).index.scores(Tokenizer()(said)))
    assert scores_of(said, EVERY, False)[4] == pytest.approx((scores[3] / scores[0]) ** 2)
    assert scores_of(said)[4] == pytest.approx((scores[3] / scores[0]) ** 2 / 2)


def test_a_title_of_a_negative_score_is_not_the_best():
    few = Titles.build(["flu", "flu heart flu", "flu flu"], str.split)  # with -.23, .20 and -.26
    assert few.rank(["heart", "flu"], np.arange(3), by_share=False).scores.tolist() == [1, 0, 0]
    assert few.rank(["heart", "flu"], np.array([0, 2]), by_share=False).scores.tolist() == [0, 0]


def test_only_the_given_chunks_are_ranked_and_the_best_among_them_is_the_measure():
    assert list(scores_of("heart attack and asthma", [2, 3, 6]).items()) == [(3, 1), (2, 0), (6, 0)]
    assert list(scores_of("measles", [2, 3]).items()) == [(2, 0), (3, 0)]
    assert scores_of("asthma", []) == {}


# Other languages


RUSSIAN = {
    "Подагра": "При подагре болит большой палец ноги. Причина в мочевой кислоте.",
    "Астма": "Дыхательные пути сужаются. Человеку трудно дышать.",
    "Мигрень": "Головная боль с одной стороны. Помогает тёмная комната.",
    "Анемия": "Не хватает железа. Кожа бледная.",
}
CHINESE = {
    "痛风": "痛风是尿酸过多引起的。大脚趾在夜里会很痛。",
    "哮喘": "气道变窄，病人呼吸困难。",
    "偏头痛": "头的一侧疼痛，安静的暗室有帮助。",
    "贫血": "身体缺铁，皮肤苍白。",
}


def first_titles(folder, texts, language, *queries):
    documents = [Document(str(n), title, text) for n, (title, text) in enumerate(texts.items())]
    store = plain_store(folder / language, documents, language=language)
    assert DocumentStore.open(folder / language).options.language == language
    return [hits[0].title if hits else "" for hits in store.search(queries, 1, "sparse")]


@pytest.mark.parametrize(
    ("language", "texts", "queries"),
    [
        ("russian", RUSSIAN, {"от подагры": "Подагра", "человек дышит с трудом": "Астма", "мигрени": "Мигрень"}),
        ("other", CHINESE, {"脚趾痛是什么病": "痛风", "呼吸很困难": "哮喘", "皮肤为什么苍白": "贫血"}),
    ],
)
def test_a_language_finds_what_english_does_not(tmp_path, language, texts, queries):
    assert first_titles(tmp_path, texts, language, *queries) == list(queries.values())
    assert first_titles(tmp_path, texts, "english", *queries) != list(queries.values())


@pytest.mark.parametrize(
    ("language", "text", "words"),
    [
        ("german", "Die Häuser der FÜSSE", ["die", "haus", "der", "fuss"]),
        ("russian", "подагра подагры ПОДАГРЕ", ["подагр"] * 3),
        ("other", "痛风的病因。铁", ["痛风", "风的", "的病", "病因", "铁"]),
    ],
)
def test_words_by_hand(language, text, words):
    assert Tokenizer(language=language)(text) == words


def test_chunks_of_a_script_without_spaces_are_not_endless(tmp_path):
    document = Document("d", "痛风", "痛风很痛。" * 100)
    options = StoreOptions("none", chunk_tokens=50, chunk_overlap=0, language="other")
    store = DocumentStore.build(tmp_path / "store", [document], options)
    assert len(store.chunks) == 10
    assert {len(chunk.text) for chunk in store.chunks} == {50}
