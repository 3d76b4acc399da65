"""A real server process of the store: it dies and returns, and another store takes its address."""

import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from forage.data.records import Document
from forage.errors import UserError
from forage.store.document_store import DocumentStore
from forage.store.options import StoreOptions
from forage.store.remote import RemoteStore
from tests import ROOT
from tests.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@contextmanager
def serving(folder, port=0):
    """document_store.py serve, whose own mode and k are others than the agent's."""
    command = [sys.executable, "document_store.py", "serve", "--store", str(folder), "--port", str(port),
               "--mode", "sparse", "--k", "7"]  # fmt: skip
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        yield process, re.search(r"(http://\S+)/retrieve", process.stdout.readline())[1]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_server_that_dies_is_waited_for_but_not_one_of_another_store(tmp_path):
    words = StoreOptions(embedder="none")
    documents = [
        Document("gout", "Gout", "The toe hurts."),
        Document("flu", "", "A cough."),
        Document("x", "", "Rest."),
    ]
    DocumentStore.build(tmp_path / "first", documents, words)
    DocumentStore.build(tmp_path / "second", documents[:2], words)
    port = free_port()
    with serving(tmp_path / "first", port) as (process, url):
        remote = RemoteStore(url, patience=250)
        assert remote.search(["toe"], 1, "sparse")[0][0].chunk_id == "gout#0"
        process.send_signal(signal.SIGKILL)
        process.wait()
    with serving(tmp_path / "first", port):
        assert remote.search(["toe"], 1, "sparse")[0][0].chunk_id == "gout#0"
    command = [sys.executable, "document_store.py", "serve", "--store", str(tmp_path / "second"), "--port", str(port),
               "--mode", "sparse"]  # fmt: skip
    started = time.monotonic()
    late = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)  # it takes seconds to start
    try:
        with pytest.raises(UserError, match=f"{url} serves another store than at the start"):
            remote.search(["toe"], 1, "sparse")
        assert time.monotonic() - started > 0.25
    finally:
        late.kill()
        late.wait()
