"""When the requests of a scrape started, by the clock that delays are kept by; a server may see them late.

python -m tests.noted_scraping ...    one of several processes that scrape; it adds lines `host seconds` to $STARTS
"""

import os
import runpy
from pathlib import Path

from forage.data.scraping.fetcher import Fetcher


def noting(note):
    """The step of a fetcher that makes a request, with `note(host, seconds)` before it."""
    real = Fetcher._exchange

    async def exchange(fetcher, origin, url, address, read):
        note(url.host, origin.host.next_start - origin.host.delay)
        return await real(fetcher, origin, url, address, read)

    return exchange


def write(host, seconds):
    with Path(os.environ["STARTS"]).open("a") as file:
        file.write(f"{host} {seconds!r}\n")


if __name__ == "__main__":
    Fetcher._exchange = noting(write)
    runpy.run_module("forage.data.scraping.one_process", run_name="__main__")
