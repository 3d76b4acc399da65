"""Processes: the pages of a list of URLs by several processes, each with the pages of its own sites.

A host's pages are fetched by one process, whose delays and robots.txt hold for them as if there were no other. So are
hosts of one site, as www.x.org and x.org, which redirect to each other; a redirect to another site is followed by the
process that met it, at its own pace. Only this process writes the manifest: the others send it their records.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path

from forage.data.scraping.content_folder import PageRecord
from forage.data.scraping.fetching import OnRecord, host_of
from forage.data.scraping.options import ScrapeOptions
from forage.errors import UserError

PROGRAM = "forage.data.scraping.one_process"


@dataclass(frozen=True)
class Share:
    """What one process is to do."""

    urls: list[str]
    content_dir: Path
    options: ScrapeOptions


@dataclass(frozen=True)
class Failure:
    """The one line that a process ends with."""

    message: str


def fetch_by_processes(urls: list[str], content_dir: Path, options: ScrapeOptions, on_record: OnRecord) -> None:
    """What fetch_all does, by options.scrape_processes processes; however this ends, they end."""
    shares = share_out(urls, min(options.scrape_processes, options.batch_size))
    running: dict[Connection, subprocess.Popen[bytes]] = {}
    try:
        for number, its_urls in enumerate(shares):
            in_flight = options.batch_size // len(shares) + (number < options.batch_size % len(shares))
            connection, process = _started(Share(its_urls, content_dir, replace(options, batch_size=in_flight)))
            running[connection] = process
        while running:
            for ready in wait(list(running)):
                assert isinstance(ready, Connection)
                message = _received(ready)
                if isinstance(message, PageRecord):
                    on_record(message)
                elif isinstance(message, Failure):
                    raise UserError(message.message)
                else:
                    _check_ended(running.pop(ready))
    finally:
        for process in running.values():
            process.kill()  # a killed one loses nothing but the pages that are on their way
            process.wait()


def share_out(urls: Sequence[str], count: int) -> list[list[str]]:
    """The URLs of each process, all of a site's together: the largest sites first, each to who has the fewest pages.

    Example: three pages of a.org, two of b.org and one of www.b.org, between two: those of a.org, and those of b.org.
    """
    sites: dict[str, list[str]] = {}
    for url in urls:
        sites.setdefault(site_of(host_of(url)), []).append(url)
    shares: list[list[str]] = [[] for _ in range(min(count, len(sites)))]
    for site in sorted(sites, key=lambda site: -len(sites[site])):
        min(shares, key=len).extend(sites[site])
    return shares


def site_of(host: str) -> str:
    """Example: www.x.org and x.org are x.org; www.x.co.uk is co.uk, all of which thus share a process."""
    is_address = ":" in host or host.replace(".", "").isdigit()
    return host if is_address else ".".join(host.rstrip(".").split(".")[-2:])


def _started(share: Share) -> tuple[Connection, subprocess.Popen[bytes]]:
    """A process that fetches a share, in a session of its own: a terminal's Ctrl-C reaches this one alone."""
    connection, its_end = Pipe()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with its_end:
        process = subprocess.Popen(  # noqa: S603 this very program
            [sys.executable, "-m", PROGRAM, str(its_end.fileno())],
            pass_fds=[its_end.fileno()], env=environment, start_new_session=True,
        )  # fmt: skip
    with suppress(OSError):  # it has ended already, which its connection says too
        connection.send(share)
    return connection, process


def _received(connection: Connection) -> PageRecord | Failure | None:
    """The next message of a process; None when it has ended, perhaps in the middle of one."""
    try:
        message: PageRecord | Failure = connection.recv()
    except (EOFError, OSError):
        return None
    return message


def _check_ended(process: subprocess.Popen[bytes]) -> None:
    status = process.wait()
    if status:
        how = f"with status {status}" if status > 0 else f"by {signal.Signals(-status).name}"
        raise UserError(f"a process that was scraping ended {how}; re-run the same command to resume")
