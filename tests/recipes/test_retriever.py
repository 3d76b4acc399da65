"""docs/recipes/retriever.md: its class merges its words with a service's ranking, in every stage that searches."""

import json
from contextlib import ExitStack

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

from document_store import DocumentStore
from forage.agent.episode import read_episodes
from forage.extras.serving.server import make_app
from forage.store.opening import manifest_at, open_address, open_store
from forage.store.options import StoreAddress
from forage.store.remote import RemoteStore
from tests.factories import plain_store
from tests.pages import fenced
from tests.ports import answering
from tests.recipes.run import RECIPES, calls_of, module_of, run
from tests.refusals import refused

pytestmark = pytest.mark.usefixtures("no_plots")


class Service:
    """A search service over a store's chunks that ranks the second best first, which no store does."""

    def __init__(self, folder):
        self.store, self.asked = DocumentStore.open(folder), []
        self.stopped = ExitStack()
        self.url = self.stopped.enter_context(answering(make_app(self.search)))

    def search(self, queries, k):
        self.asked += queries
        return [[*hits[1::-1], *hits[2:]][:k] for hits in self.store.search(queries, max(k, 2), "sparse")]


@pytest.fixture(autouse=True)
def fused(here, monkeypatch):
    """The page's file."""
    monkeypatch.syspath_prepend(here)
    monkeypatch.delitem(__import__("sys").modules, "fused", raising=False)
    [text, _, _] = fenced(RECIPES / "retriever.md", "python")
    (here / "fused.py").write_text(text)


def test_the_commands(here, monkeypatch):
    prepare, search, train = calls_of("retriever.md")
    run(prepare)
    store = here / "data/fused/store"
    assert json.loads((store / "store.json").read_text())["options"]["retriever"] == "fused:Fused"
    service = Service(store)
    __import__("fused").URL = service.url
    run(search, "--k", "3")
    assert service.asked == ["heart", "how is gout noticed"]  # first a trial of what it replies
    found = open_store(store, "fused:Fused").search("how is gout noticed", 3, "sparse")
    own = service.store.search("how is gout noticed", 3, "sparse")
    assert [hit.chunk_id for hit in found] == [own[1].chunk_id, own[0].chunk_id, own[2].chunk_id]
    assert [hit.rank for hit in found] == [1, 2, 3]
    service.asked.clear()
    run(train, "--max-steps", "1", "--num-demonstrations", "8", "--eval-share", "0.5",
        "--max-turn-tokens", "400")  # fmt: skip
    assert len(service.asked) > 4
    demonstrations = list(read_episodes(here / "models/fused/demonstrations.jsonl"))
    assert demonstrations
    for query, hits in ((one.query, one.hits) for episode in demonstrations for one in episode.searches):
        assert list(hits) == [hit.chunk_id for hit in service.search([query], 3)[0]]
    service.stopped.close()
    monkeypatch.setattr("forage.store.remote.RemoteStore.__init__", impatient)
    with refused(f"{service.url} gives no answer .*; start the store's server"):
        open_store(store, "fused:Fused").search("gout")


def impatient(self, url, start=RemoteStore.__init__):
    start(self, url, patience=0.1)


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """The folder of a cross-encoder of one layer."""
    folder = tmp_path_factory.mktemp("reader")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz", *(f"##{c}" for c in "aeiou")]
    (folder / "vocab.txt").write_text("\n".join(words))
    BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertForSequenceClassification(BertConfig(vocab_size=len(words), num_labels=1, **shape)).save_pretrained(folder)
    return folder


def test_a_cross_encoder_reorders_what_a_search_found(reader, tmp_path):
    made = module_of("retriever.md", ("cross-encoder/ms-marco-MiniLM-L6-v2", str(reader)), number=1)
    texts = [f"{letter} rest and ice" for letter in "abcdefgh"]
    plain = plain_store(tmp_path / "store", texts)
    store = made["Reordered"].open(tmp_path / "store")
    found = store.search("rest", 3, "sparse")
    assert store.search(["rest", ""], 3, "sparse") == [found, []]
    scores = made["reader"]().predict([("rest", f"\n{text}") for text in texts]).tolist()
    best = sorted(range(len(texts)), key=lambda address: -scores[address])[:3]
    assert [hit.text for hit in found] == [texts[address] for address in best]
    assert [hit.rank for hit in found] == [1, 2, 3]
    assert [hit.text for hit in plain.search("rest", 3, "sparse")] != [hit.text for hit in found]


def test_one_chunk_of_each_document(tmp_path):
    made = module_of("retriever.md", number=2)
    document = {"text": "Rest may help it. " * 30}
    plain_store(tmp_path / "store", [document, "Rest helps."], chunk_tokens=20, chunk_overlap=0)
    store = made["OnePerDocument"].open(tmp_path / "store")
    assert len({hit.doc_id for hit in store.search("rest", 2, "sparse")}) == 2


def test_a_run_notices_another_retriever(here):
    digests = set()
    for name in ("", "fused:Fused"):
        plain_store("store", ["Rest."], retriever=name)
        digests.add(manifest_at(StoreAddress("", name), here)[1])
        assert type(open_store(here / "store", name)).__name__ == ("Fused" if name else "DocumentStore")
    assert len(digests) == 2


def test_a_folder_runs_no_code(here):
    """The folder came from elsewhere, with a module in it that the folder beside the scripts makes importable."""
    plain_store("data/store", ["Rest."], retriever="data.hidden:Hidden")
    (here / "data/hidden.py").write_text("raise SystemExit('it ran')\n")
    for open_it in (open_address, manifest_at):
        for named in ("", "fused:Fused"):
            with refused(r"is searched by a class, 'data.hidden:Hidden'; if you trust it"):
                open_it(StoreAddress("", named), here / "data")
    with pytest.raises(SystemExit, match="it ran"):
        open_address(StoreAddress("", "data.hidden:Hidden"), here / "data")
    plain_store("data/store", ["Rest."])
    with refused("was built without --retriever; leave --retriever fused:Fused out"):
        open_address(StoreAddress("", "fused:Fused"), here / "data")
