"""Hosts: which of them may be asked for a page, given that URLs are untrusted input, and when.

robots.txt is read by protego, by RFC 9309: the longest matching rule counts, and * and $ are wildcards. It matches
without regular expressions, so no rule can make it hang. urllib.robotparser (Python 3.11) takes the first matching rule
and knows no wildcards.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
from protego import Protego

from forage.data.scraping.content_folder import Unfetchable

# httpx has lowered the case. Odd forms of IPv4 (2130706433, 0x7f.1) pass here and are checked once resolved.
HOST_NAME = re.compile(r"(?:[a-z0-9_-]{1,63}\.)*[a-z0-9_-]{1,63}\.?", re.ASCII)
NAT64 = ipaddress.ip_network("64:ff9b::/96")


def parse_url(text: str) -> httpx.URL:
    """An http(s) URL with a host that can be looked up, no user info and no fragment, or Unfetchable."""
    try:
        url = httpx.URL(text.strip())
    except (httpx.InvalidURL, UnicodeError) as error:
        raise Unfetchable("bad_url", str(error)) from error
    host = host_of(url)
    if url.scheme and url.scheme not in ("http", "https"):
        raise Unfetchable("bad_scheme", f"{url.scheme}: is neither http nor https")
    if not url.scheme or not host:
        raise Unfetchable("bad_url", "not an absolute URL")
    if url.userinfo:
        raise Unfetchable("bad_url", "contains a user name or password")
    if url.port is not None and not 0 < url.port < 65536:
        raise Unfetchable("bad_url", f"port {url.port} does not exist")
    if not _is_host(host):
        raise Unfetchable("bad_url", f"{host[:80]!r} is not a host name")
    return url.copy_with(fragment=None)


def host_of(url: httpx.URL) -> str:
    """As it is looked up: international names in ASCII."""
    return url.raw_host.decode("ascii")


def _is_host(host: str) -> bool:
    if ":" in host:  # httpx lets only bracketed IPv6 literals through, but accepts nearly anything as one
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            return False
        return True
    return len(host) <= 253 and HOST_NAME.fullmatch(host) is not None


def is_public(address: str) -> bool:
    """Whether an address, and the IPv4 address embedded in it if there is one, is on the public internet.

    ::ffff:127.0.0.1, 2002:7f00:1:: (6to4) and 64:ff9b::7f00:1 (NAT64) all end at 127.0.0.1.
    """
    ip = ipaddress.ip_address(address)
    inner = getattr(ip, "ipv4_mapped", None) or getattr(ip, "sixtofour", None)
    if ip in NAT64:
        inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    if inner is not None:
        return is_public(str(inner))
    # is_global alone lets multicast pass.
    return ip.is_global and not (ip.is_multicast or ip.is_reserved or getattr(ip, "is_site_local", False))


async def look_up(host: str, port: int, timeout: float, allow_local: bool) -> tuple[str, ...]:
    """The addresses of a host; refuses the host if any of them is not public."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise Unfetchable("dns", f"{host}: {error.strerror}") from error
    except TimeoutError as error:
        raise Unfetchable("dns", f"{host}: no answer in {timeout:g} s") from error
    addresses = tuple(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))
    private = [address for address in addresses if not is_public(address)]
    if private and not allow_local:
        raise Unfetchable("private_address", f"{host} is {private[0]}")
    return addresses


@dataclass
class Host:
    """When the next request to one host may start, how many may run at once, and what is known of the host."""

    delay: float
    slots: asyncio.Semaphore
    gate: asyncio.Lock = field(default_factory=asyncio.Lock)
    next_start: float = 0.0
    addresses: tuple[str, ...] = ()
    robots: dict[str, Protego] = field(default_factory=dict)
    """By scheme, host and port."""
    robots_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    failures: int = 0
    """In a row, to connect or to get robots.txt."""

    def slow_down(self, delay: float) -> None:
        """Keep at least this delay, counted from the last request."""
        if delay > self.delay:
            self.next_start += delay - self.delay
            self.delay = delay

    def hold(self, seconds: float) -> None:
        """Start no request to this host for this long."""
        self.next_start = max(self.next_start, time.monotonic() + seconds)

    @asynccontextmanager
    async def turn(self, in_flight: asyncio.Semaphore) -> AsyncIterator[None]:
        """Wait until politeness to this host and the limit over all hosts (`in_flight`) allow one more request."""
        async with self.slots:
            async with self.gate:
                while (wait := self.next_start - time.monotonic()) > 0:
                    await asyncio.sleep(wait)
                await in_flight.acquire()
                self.next_start = time.monotonic() + self.delay
            try:
                yield
            finally:
                in_flight.release()
