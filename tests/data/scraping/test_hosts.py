"""A host's turns, on a clock that only moves when someone sleeps."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forage.data.scraping.content_folder import Unfetchable
from forage.data.scraping.fetcher import _join
from forage.data.scraping.hosts import is_public, look_up, parse_url

# Which addresses are on the public internet, and which URLs may be asked for


PUBLIC = "8.8.8.8 2606:4700::1111 ::ffff:8.8.8.8 64:ff9b::808:808"
PRIVATE = """10.0.0.1 100.64.0.1 127.0.0.1 169.254.169.254 0.0.0.0 224.0.0.1 240.0.0.1 198.18.0.1 ::1 :: fe80::1%eth0
    fc00::1 fec0::1 ff02::1 2001:db8::1 ::ffff:127.0.0.1 2002:7f00:1:: 64:ff9b::7f00:1"""


def test_public_addresses():
    assert all(map(is_public, PUBLIC.split()))
    assert not [address for address in PRIVATE.split() if is_public(address)]


def test_a_name_server_that_never_answers(monkeypatch):
    given_up = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: given_up.wait(250) and [])

    async def ask():
        try:
            await look_up("slow.example", 80, 0.05, allow_local=False)
        finally:
            given_up.set()  # the loop ends once its threads do

    with pytest.raises(Unfetchable, match="no answer"):
        asyncio.run(ask())


ODD = st.text(max_size=30) | st.text(alphabet="htps:/@[]%.0x#?\\ é\u0661-", max_size=30).map("http://".__add__)


@given(ODD)
def test_no_url_raises_anything_else(text):
    for parse in (parse_url, lambda location: _join(httpx.URL("http://a.test/"), location)):
        with suppress(Unfetchable):
            url = parse(text)
            assert url.scheme in ("http", "https")
            assert parse_url(str(url)) == url
