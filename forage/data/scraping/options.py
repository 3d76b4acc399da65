"""Options of scraping. Imports nothing heavy, for --help."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forage.arguments import fixed
from forage.errors import UserError, check_at_least_one


@dataclass(frozen=True)
class ScrapeOptions:
    """How pages are fetched."""

    batch_size: int = 100
    """Pages fetched at once, across all hosts."""
    per_host: int = 2
    """Connections to one host at once."""
    delay: float = 0.5
    """Seconds between the starts of two requests to one host. A longer Crawl-delay in robots.txt wins."""
    retries: int = 3
    """Retries after a 429, a 5xx, a timeout or a broken connection."""
    timeout: float = 20
    """Seconds to wait for a DNS lookup, a connection, or the next bytes. A whole request may take four times as long,
    so an endless trickle of bytes is cut off."""
    max_bytes: int = fixed(5 * 1024 * 1024)
    """Largest page, in bytes after decompression."""
    allow_local: bool = False
    """Also fetch from private, loopback and other addresses that are not on the internet."""
    resolve: Mapping[str, tuple[str, int]] | None = fixed(None)
    """host -> (address, port) to connect to instead (host in lower case), like curl --connect-to; the address may be
    local. For the sample's own server."""

    def check(self) -> None:
        """Fail before anything is fetched."""
        check_at_least_one(self, "batch_size", "per_host")
        if not self.timeout > 0:  # NaN is refused too
            raise UserError(f"--timeout {self.timeout} must be over 0")
