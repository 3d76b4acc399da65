"""Ports for servers that others start, or that end and start again, and servers in a thread."""

import json
import random
import socket
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Thread

from forage.extras.serving.server import server_of

EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port():
    """A port that nobody uses, below those that the system gives to connections: one of those may be gone at once."""
    first = int(EPHEMERAL.read_text().split()[0]) if EPHEMERAL.exists() else 32_768
    draw = random.SystemRandom()  # another one in each of several test processes
    while True:
        port = draw.randrange(10_000, first) if first > 11_000 else 0
        with socket.socket() as found:
            try:
                found.bind(("127.0.0.1", port))
            except OSError:
                continue
            return found.getsockname()[1]


class JSONHandler(BaseHTTPRequestHandler):
    """Reads a request and says a status with a value, for servers that stand in for others."""

    def log_message(self, *_): ...

    def body(self):
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])) or "{}")

    def say(self, status, value):
        text = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@contextmanager
def answering(app, host="127.0.0.1", port=0):
    """Its address, while it runs in a thread."""
    with socket.create_server((host, port)) as listening:
        server = server_of(app)
        thread = Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        try:
            yield f"http://{host}:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
