"""Boilerplate: the blocks that recur across the pages of a host."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from urllib.parse import urlsplit

from forage.data.scraping.page_text import Block, Page


def _host(url: str) -> str:
    return urlsplit(url).hostname or ""


def drop_boilerplate(pages: Mapping[str, Page], host_of: Callable[[str], str] = _host) -> dict[str, Page]:
    """Drop blocks found on at least half, and at least three, of one host's pages; headings stay.

    Pages with equal blocks count once, so a page under several addresses doesn't become boilerplate.
    """
    by_host: defaultdict[str, set[tuple[Block, ...]]] = defaultdict(set)
    for url, page in pages.items():
        by_host[host_of(url)].add(page.blocks)
    recurring: dict[str, set[Block]] = {}
    for host, distinct in by_host.items():
        counts = Counter(block for blocks in distinct for block in set(blocks) if not block.is_heading)
        recurring[host] = {block for block, count in counts.items() if count >= max(3, len(distinct) / 2)}
    kept: dict[str, Page] = {}
    for url, page in pages.items():
        dropped = recurring[host_of(url)]
        kept[url] = replace(page, blocks=tuple(block for block in page.blocks if block not in dropped))
    return kept
