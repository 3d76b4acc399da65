"""Response bodies from untrusted servers: decompressed piece by piece, and only up to a size limit."""

from __future__ import annotations

import re
import zlib
from collections.abc import AsyncIterator, Iterator

import httpx

from forage.data.scraping.causes import Unfetchable

PAGE_TYPES = {"text/html", "application/xhtml+xml", "text/plain"}
LOOKS_LIKE_HTML = re.compile(rb"<(?:!doctype html|html|head|body|title|meta|h1|p|div)\b", re.IGNORECASE)
ROBOTS_BYTES = 512 * 1024  # RFC 9309 asks for at least 500 KiB; the rest is ignored
PIECE = 64 * 1024  # decompressed data at a time


async def read_page_body(response: httpx.Response, max_bytes: int) -> bytes:
    """The body of a response; Unfetchable if its type, size or first bytes say that it is not a page."""
    kind = re.split("[;,]", response.headers.get("content-type", ""))[0].strip().lower()
    if kind and kind not in PAGE_TYPES:
        raise Unfetchable("not_html", kind)
    body = bytearray()
    async for piece in _decoded(response):
        body += piece
        if len(body) > max_bytes:
            raise Unfetchable("too_large", f"over {max_bytes} bytes", size=len(body))
    head = bytes(body[:1024])
    if head.lstrip().startswith(b"%PDF"):
        raise Unfetchable("not_html", "PDF", size=len(body))
    if head and not kind and not LOOKS_LIKE_HTML.search(head):
        raise Unfetchable("not_html", "no Content-Type, and doesn't look like HTML", size=len(body))
    return bytes(body)


async def read_robots_body(response: httpx.Response) -> bytes:
    """The first ROBOTS_BYTES of a robots.txt, of any content type."""
    body = bytearray()
    async for piece in _decoded(response):
        body += piece
        if len(body) >= ROBOTS_BYTES:
            break
    return bytes(body[:ROBOTS_BYTES])


async def _decoded(response: httpx.Response) -> AsyncIterator[bytes]:
    """The body, decompressed in pieces, so that a gigabyte of zeros in a megabyte of gzip never exists as a whole."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "", "gzip", "x-gzip", "deflate"):
        raise Unfetchable("bad_encoding", f"Content-Encoding {encoding}")
    inflater = None if encoding in ("identity", "") else _Inflater()
    try:
        async for data in response.aiter_raw():
            for piece in inflater.feed(data) if inflater else (data,):
                yield piece
            if inflater and inflater.ended:  # what follows, perhaps endlessly, is not part of it
                return
    except httpx.RemoteProtocolError as error:
        raise Unfetchable("truncated", str(error)) from error
    if inflater and inflater.started:
        raise Unfetchable("truncated", f"the {encoding} stream has no end")


class _Inflater:
    """Decompresses gzip or zlib, told apart by their first bytes, or the raw deflate some servers send as 'deflate'."""

    def __init__(self) -> None:
        self.stream = zlib.decompressobj(wbits=32 + zlib.MAX_WBITS)
        self.started = False

    @property
    def ended(self) -> bool:
        return self.stream.eof

    def feed(self, data: bytes) -> Iterator[bytes]:
        try:
            piece = self._inflate(data)
            while piece:
                yield piece
                piece = self.stream.decompress(self.stream.unconsumed_tail, PIECE)
        except zlib.error as error:
            raise Unfetchable("bad_encoding", f"broken compressed data: {error}") from error

    def _inflate(self, data: bytes) -> bytes:
        first, self.started = not self.started, True
        try:
            return self.stream.decompress(data, PIECE)
        except zlib.error:
            if not first:
                raise
            self.stream = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
            return self.stream.decompress(data, PIECE)
