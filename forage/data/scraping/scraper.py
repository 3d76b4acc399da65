"""Scraping: fetch the pages of a list of URLs, keep them as files, and record what became of each.

content_dir/manifest.jsonl                        one row per URL (PageRecord; causes.py lists the causes)
content_dir/<2 hex digits>/<32 hex digits>.html   bodies of the pages that ended 'ok', decompressed, as sent
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path

from forage.data.scraping.causes import TRANSIENT
from forage.data.scraping.content_folder import ContentFolder, PageRecord
from forage.data.scraping.fetching import fetch_all
from forage.data.scraping.options import ScrapeOptions
from forage.data.scraping.processes import fetch_by_processes

OnPage = Callable[[PageRecord], None]


def scrape(
    urls: Iterable[str],
    content_dir: Path,
    options: ScrapeOptions,
    skip_existing: bool = True,
    on_page: OnPage | None = None,
) -> dict[str, PageRecord]:
    """Fetch pages into content_dir; return the record of each URL, in the order of the URLs.

    If it is killed, the same call resumes. With skip_existing, settled pages are not requested again. on_page is called
    with each record, those of settled pages first.
    """
    options.check()
    wanted = list(dict.fromkeys(urls))
    with closing(ContentFolder(content_dir)) as folder:
        to_fetch = []
        for url in wanted:
            known = folder.rows.get(url) if skip_existing else None
            if known is None or not _is_settled(known, content_dir, options):
                to_fetch.append(url)
            elif on_page:
                on_page(known)

        def on_record(record: PageRecord) -> None:
            folder.add(record)
            if on_page:
                on_page(record)

        fetch = fetch_by_processes if options.scrape_processes > 1 else fetch_all
        fetch(to_fetch, folder.path, options, on_record)
        folder.compact(wanted)
        return {url: folder.rows[url] for url in wanted}


def _is_settled(record: PageRecord, content_dir: Path, options: ScrapeOptions) -> bool:
    """Whether this run need not ask again."""
    if record.cause == "ok":
        file = content_dir / (record.path or "")
        # Pages are not synced one by one, so after a power cut a file may have the right size and the wrong bytes.
        return file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == record.sha256
    if record.cause == "private_address":
        return not options.allow_local
    if record.cause == "too_large":
        return options.max_bytes < record.bytes
    return record.cause not in TRANSIENT
