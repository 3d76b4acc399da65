"""Pages per second of the scraper by processes, and whether one of them is held up by its CPU or by the hosts.

    python -m bench.scraping
    python -m bench.scraping --hosts 200 --delay 0.5

A server in a process of its own has pages of 40 KB under as many host names as are asked for; without a delay between
two requests to a host, nothing is waited for but the work itself. A core that is used all the time is the limit.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bench.report import Bar, finish
from forage.cli import run_script
from forage.data.scraping.options import ScrapeOptions
from forage.data.scraping.scraper import scrape
from forage.errors import UserError

LINKS, PARAGRAPHS = 120, 60


@dataclass(frozen=True)
class BenchOptions:
    """What to fetch."""

    pages: int = 600
    """Pages of all hosts together."""
    hosts: int = 40
    """Host names that they are on."""
    delay: float = 0.0
    """Seconds between two requests to a host."""
    processes: tuple[int, ...] = (1, 2)
    """Numbers of processes to try, the first of which the others are compared with."""
    serve: bool = False
    """Serve the pages until standard input ends, and print the port."""

    def check(self) -> None:
        if min(self.pages, self.hosts, *self.processes) < 1:
            raise UserError("--pages, --hosts and --processes must be at least 1")


@dataclass(frozen=True)
class Measured:
    """How fast so many processes were, and how much of a core they used: 1 is one core all the time."""

    processes: int
    rate: float
    cores: float


def main(bench: BenchOptions) -> None:
    bench.check()
    if bench.serve:
        asyncio.run(serve())
        return
    with serving() as address:
        found = [measured(bench, processes, address) for processes in bench.processes]
    for each in found:
        print(f"{each.processes} processes: {each.rate:.1f} pages/s, {each.cores:.2f} cores", flush=True)
    first, last = found[0], found[-1]
    finish([Bar(f"pages/s of {last.processes} / of {first.processes}", last.rate / first.rate, 1.3)])


def measured(bench: BenchOptions, processes: int, address: str) -> Measured:
    urls = [f"http://site{number % bench.hosts}.test/{number}" for number in range(bench.pages)]
    hosts = {f"site{number}.test": address for number in range(bench.hosts)}
    options = ScrapeOptions(delay=bench.delay, per_host=4, resolve=hosts)
    options = replace(options, scrape_processes=processes) if processes > 1 else options
    with tempfile.TemporaryDirectory() as folder:
        began, used = time.perf_counter(), cpu_seconds()
        records = scrape(urls, Path(folder), options)
        took = time.perf_counter() - began
    if failed := [record for record in records.values() if record.cause != "ok"]:
        raise UserError(f"{failed[0].url}: {failed[0].cause}, {failed[0].detail}")
    return Measured(processes, len(urls) / took, (cpu_seconds() - used) / took)


def cpu_seconds() -> float:
    """What this process used, and those it started that have ended."""
    return sum(os.times()[:4])


# The server


@contextmanager
def serving() -> Iterator[str]:
    """The address of a server in a process of its own."""
    command = [sys.executable, "-m", "bench.scraping", "--serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin
        assert server.stdout
        port = server.stdout.readline().strip()
        if not port:
            raise UserError("the server did not start, as it says above")
        yield f"127.0.0.1:{port}"
        server.stdin.close()


async def serve() -> None:
    body = page().encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    none = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.readuntil(b"\r\n\r\n")
        writer.write(none if asked.startswith(b"GET /robots.txt") else head.encode() + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await asyncio.to_thread(sys.stdin.read)


def page() -> str:
    """An article of 60 paragraphs, in as much furniture as sites have."""
    links = "".join(f'<li class="item"><a href="/topic/{n}">Topic number {n}</a></li>' for n in range(LINKS))
    words = "A long-term disease of the joints in which crystals gather, <b>mostly at night</b>, and which rest helps. "
    text = "".join(f"<h2>Part {n}</h2><p>{words * 4}</p>" for n in range(PARAGRAPHS))
    return (
        f"<!doctype html><html><head><title>Gout</title><script>{'var a = 1; ' * 200}</script></head><body>"
        f"<nav><ul>{links}</ul></nav><main><h1>Gout</h1>{text}</main><footer>{links}</footer></body></html>"
    )


if __name__ == "__main__":
    run_script(main, __doc__)
