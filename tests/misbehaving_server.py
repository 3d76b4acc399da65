"""A real HTTP server on loopback that misbehaves by path, whatever the host name it is asked for, and keeps count."""

from __future__ import annotations

import gzip
import re
import select
import socket
import socketserver
import struct
import threading
import time
import zlib
from collections import Counter
from dataclasses import dataclass, field

PDF = b"%PDF-1.7\n1 0 obj\n"
LONG = 50  # seconds; whatever is waited for comes much sooner, or never


def page(title, text=""):
    return f"<html><head><title>{title}</title></head><body><h1>{title}</h1><p>{text or title} text.</p></body></html>"


@dataclass(frozen=True)
class Seen:
    host: str
    path: str


@dataclass
class Log:
    """What was asked for, and how many requests were open at once, by host and over all ('').

    A request is over before its answer is sent, so that a client's next one never counts beside it.
    """

    requests: list[Seen] = field(default_factory=list)
    peak: Counter[str] = field(default_factory=Counter)
    open: Counter[str] = field(default_factory=Counter)
    lock: threading.Condition = field(default_factory=threading.Condition)

    def begin(self, host, path):
        with self.lock:
            self.requests.append(Seen(host, path))
            for key in (host, ""):
                self.open[key] += 1
                self.peak[key] = max(self.peak[key], self.open[key])
            self.lock.notify_all()

    def end(self, host):
        with self.lock:
            self.open.subtract((host, ""))

    def count(self, path):
        return sum(seen.path == path for seen in self.requests)

    def asked(self, host):
        return sum(seen.host == host for seen in self.requests)

    def clear(self):
        with self.lock:
            self.requests.clear()
            self.peak.clear()


class MisbehavingServer(socketserver.ThreadingTCPServer):
    """Use as a context manager; `robots` maps host names to their robots.txt, others have none."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.log = Log()
        self.robots = {}
        self.answer_after = 0.0  # seconds that a page takes
        self.until = lambda log: True  # what good pages wait for, such as others beside them

    @property
    def address(self):
        return f"127.0.0.1:{self.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()

    def handle_error(self, request, client_address):
        """Clients that leave in the middle are what is tested."""


class _Handler(socketserver.StreamRequestHandler):
    server: MisbehavingServer
    open_for = ""  # the host of the request that is being answered

    def handle(self):
        request = re.fullmatch(rb"GET (\S+) HTTP/1\.1\r\n", self.rfile.readline(65537))
        if request is None:  # a TLS handshake, for one
            self.answer(400, b"what?")
            return
        path = request[1].decode("ascii")
        lines = [line.decode("latin-1").strip() for line in iter(self.rfile.readline, b"\r\n")]
        host = next(line[5:].strip() for line in lines if line.lower().startswith("host:")).partition(":")[0]
        self.server.log.begin(host, path)
        self.open_for = host
        try:
            if path == "/robots.txt":
                self.robots(host)
            else:
                name, _, rest = path.lstrip("/").partition("/")
                getattr(self, name.replace("-", "_"))(rest)
        finally:
            self.end()

    def end(self):
        if self.open_for:
            self.server.log.end(self.open_for)
            self.open_for = ""

    def answer(self, status, body=b"", kind="text/html", **headers):
        head = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {headers.pop('length', len(body))}"]
        head += [f"Content-Type: {kind}"] if kind else []
        head += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.end()
        self.wfile.write("\r\n".join([*head, "Connection: close", "", ""]).encode("latin-1") + body)

    def robots(self, host):
        text = self.server.robots.get(host)
        if text is None:
            self.answer(404)
        elif text.isdigit():
            self.answer(int(text))
        else:
            self.answer(200, text.encode(), "text/plain")

    # Pages that are fine in the end.

    def good(self, rest):
        with self.server.log.lock:
            self.server.log.lock.wait_for(lambda: self.server.until(self.server.log), LONG)
        time.sleep(self.server.answer_after)
        self.answer(200, page(f"Page {rest}").encode(), "text/html; charset=utf-8")

    def plain_text(self, _):
        self.answer(200, b"First paragraph.\n\nSecond one.", "text/plain")

    def no_type(self, _):
        self.answer(200, page("Untyped").encode(), None)

    def moved(self, _):
        self.answer(301, Location="/good/moved#part")

    def flaky(self, _):
        self.answer(*((500,) if self.server.log.count("/flaky") == 1 else (200, page("Flaky").encode())))

    def busy(self, _):
        if self.server.log.count("/busy") == 1:
            self.answer(429, Retry_After="3")
        else:
            self.answer(200, page("Busy").encode())

    def says_utf8(self, _):
        self.answer(200, page("Sjögren", "naïve café").encode("latin-1"), "text/html; charset=utf-8")

    def says_latin1(self, _):
        self.answer(200, page("Sjögren", "naïve café").encode(), "text/html; charset=iso-8859-1")

    def gzip(self, _):
        self.answer(200, gzip.compress(page("Gzip").encode()), Content_Encoding="gzip")

    # Pages that are not to be had.

    def status(self, rest):
        self.answer(int(rest[:3]), page("An error page").encode())

    def silent(self, _):
        self._until_client_leaves()

    def endless(self, _):
        self._send_for_ever(b"<p>more</p>" * 1000)

    def drip(self, _):
        self._send_for_ever(b".", pause=0.02)

    def loop_a(self, _):
        self.answer(302, Location="/loop-b")

    def loop_b(self, _):
        self.answer(302, Location="/loop-a")

    def ever_on(self, rest):
        self.answer(307, Location=f"/ever-on/{int(rest) + 1}")

    def redirect(self, rest):
        """/redirect/<hexadecimal of where to>"""
        self.answer(302, Location=bytes.fromhex(rest).decode("latin-1"))

    def bomb(self, _):
        """A gigabyte of zeros: one compressed megabyte, over and over."""
        stream = zlib.compressobj(wbits=31)
        header = stream.compress(b"") + stream.flush(zlib.Z_FULL_FLUSH)
        megabyte = stream.compress(bytes(2**20)) + stream.flush(zlib.Z_FULL_FLUSH)
        self.answer(200, header + 1024 * megabyte, Content_Encoding="gzip")

    def not_gzip(self, _):
        self.answer(200, page("Not compressed").encode(), Content_Encoding="gzip")

    def cut_gzip(self, _):
        self.answer(200, gzip.compress(page("Cut " * 1000).encode())[:-20], Content_Encoding="gzip")

    def brotli(self, _):
        self.answer(200, b"\x0b\x02\x80hello\x03", Content_Encoding="br")

    def empty(self, _):
        self.answer(200)

    def script_only(self, _):
        self.answer(200, b"<html><body><div id=app></div><script>render('text')</script></body></html>")

    def pdf(self, _):
        self.answer(200, PDF, "application/pdf")

    def pdf_as_html(self, _):
        self.answer(200, PDF)

    def untyped_bytes(self, _):
        self.answer(200, bytes(range(256)), None)

    def reset(self, _):
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def garbage(self, _):
        self.wfile.write(b"SSH-2.0-OpenSSH_9.6\r\n")

    def truncated(self, _):
        self.answer(200, page("Truncated").encode(), length="100000")

    def _send_for_ever(self, piece, pause=0.0):
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n")
        while True:  # ends by the error of writing to a client that has left
            self.wfile.write(piece)
            time.sleep(pause)

    def _until_client_leaves(self):
        select.select([self.connection], [], [], LONG)
