"""Our page text against trafilatura's, on the sample pages, whose answers and furniture are known.

    python -m bench.page_text        needs: pip install trafilatura lxml_html_clean

Kept: the mean share of a reference answer's word triples that are in the text of its page. Whole: the share of answers
with at least nine tenths of theirs. Furniture: pages on which a phrase of the navigation, banners or footers is left.
Headings: the share of the pages' section headings that are still lines of their own (sections start at them).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import trafilatura
from rich.console import Console
from rich.table import Table

from forage.data.documents import page_text
from forage.data.relevance import shared_share, trigrams
from forage.data.sample import PAGES, QUESTIONS
from forage.data.scraping.bodies import decode_html
from forage.data.scraping.page_text import drop_boilerplate, read_page
from forage.files import json_lines

FURNITURE = ("cookies", "Skip to main", "Find a doctor", "Stay informed", "A to Z", "Privacy")
HEADING = re.compile(r"<h[1-6][^>]*>(.*?)</h[1-6]>", re.DOTALL)


def path_of(url: str) -> Path:
    host_and_path = url.split("//")[1]
    path = PAGES / host_and_path
    return path / "index.html" if path.is_dir() else path


def ours(bodies: dict[str, bytes]) -> dict[str, str]:
    pages = {url: read_page(body, None) for url, body in bodies.items()}
    own = drop_boilerplate(pages, lambda url: urlsplit(url).netloc)
    return {url: page_text(page).text for url, page in own.items()}


def theirs(**options: bool) -> Callable[[dict[str, bytes]], dict[str, str]]:
    def extract(bodies: dict[str, bytes]) -> dict[str, str]:
        return {
            url: trafilatura.extract(decode_html(body, None), include_comments=False, **options) or ""
            for url, body in bodies.items()
        }

    return extract


def main() -> None:
    rows = [row for _, row in json_lines(QUESTIONS)]
    bodies = {url: path_of(url).read_bytes() for url in dict.fromkeys(row["document_url"] for row in rows)}
    headings = {
        url: {" ".join(re.sub("<[^>]+>", "", text).split()) for text in HEADING.findall(decode_html(body, None))}
        for url, body in bodies.items()
    }
    table = Table("", "kept", "whole", "furniture", "headings", "ms a page", title=f"{len(bodies)} pages")
    methods = {
        "ours": ours, "trafilatura": theirs(), "trafilatura, recall": theirs(favor_recall=True),
        "trafilatura, precision": theirs(favor_precision=True),
    }  # fmt: skip
    for name, read in methods.items():
        read(dict(list(bodies.items())[:3]))  # warm
        started = time.perf_counter()
        texts = read(bodies)
        seconds = time.perf_counter() - started
        shares = [shared_share(trigrams(row["answer"]), trigrams(texts[row["document_url"]])) for row in rows]
        furnished = sum(any(phrase in text for phrase in FURNITURE) for text in texts.values())
        wanted = sum(len(found) for found in headings.values())
        kept = sum(len(found & set(texts[url].splitlines())) for url, found in headings.items())
        table.add_row(
            name, f"{sum(shares) / len(shares):.4f}", f"{sum(s >= 0.9 for s in shares) / len(shares):.3f}",
            f"{furnished}", f"{kept / wanted:.3f}", f"{1000 * seconds / len(bodies):.1f}",
        )  # fmt: skip
    Console().print(table)


if __name__ == "__main__":
    main()
