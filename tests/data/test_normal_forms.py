"""The whole data door: in whichever normal form a text comes, the same is asked, held out and found."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from forage.data.chunking import Chunk
from forage.data.collection import document_of
from forage.data.documents import assemble
from forage.data.options import Columns
from forage.data.qa_rows import to_rows
from forage.data.relevance import make_questions, question_key, split_by_document
from forage.metrics import token_f1
from forage.store.bm25 import Tokenizer

SCRIPTS = "aZ é Å ñ ß ǆ ий Ёё ά ΐ Ω हि की कि क़ ড় กิ น้ำ 한글 각 がパ 痛 ệ ö̲ ﬁ x² ½ ①".replace(" ", "")
WORDS = st.text(st.sampled_from(SCRIPTS), min_size=1, max_size=6)
TEXTS = st.lists(WORDS, min_size=3, max_size=6).map(" ".join)
ROWS = st.lists(st.tuples(TEXTS, TEXTS, WORDS), min_size=2, max_size=6)


def in_form(form, values):
    return [unicodedata.normalize(form, value) for value in values]


def through_the_door(rows):
    """(questions, both sides of the split) of a data set whose answers are the documents."""
    names = ("id", "question", "answer", "url")
    read, _ = to_rows([dict(zip(names, row, strict=True)) for row in rows], Columns())
    library = assemble(read, {})
    chunks = [Chunk(d.id, d.title, d.text, 0, len(d.text), 0, 1) for d in library.documents]
    questions, _ = make_questions(read, library.doc_of_row, chunks)
    return questions, split_by_document(questions, 0.5, 0)


@given(ROWS)
def test_any_form_gives_the_same_questions_and_split(rows):
    rows = [(str(number), *row) for number, row in enumerate(rows)]
    one, other = ([in_form(form, row) for row in rows] for form in ("NFC", "NFD"))
    assert through_the_door(one) == through_the_door(other)
    mixed = [other[number] if number % 2 else row for number, row in enumerate(one)]
    assert through_the_door(one) == through_the_door(mixed)
    again = [(f"r{number}", *row[1:]) for number, row in enumerate(other)]  # the same rows once more
    assert len(through_the_door([*one, *again])[0]) == len(through_the_door(one)[0])


@given(TEXTS)
def test_any_form_is_compared_alike(text):
    forms = [unicodedata.normalize(form, text) for form in ("NFC", "NFD", "NFKC", "NFKD")]
    assert len({question_key(form) for form in forms}) == 1
    assert {token_f1(forms[0], form) for form in forms} == {1}
    for language in ("english", "other"):
        assert len({tuple(Tokenizer(language)(form)) for form in forms}) == 1
    assert document_of("d", {"title": forms[0], "text": text}) == document_of(
        "d", {"title": forms[1], "text": forms[0]}
    )


def test_questions_that_differ_in_a_vowel_sign_are_two():
    assert question_key("कि क्या है?") != question_key("की क्या है?")
    assert token_f1("कि", "की") == 0
