"""Questions that need two documents, by hand: what is a mention, what describes, what is left out, what stays apart."""

from dataclasses import replace
from functools import partial

import pytest

from forage.data.chunking import Chunk
from forage.data.records import Document, Question
from forage.data.relevance import split_by_document
from forage.extras.questions.headroom import Headroom, advice, headroom
from forage.extras.questions.making import gives_away
from forage.extras.questions.two_documents import (
    Passages,
    akin,
    description,
    is_telling,
    link,
    mentions,
    without_name,
)
from forage.store.document_store import DocumentStore
from forage.store.options import StoreOptions


def chunk(doc, index, text, title):
    return Chunk(doc, title, text, 0, len(text), index, 2)


def asks(doc, title, asked="What causes {}?"):
    return Question(f"q-{doc}", asked.format(title), "Because.", "causes", "", (doc,), (f"{doc}#0",))


# Twice each, so that the words that describe are no misprints.
SWOLLEN = "Crystals swell inside joints, which also happens in kidney failure after many silent years."
CHUNKS = [
    chunk("g", 0, SWOLLEN, "Gouty toe"),
    chunk("k", 0, "Filters stop working.", "Kidney failure"),
    chunk("m", 0, "Crystals swell inside joints; many silent years happens.", "Mumps virus"),
]


def made(ranks, questions=None, words=4, found=None):
    passages = Passages(CHUNKS)
    asked = [asks("k", "kidney failure")] if questions is None else questions
    describe = partial(description, passages.telling, words, 0)
    found = passages.mentions if found is None else found
    return link(passages, asked, found, describe, lambda qs: [ranks] * len(qs), 0)


def test_a_mention_is_anothers_whole_name_the_longest_that_begins_there():
    names = ["Gouty toe", "Kidney failure", "kidney failure diet", "Toe nails"]
    found = mentions(
        [
            chunk("g", 0, "Gouty toe, kidney failure diet. Kidney Failure! kidney failures", "Gouty toe"),
            chunk("k", 0, "A kidney failure diet helps; gouty toe", "Kidney failure"),  # akin to its own name
        ],
        names,
    )
    assert [(each.chunk.doc_id, each.place, " ".join(each.name)) for each in found] == [
        ("g", 2, "kidney failure diet"),
        ("g", 5, "kidney failure"),
        ("k", 5, "gouty toe"),
    ]
    everywhere = [chunk(f"d{n}", 0, "gouty toe", "Rye") for n in range(31)]
    assert len(mentions(everywhere[:30], names)) == 30
    assert mentions(everywhere, names) == []  # it names no one thing
    assert mentions([chunk("d", 0, "a big toe", "Rye")], ["Toe"]) == []  # three letters


def test_a_question_is_asked_in_words_from_around_the_name():
    linked = made(["g#0", "m#0"])
    (question,) = linked.kept
    said, _, asked = question.question.partition(": ")
    around = {"crystals", "swell", "inside", "joints", "happens", "many", "silent", "years"}
    assert set(said.split()) <= around
    assert len(said.split()) == 4
    assert (question.id, asked, question.focus) == ("q-k-after-g", "What causes this?", "Kidney failure")
    assert question.relevant_chunk_ids == ("k#0",)
    assert (linked.dropped, linked.named) == ([], 1.0)
    assert made(["m#0", "g#0"]).named == 0.0
    assert made(["g#0"]).kept == linked.kept  # drawn by the seed and the question's id


def test_what_is_left_out_is_told_with_its_cause():
    causes = {
        "one search finds its answer (10 passages)": made(["g#0", "k#0"]),
        "nothing describes its name": made([], words=9),
        "doesn't say its title": made([], [asks("k", "it")]),
    }
    for cause, linked in causes.items():
        assert ([each for _, each in linked.dropped], linked.kept) == ([cause], [])


def test_a_description_says_nothing_of_either_name():
    [mention] = Passages(CHUNKS).mentions
    fit = {"crystals", "kidneys", "toes", "silent"}
    assert description(fit, 2, 0, mention, "q") in ("crystals silent", "silent crystals")
    assert description(fit, 3, 0, mention, "q") == ""
    assert not gives_away("an ill that fills joints", mention)
    for text in ("many silent kidneys", "Kidney  failure.", "what gouty things have"):
        assert gives_away(text, mention)
    assert akin("kidneys", ["kidney"])
    assert akin("leukemias", ["leukemia"])
    assert not akin("crystals", ["gout"])


@pytest.mark.parametrize(
    ("question", "title", "asked"),
    [
        ("What causes Gout ?", "Gout", "What causes this?"),
        ("Is gout inherited?", "Gout", "Is this inherited?"),
        ('What does "Rye (bread)" say about a crumb?', "Rye (bread)", "What does this say about a crumb?"),
        ("What causes gouty toes?", "Gout", ""),  # another word
        ("What causes it?", " ", ""),
    ],
)
def test_the_name_goes_from_the_question(question, title, asked):
    assert without_name(question, title) == asked


