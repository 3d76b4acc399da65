"""The sample data set: a small medical corpus in sample_data/, whose pages a local server serves over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from forage.errors import UserError

FOLDER = Path(__file__).resolve().parents[2] / "sample_data"
QUESTIONS = FOLDER / "questions.jsonl"
PAGES = FOLDER / "pages"  # a folder for each host


@contextmanager
def sample_sites() -> Iterator[dict[str, str]]:
    """Serve the sample's hosts on the loopback address; yield host -> address:port, for ScrapeOptions.resolve."""
    if not QUESTIONS.is_file():
        raise UserError(f"{QUESTIONS} is missing; the sample data set comes with the repository: check it out again")
    hosts = sorted(folder.name for folder in PAGES.iterdir() if folder.is_dir())
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Site)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield dict.fromkeys(hosts, f"127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Site(SimpleHTTPRequestHandler):
    """Serves the folder named by the request's Host header."""

    def translate_path(self, path: str) -> str:
        host = self.headers.get("Host", "").split(":")[0]
        if not (PAGES / host).is_dir() or "/" in host or host.startswith("."):
            return str(PAGES / "no such host")
        self.directory = str(PAGES / host)
        return super().translate_path(path)

    def log_message(self, format: str, *args: Any) -> None:
        pass
