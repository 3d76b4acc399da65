"""docs/recipes/frameworks.md: its classes retrieve in the real frameworks, what the store finds."""

import json
import subprocess
import sys

import pytest

from document_store import DocumentStore, StoreOptions
from forage.store.embedder import PACKAGED_EMBEDDER
from tests import ROOT
from tests.installed import installed
from tests.pages import fenced
from tests.recipes.run import RECIPES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

DOCUMENTS = [
    {"id": "gout", "title": "Gout", "text": "Crystals gather in the big toe.", "metadata": {"year": 2020}},
    {"id": "flu", "title": "Influenza", "text": "Fever and a dry cough.", "metadata": {"year": 2024, "kind": "news"}},
    {"id": "rash", "title": "", "text": "Hives itch."},
]
QUERY, WHERE = "a sore toe", {"year": {"$gte": 2000}}
# After the page's block: what each framework's retriever found, asked as its users ask, on and off the event loop.
ASKED = {
    "langchain-core": """
retriever = StoreRetriever(store=store, k=2, where=where)
assert [each.id for each in asyncio.run(retriever.ainvoke(query))] == [each.id for each in retriever.invoke(query)]
found = [[each.id, each.page_content, each.metadata] for each in retriever.invoke(query)]
""",
    "llama-index-core": """
retriever = StoreRetriever(store, k=2, where=where)
assert asyncio.run(retriever.aretrieve(query)) == retriever.retrieve(query)
found = [[each.node_id, each.text, each.metadata] for each in retriever.retrieve(query)]
assert [each.score for each in retriever.retrieve(query)] == [hit.score for hit in store.search(query, 2, where=where)]
""",
}
PROGRAM = """
import asyncio, json, sys
sys.path.append(sys.argv[1])
{block}
store, query, where = DocumentStore.open(sys.argv[2]), {query!r}, {where!r}
{asked}
print(json.dumps(found))
"""


@pytest.mark.parametrize("package", ASKED)
def test_the_framework_finds_what_the_store_finds(tmp_path, package):
    packages = installed(tmp_path / "packages", package)
    store = DocumentStore.build(tmp_path / "store", DOCUMENTS, StoreOptions(PACKAGED_EMBEDDER))
    [block] = [text for text in fenced(RECIPES / "frameworks.md", "py") if package.replace("-", "_")[:9] in text]
    program = PROGRAM.format(block=block, asked=ASKED[package], query=QUERY, where=WHERE)
    command = [sys.executable, "-c", program, str(packages), str(store.path)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    hits = store.search(QUERY, 2, where=WHERE)
    assert json.loads(ran.stdout.splitlines()[-1]) == [
        [hit.chunk_id, hit.text, store.get(hit.doc_id).metadata | {"title": hit.title}] for hit in hits
    ]
    assert [hit.doc_id for hit in hits] == ["gout", "flu"]
