"""Options of scraping. Imports nothing heavy, for --help."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from forage.errors import UserError, check_at_least_one, check_at_least_zero, flag


@dataclass(frozen=True)
class ScrapeOptions:
    """How pages are fetched."""

    batch_size: int = 100
    """Pages fetched at the same time, over all hosts."""
    per_host: int = 2
    """Connections to one host at a time."""
    delay: float = 0.5
    """Seconds between the starts of two requests to one host; a longer Crawl-delay in robots.txt takes precedence."""
    retries: int = 3
    """Retries after 429, 5xx, timeouts and broken connections."""
    max_wait: float = 60
    """Longest wait in seconds before a retry, or for a Retry-After or a Crawl-delay."""
    timeout: float = 20
    """Seconds to wait for a name lookup, a connection, or the next bytes."""
    page_timeout: float = 90
    """Seconds for one request as a whole, so that an endless trickle of bytes is cut off."""
    max_bytes: int = 5 * 1024 * 1024
    """Largest page, decompressed."""
    max_redirects: int = 5
    """Redirects followed from one URL."""
    user_agent: str = "forage/0.2 (collects the pages of a question-answering data set)"
    """User-Agent header; robots.txt rules are matched against the part before the slash."""
    allow_local: bool = False
    """Fetch from private, loopback and other addresses that are not on the internet."""
    unreachable_after: int = 5
    """Give up on a host after failing this many times in a row to connect to it or to get its robots.txt."""
    resolve: Mapping[str, str] = field(default_factory=dict)
    """HOST ADDRESS:PORT pairs: connect to the address instead of the host (in lower case), as curl --connect-to does; a
    local address is allowed."""

    def check(self) -> None:
        """Fail before anything is fetched."""
        check_at_least_one(self, "batch_size", "per_host", "max_bytes", "unreachable_after")
        check_at_least_zero(self, "retries", "max_redirects")
        for name in ("max_wait", "timeout", "page_timeout"):
            if not getattr(self, name) > 0:  # NaN is refused too
                raise UserError(f"{flag(name)} {getattr(self, name)} must be over 0")
        if not self.delay >= 0:
            raise UserError(f"--delay {self.delay} must be at least 0")
        if not re.fullmatch(r"[\x21-\x7e][\x20-\x7e]*", self.user_agent):
            raise UserError(f"--user-agent {self.user_agent!r} must be printable ASCII, like 'name/version (purpose)'")
        for host, target in self.resolve.items():
            try:
                split_address(target)
            except ValueError as error:
                raise UserError(f"--resolve {host} {target}: write address:port, as in 127.0.0.1:80") from error


def split_address(target: str) -> tuple[str, int]:
    """Example: '127.0.0.1:80' gives ('127.0.0.1', 80)."""
    address, _, port = target.rpartition(":")
    if not 0 < int(port) < 65536:
        raise ValueError(f"port {port} does not exist")
    return str(ipaddress.ip_address(address.strip("[]"))), int(port)