@pytest.mark.parametrize(
    ("word", "count", "told"),
    [("crystals", 5, True), ("crystals", 4, False), ("crystals", 500, True), ("crystals", 501, False),
     ("toe", 50, False), ("with", 50, False), ("b12vitamin", 50, False)],
)  # fmt: skip
def test_words_that_describe_are_neither_rare_nor_everywhere(word, count, told):
    assert is_telling(word, count, 10_000) == told  # 5 passages at least, 5 % at most


def test_no_document_serves_questions_of_both_sides():
    """a mentions b and c; x answers nothing and mentions c twice and b once."""
    chunks = [
        chunk("a", 0, "beta name, gamma name", "alpha name"),
        chunk("b", 0, "gamma name", "beta name"),
        chunk("c", 0, "alpha name", "gamma name"),
        chunk("x", 0, "gamma name", "other"),
        chunk("x", 1, "gamma name and beta name", "other"),
    ]
    passages = Passages(chunks)
    train, held = passages.apart([asks("a", "alpha name"), asks("b", "beta name")], [asks("c", "gamma name")])
    assert [(each.chunk.doc_id, " ".join(each.name)) for each in train] == [("a", "beta name")]
    assert [(each.chunk.id, " ".join(each.name)) for each in held] == [("x#0", "gamma name"), ("x#1", "gamma name")]
    assert {("a", "b"), ("x", "c")} <= set(passages.links())
    both = replace(asks("c", "gamma name"), relevant_doc_ids=("c", "b"))  # as in a collection that splits its queries
    assert passages.apart([asks("a", "alpha name"), asks("b", "beta name")], [both])[0] == []
    same = [*chunks, chunk("d", 0, "nothing", "gamma name")]  # another document about what is held out
    train, _ = Passages(same).apart([asks("a", "alpha name"), asks("d", "gamma name")], [asks("c", "gamma name")])
    assert "gamma name" not in {" ".join(each.name) for each in train}


def test_linked_documents_are_held_out_together():
    questions = [asks(name, name) for name in "abcdefgh"]
    pairs = [("a", "e"), ("b", "f"), ("c", "g"), ("d", "h"), ("a", "extra")]
    for seed in range(20):
        train, held_out = split_by_document(questions, 0.5, seed, pairs)
        sides = [{question.relevant_doc_ids[0] for question in side} for side in (train, held_out)]
        assert len(sides[1]) == 4
        assert all(len({one, other} & sides[1]) in (0, 2) for one, other in pairs[:4]), seed


def test_headroom_is_counted_by_hand(tmp_path):
    """One question is answered at once, one by a search for the name that is read, one never."""
    texts = {
        "Rye": "Rye is sown in fall on sandy ground. " + "Bread of it keeps. " * 12 + "Rust spores harm the ears.",
        "Barley": "Malt for beer comes from sprouting grain; unlike Bindweed it is wanted. " + "More on malt. " * 12,
        "Bindweed": "Bindweed is pulled out before June.",
        **{f"Note {n}": f"Malt sprouting grain beer wanted note number {n} of many." for n in range(4)},
    }
    plain = StoreOptions(embedder="none", chunk_tokens=40, chunk_overlap=0)
    store = DocumentStore.build(tmp_path, [Document(name, name, text) for name, text in texts.items()], plain)
    first = {chunk.title: chunk.id for chunk in reversed(store.chunks)}
    asked = {
        "sandy ground: What is sown?": "Rye",
        "sprouting grain unlike wanted: How?": "Bindweed",
        "quagga?": "Barley",
    }
    questions = [Question(text, text, "", relevant_chunk_ids=(first[title],)) for text, title in asked.items()]
    found = headroom(store, Passages(store.chunks), questions, "sparse")
    assert found.mode == "sparse"
    shares = (found.one, found.longer, found.second, found.whole, found.none)
    assert shares == pytest.approx((1 / 3, 1 / 3, 2 / 3, 1 / 3, 1 / 3))


@pytest.mark.parametrize(
    ("one", "longer", "second", "says", "runs"),
    [
        (0.96, 0.99, 1.0, "little", "answer_similarity=2"),
        (0.02, 0.18, 1.0, "82 points more than one of 9 passages", "--blind names --phrases 4"),
        (0.67, 0.9, 0.88, "90% if it shows 9 passages", "--k 9"),  # a second search finds no more than a longer list
        (0.1, 0.12, 0.12, "search better first", ""),
    ],
)
def test_what_is_advised(one, longer, second, says, runs):
    said, *commands = advice(Headroom("sparse", one, longer, second, 0, 0), 0.3, 24, "data/own").split("\n")
    assert says in said
    assert said.endswith("With 24 held out, differences below 0.22 may not be shown")
    assert bool(commands) == bool(runs)
    assert runs in " ".join(commands)
    assert all("--data data/own " in command for command in commands)
    assert all("--mode sparse" in command for command in commands if "sft_train" in command)
    assert all("--eval-questions 24 " in command for command in commands if "grpo_train" in command)


def test_no_training_is_advised_on_a_handful_of_questions():
    said = advice(Headroom("sparse", 0.0, 0.0, 1.0, 0, 0), 0.0, 5, "data/own")
    assert "once there are more questions. With 5 held out" in said
    assert "grpo_train" not in said
