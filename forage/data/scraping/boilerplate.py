"""Boilerplate: the blocks that recur across the pages of a host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from urllib.parse import urlsplit

from forage.data.scraping.page_text import Block, Page
from forage.spool import grouped, part


def host_part(url: str) -> str:
    return urlsplit(url).hostname or ""


def drop_boilerplate(pages: Mapping[str, Page], site_of: Callable[[str], str] = host_part) -> dict[str, Page]:
    """The pages without the blocks that recur on their site."""
    by_site: dict[str, list[Page]] = {}
    for url, page in pages.items():
        by_site.setdefault(site_of(url), []).append(page)
    recurring = {site: recurring_blocks(its_pages) for site, its_pages in by_site.items()}
    return {url: without(page, recurring[site_of(url)]) for url, page in pages.items()}


def without(page: Page, blocks: set[Block]) -> Page:
    return replace(page, blocks=tuple(block for block in page.blocks if block not in blocks))


def recurring_blocks(pages: Sequence[Page]) -> set[Block]:
    """The blocks on at least half, and at least three, of one host's pages; no headings.

    Pages with equal blocks count once, so a page under several addresses doesn't become boilerplate. The pages may lie
    in a file: they are read several times, and besides a digest of each, only the blocks that may recur are held.
    """
    firsts = [numbers[0] for numbers in grouped(map(_all_blocks, pages))]
    least = max(3, len(firsts) / 2)
    if len(firsts) < least:
        return set()
    distinct = part(pages, firsts)
    total = sum(len(_texts(page)) for page in distinct)
    candidates = frequent((block for page in distinct for block in _texts(page)), int(total / least) + 1)
    counts = Counter(block for page in distinct for block in _texts(page) & candidates)
    return {block for block, count in counts.items() if count >= least}


def frequent(blocks: Iterable[Block], most: int) -> set[Block]:
    """At most so many of the blocks, among them all that make up more than 1 / (most + 1) of them (Misra and Gries)."""
    counts: dict[Block, int] = {}
    for block in blocks:
        if block in counts:
            counts[block] += 1
        elif len(counts) < most:
            counts[block] = 1
        else:  # as many different blocks, and this one, go together
            counts = {held: count - 1 for held, count in counts.items() if count > 1}
    return set(counts)


def _texts(page: Page) -> set[Block]:
    return {block for block in page.blocks if not block.is_heading}


def _all_blocks(page: Page) -> str:
    """Equal for equal blocks only; a block is one line."""
    return "\n".join(f"{block.is_heading:d}{block.text}" for block in page.blocks)
