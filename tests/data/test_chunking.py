"""Chunks cover their document, sit where they say, and fit."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forage.data.chunking import chunk_document, chunk_spans
from forage.data.records import Document
from tests.refusals import refused


def count_words(texts):
    return [len(text.split()) for text in texts]


def count_characters(texts):
    """A tokenizer under which joined texts are longer than their parts' sum, as sub-word ones can be."""
    return [len(text.strip()) for text in texts]


TEXTS = st.text(alphabet=st.sampled_from("ab Z9.?!\n\té“)(,"), max_size=300)
MEDICAL = st.lists(
    st.sampled_from(
        ["Dr. Abel saw it.", "Rest, e.g. in bed. ", "Was it “flu?” ", "x" * 50, "\n\n", " ", "Über 1.5 mg."]
    ),
    max_size=30,
).map(" ".join)


@given(text=TEXTS | MEDICAL, size=st.integers(4, 40), overlap=st.integers(0, 3), words=st.booleans())
def test_spans_cover_every_character_in_order_and_fit(text, size, overlap, words):
    count = count_words if words else count_characters
    spans = chunk_spans(text, count, size, overlap)
    if not text.strip():
        assert spans == []
        return
    covered = {place for start, end in spans for place in range(start, end)}
    assert covered == set(range(len(text)))
    assert all(start < end for start, end in spans)
    assert spans == sorted(set(spans))
    assert max(count([text[start:end] for start, end in spans])) <= size


@given(text=TEXTS | MEDICAL, cuts=st.sets(st.integers(0, 300), max_size=5))
def test_offsets_are_right_and_no_chunk_crosses_a_section(text, cuts):
    document = Document("d", "t", text, sections=tuple(cuts))
    chunks = chunk_document(document, count_words, 8, 2)
    for index, chunk in enumerate(chunks):
        assert text[chunk.start : chunk.end] == chunk.text
        assert (chunk.id, chunk.index, chunk.of) == (f"d#{index}", index, len(chunks))
        assert not any(chunk.start < cut < chunk.end for cut in cuts)
    covered = {place for chunk in chunks for place in range(chunk.start, chunk.end)}
    assert all(text[place].isspace() for place in set(range(len(text))) - covered)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=MEDICAL, size=st.integers(16, 40))
def test_no_chunk_is_over_size_for_a_real_tokenizer(embedder, text, size):
    texts = [text[start:end] for start, end in chunk_spans(text, embedder.count_tokens, size, 8)]
    assert max(embedder.count_tokens(texts), default=0) <= size


def test_sentences_and_overlap_by_hand():
    text = "A b. C d. E f."
    assert [text[s:e] for s, e in chunk_spans(text, count_words, 4, 2)] == ["A b. C d. ", "C d. E f."]
    assert [text[s:e] for s, e in chunk_spans(text, count_words, 4, 0)] == ["A b. C d. ", "E f."]


def test_abbreviations_and_decimals_do_not_end_a_sentence():
    text = "Dr. Abel gave 1.5 mg. It helped."
    assert [text[s:e] for s, e in chunk_spans(text, count_words, 5, 0)] == ["Dr. Abel gave 1.5 mg. ", "It helped."]


def test_overlap_must_be_under_size():
    with refused("--chunk-overlap 8"):
        chunk_document(Document("d", "t", "x"), count_words, 8, 8)


def test_a_megabyte_of_initials_is_one_sentence_read_once():
    """It took hours when the search for abbreviations began at the sentence's start each time."""
    text = "A. " * 330_000
    assert len(chunk_spans(text, count_words, 100_000, 0)) == 4
