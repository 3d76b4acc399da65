"""Clients that keep a store's server waiting, over real sockets; the server is document_store.py's own process."""

import itertools
import json
import os
import resource
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile

import httpx
import pytest

from document_store import Serve, serve
from forage.data.records import Document
from forage.store.options import KEY
from tests import ROOT
from tests.factories import plain_store
from tests.refusals import refused

pytestmark = pytest.mark.slow

PATIENCE = 2  # seconds
SOON = 40  # on a busy machine; without the patience that is set here, a server has 60
FLOOD = 10_000
# The command, but for its patience.
PROGRAM = f"""
import sys
from forage.extras.serving import server
server.PATIENCE = {PATIENCE}
import document_store
document_store.run_script(document_store.main, document_store.__doc__)
"""
CALL = {"name": "search", "arguments": {"query": "toe"}}
REQUESTS = {
    "retrieve": ("/retrieve", {"queries": ["toe"]}),
    "mcp": ("/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": CALL}),
}
ACCEPTS = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


class Running:
    """A server's process, and what clients do to it."""

    def __init__(self, protocol, process):
        self.process, self.url = process, process.stdout.readline().split()[-1]
        self.port = int(self.url.split(":")[-1].split("/")[0])
        self.path, self.request = REQUESTS[protocol]
        self.check_serves()
        time.sleep(0.2)
        self.own = self.sockets()

    def sockets(self):
        """How many the process has open."""
        found = 0
        for link in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed since it was listed
                found += os.readlink(link).startswith("socket:")
        return found

    def cpu_seconds(self):
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident(self):
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)

    def head(self, length):
        lines = {"Host": f"127.0.0.1:{self.port}", "Content-Length": length, **ACCEPTS}
        return "".join(
            [f"POST {self.path} HTTP/1.1\r\n", *(f"{k}: {v}\r\n" for k, v in lines.items()), "\r\n"]
        ).encode()

    def whole(self):
        body = json.dumps(self.request).encode()
        return self.head(len(body)) + body

    def post(self, headers):
        return httpx.post(self.url, json=self.request, headers=ACCEPTS | headers, timeout=30)

    def check_serves(self):
        reply = self.post({"Authorization": f"Bearer {os.environ.get(KEY)}"})
        assert reply.status_code == 200, reply.text
        assert "big toe" in reply.text

    def check_hangs_up(self):
        """All connections of clients are closed."""
        wait_until(lambda: self.sockets() <= self.own)


def wait_until(holds):
    deadline = time.monotonic() + SOON
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    document = Document("gout", "Gout", "Crystals gather in the big toe. " + "It hurts at night. " * 30)
    return plain_store(tmp_path_factory.mktemp("slow") / "store", [document]).path


@contextmanager
def running(store, protocol, files=None):
    """The server, which may have so many files open."""
    command = [sys.executable, "-c", PROGRAM, "serve", "--store", store, "--mode", "sparse", "--port", "0"]
    with (
        TemporaryFile("w+") as errors,
        subprocess.Popen(
            [*command, "--protocol", protocol], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=errors
        ) as process,
    ):
        try:
            if files:
                resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (files, files))
            yield Running(protocol, process)
            assert process.poll() is None
        finally:
            process.kill()
        errors.seek(0)
        assert "Traceback" not in errors.read()


@pytest.fixture(scope="module", params=REQUESTS)
def server(request, store):
    with running(store, request.param) as server:
        yield server


def trickle(server, parts):
    """Send a part every tenth of a second, until the server has hung up, which it does not at once."""
    start = time.monotonic()
    with server.connect() as client, pytest.raises(ConnectionError):  # noqa: PT012 whichever part it is
        for part in parts:
            client.sendall(part)
            time.sleep(0.1)
            assert time.monotonic() - start < SOON
    assert time.monotonic() - start > PATIENCE / 2
    server.check_hangs_up()


def test_a_request_byte_by_byte(server):
    head = server.head(10).replace(b"\r\n\r\n", b"\r\nX: " + b"x" * 1000)
    trickle(server, (bytes([byte]) for byte in head))


def test_a_body_that_never_ends(server):
    trickle(server, itertools.chain([server.head(1_000_000)], itertools.repeat(b" ")))


@pytest.mark.parametrize("sends", ["nothing", "a head", "less than announced", "a request"])
def test_silence(server, sends):
    """Also after a request: a connection is not kept for ever."""
    with server.connect() as client:
        whole = server.whole()
        client.sendall({"nothing": b"", "a head": whole[:20], "less than announced": whole[:-1]}.get(sends, whole))
        wait_until(lambda: server.sockets() > server.own)
        server.check_hangs_up()
    server.check_serves()


def test_a_client_that_does_not_read_its_replies(server):
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        client.settimeout(SOON)
        with pytest.raises(ConnectionError):  # noqa: PT012
            while True:  # until the buffers of both ends are full
                client.sendall(server.whole())
    server.check_hangs_up()
    server.check_serves()


def test_requests_that_are_sent_ahead_take_no_memory(server):
    before = server.resident()
    with server.connect() as client, suppress(TimeoutError, ConnectionError):
        client.settimeout(0.5)
        for _ in range(100_000):
            client.sendall(server.whole())
    assert server.resident() < before + 20 * 2**20
    server.check_serves()


def test_a_body_over_its_bound_is_refused_before_it_is_sent(server):
    with server.connect() as client:
        client.sendall(server.head(10**9))
        assert client.recv(100).split()[1] in (b"400", b"413")


@pytest.mark.parametrize("protocol", REQUESTS)
@pytest.mark.parametrize("files", [1024, 100])
def test_ten_thousand_connections_at_once(store, protocol, files):
    """The usual bound on files, and one that is below that on connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with running(store, protocol, files) as server, ExitStack() as open_until_then:
            for _ in range(min(FLOOD, hard - 1000)):
                client = open_until_then.enter_context(socket.socket())
                client.setblocking(False)
                client.connect_ex(("127.0.0.1", server.port))
            server.check_serves()
            before = server.cpu_seconds()
            time.sleep(2 * PATIENCE)
            assert server.cpu_seconds() - before < PATIENCE
            server.check_serves()
            open_until_then.close()
            server.check_hangs_up()
            server.check_serves()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("protocol", REQUESTS)
def test_other_machines_are_served_by_key_alone(store, protocol, monkeypatch):
    monkeypatch.delenv(KEY, raising=False)
    with refused(f"--host 0.0.0.0 lets other machines search; set {KEY}"):
        serve(Serve(store, protocol, "0.0.0.0"))
    monkeypatch.setenv(KEY, "s3")
    with running(store, protocol) as server:
        for key, status in (("", 401), ("Bearer s4", 401), ("Bearer s3", 200)):
            assert server.post({"Authorization": key}).status_code == status
