"""Scrape in a process of its own, to be killed: scrape_worker.py FOLDER ADDRESS < URLs, one a line."""

import sys
from pathlib import Path
from urllib.parse import urlsplit

from forage.data.scraping.options import ScrapeOptions
from forage.data.scraping.scraper import scrape

if __name__ == "__main__":
    urls = sys.stdin.read().split()
    hosts = {urlsplit(url).hostname or "": sys.argv[2] for url in urls}
    options = ScrapeOptions(delay=0.03, retries=0, resolve=hosts)
    scrape(urls, Path(sys.argv[1]), options)
