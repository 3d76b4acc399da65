"""One of several processes that scrape: its argument is the open connection by which it gets its share of the pages."""

from __future__ import annotations

import os
import sys
import threading
from multiprocessing.connection import Connection

from forage.data.scraping.fetching import fetch_all
from forage.data.scraping.processes import Failure, Share
from forage.errors import UserError


def main(connection: Connection) -> None:
    """Fetch a share and send the records of its pages, or the line of an error."""
    try:
        share: Share = connection.recv()
    except (EOFError, OSError):  # whoever started this process is gone already
        os._exit(1)
    threading.Thread(target=_end_with_parent, args=(connection,), daemon=True).start()
    try:
        fetch_all(share.urls, share.content_dir, share.options, connection.send)
    except UserError as error:
        connection.send(Failure(str(error)))
    except BrokenPipeError:
        os._exit(1)


def _end_with_parent(connection: Connection) -> None:
    """Whoever started this process says no more; when that one is gone, however it ended, the connection ends."""
    try:
        connection.recv()
    except (EOFError, OSError):
        os._exit(1)


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])))
