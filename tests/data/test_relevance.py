"""Which chunks answer a question, and a split that shares no document."""

from hypothesis import given
from hypothesis import strategies as st

from forage.data.chunking import Chunk
from forage.data.qa_rows import QARow
from forage.data.records import Question
from forage.data.relevance import make_questions, relevant_chunks, shared_share, split_by_document, trigrams


def chunk(doc_id, index, text, of=3):
    return Chunk(doc_id, "t", text, 0, len(text), index, of)


def test_trigrams_by_hand():
    assert trigrams("Rest, and drink water.") == {("rest", "and", "drink"), ("and", "drink", "water")}
    assert trigrams("Two words") == {("two", "words")}
    assert trigrams(" ") == frozenset()
    assert shared_share(trigrams("a b c d"), trigrams("x a b c y")) == 0.5
    assert shared_share(frozenset(), trigrams("a b c")) == 0


def test_a_chunk_is_relevant_when_half_of_the_shorter_is_shared():
    answer = "one two three four five six seven eight nine ten"
    chunks = [
        chunk("d", 0, "one two three four five six"),  # a part of the answer
        chunk("d", 1, "zero one two other words stand here"),  # one triple of five
        chunk("d", 2, "before it " + answer + " and much more after it, of another matter altogether"),
    ]
    assert relevant_chunks(answer, chunks) == ["d#0", "d#2"]


def row(number, question, answer, kind="symptoms"):
    return QARow(f"r{number}", question, answer, f"http://x.example/{number}", "Gout", kind)


def test_rows_that_ask_the_same_are_one_question_and_the_rest_is_counted():
    chunks = [chunk("d1", 0, "the toe swells at night", 1), chunk("d2", 0, "a red and sore toe at night", 1)]
    rows = [
        row(1, "What are the symptoms of Gout ?", "The toe  swells\n\nat night"),
        row(2, "what are the symptoms of gout?", "A red and sore toe at night"),
        row(3, "What causes it?", "Nothing that is in the documents"),
        row(4, "", "An answer"),
        row(5, "A question", ""),
    ]
    questions, left_out = make_questions(rows, ["d1", "d2", "d1", "", ""], chunks)
    assert questions == [
        Question(
            "r1", "What are the symptoms of Gout ?", "The toe swells\nat night", "symptoms", "Gout",
            ("d1", "d2"), ("d1#0", "d2#0"),
        )
    ]  # fmt: skip
    assert left_out == {
        "same question, merged": 1, "answer in no document": 1, "no question": 1, "no answer": 1,
    }  # fmt: skip


DOC = st.integers(0, 30).map("d{}".format)
QUESTIONS = st.lists(st.lists(DOC, min_size=1, max_size=3).map(tuple), min_size=1, max_size=40).map(
    lambda docs: [Question(f"q{i}", "?", "!", relevant_doc_ids=ids) for i, ids in enumerate(docs)]
)


@given(questions=QUESTIONS, share=st.floats(0.05, 0.95), seed=st.integers(0, 5))
def test_no_document_is_on_both_sides(questions, share, seed):
    train, held_out = split_by_document(questions, share, seed)
    assert sorted(q.id for q in train + held_out) == sorted(q.id for q in questions)
    assert not {d for q in train for d in q.relevant_doc_ids} & {d for q in held_out for d in q.relevant_doc_ids}
    assert (train, held_out) == split_by_document(questions, share, seed)


def test_a_question_asked_twice_in_other_spellings_stays_on_one_side():
    """As in a rewriter's train.jsonl, whose lines are not merged."""
    twice = [("What is gout?", "a"), ("what is GOUT", "b"), ("What is flu?", "c"), ("Is flu hot?", "d")]
    questions = [Question(f"q{n}", text, "", relevant_doc_ids=(doc,)) for n, (text, doc) in enumerate(twice)]
    sides = {
        tuple(sorted(q.id for q in side)) for seed in range(20) for side in split_by_document(questions, 0.4, seed)
    }
    assert all(("q0" in side) == ("q1" in side) for side in sides)
    assert any("q0" in side and "q2" not in side for side in sides)
