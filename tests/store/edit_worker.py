"""Edits a store in a process of its own: python -m tests.store.edit_worker STORE EDITS DONE.

EDITS is a file of JSON: [["build" or "add", documents], ["delete", ids], ...]. Each edit that was made adds a line to
the file DONE.
"""

import json
import sys
from pathlib import Path

from forage.store import document_store
from forage.store.document_store import DocumentStore
from forage.store.options import StoreOptions
from tests.word_embedder import WordEmbedder

OPTIONS = StoreOptions(embedder="words", chunk_tokens=6, chunk_overlap=2)


def perform(path, edit, given):
    if edit == "build":
        return DocumentStore.build(path, given, OPTIONS)
    with DocumentStore.open(path) as store:
        getattr(store, edit)(given)
    return store


def state_after(state, edit, given):
    """What a store holds, as a plain dictionary of the given documents by id."""
    if edit == "delete":
        return {doc_id: document for doc_id, document in state.items() if doc_id not in given}
    return ({} if edit == "build" else state) | {document["id"]: document for document in given}


def main(path, edits, done):
    for edit, given in json.loads(Path(edits).read_text()):
        perform(Path(path), edit, given)
        with open(done, "a") as file:
            file.write(f"{edit}\n")


if __name__ == "__main__":
    document_store.Embedder = WordEmbedder
    main(*sys.argv[1:])
