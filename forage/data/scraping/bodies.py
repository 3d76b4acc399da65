"""Response bodies of untrusted servers: decompressed piece by piece, only up to a size limit, and decoded as text."""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import AsyncIterator

import httpx

from forage.data.scraping.causes import Unfetchable

PAGE_TYPES = {"text/html", "application/xhtml+xml", "text/plain"}
ROBOTS_BYTES = 512 * 1024  # RFC 9309 asks for at least 500 KiB; the rest is ignored
PIECE = 64 * 1024  # decompressed data at a time


async def read_page_body(response: httpx.Response, max_bytes: int) -> bytes:
    """The body of a response; Unfetchable if its type, size or first bytes say that it is not a page."""
    kind = re.split("[;,]", response.headers.get("content-type", ""))[0].strip().lower()
    if kind not in PAGE_TYPES:
        raise Unfetchable("not_html", kind or "no Content-Type")
    body = bytearray()
    async for piece in _decoded(response):
        body += piece
        if len(body) > max_bytes:
            raise Unfetchable("too_large", f"over {max_bytes} bytes", size=len(body))
    if body[:1024].lstrip().startswith(b"%PDF"):
        raise Unfetchable("not_html", "PDF", size=len(body))
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
    if encoding not in ("identity", "", "gzip"):
        raise Unfetchable("bad_encoding", f"Content-Encoding {encoding}")
    stream = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS) if encoding == "gzip" else None
    try:
        async for data in response.aiter_raw():
            if not stream:
                yield data
                continue
            while data and not stream.eof:
                yield stream.decompress(data, PIECE)
                data = stream.unconsumed_tail
            if stream.eof:  # what follows, perhaps endlessly, is not part of it
                return
    except httpx.RemoteProtocolError as error:
        raise Unfetchable("truncated", str(error)) from error
    except zlib.error as error:
        raise Unfetchable("bad_encoding", f"broken compressed data: {error}") from error
    if stream:
        raise Unfetchable("truncated", "the gzip stream has no end")


META_CHARSET = re.compile(rb"<(?:meta|\?xml)\b[^>]*?(?:charset|encoding)\s*=\s*[\"']?\s*([\w.:-]+)", re.I)
# Browsers read these charsets as their supersets, and pages rely on it.
SUPERSETS = {"iso8859-1": "cp1252", "ascii": "cp1252", "gb2312": "gb18030", "gbk": "gb18030"}
SUPERSETS |= {"shift_jis": "cp932", "euc_kr": "cp949"}
# Python's own codecs, not charsets of the web: they may decode to invalid text.
NOT_CHARSETS = {"unicode-escape", "raw-unicode-escape", "punycode", "idna", "utf-7", "undefined"}


def decode_html(body: bytes, charset: str | None) -> str:
    """Text of a page: as UTF-8 if valid, by the header, by <meta>, else as windows-1252.

    Valid UTF-8 comes before the declarations: they are wrong more often than other text is valid UTF-8 by chance.
    """
    meta = META_CHARSET.search(body[:4096])
    declared = (_codec(charset or ""), _codec(meta[1].decode("ascii", "replace") if meta else ""))
    texts = (_decode(body, codec) for codec in ("utf-8-sig", *declared))
    text = next((text for text in texts if text is not None), None)
    # libxml2 would end the page at a NUL.
    return (body.decode("cp1252", "replace") if text is None else text).replace("\0", "")


def _codec(charset: str) -> str:
    """The name of Python's codec for a charset, or ''."""
    try:
        name = codecs.lookup(charset.strip("\"' ")).name
    except (LookupError, ValueError):  # ValueError: a name with NUL in it
        return ""
    return "" if name in NOT_CHARSETS else SUPERSETS.get(name, name)


def _decode(body: bytes, codec: str) -> str | None:
    try:
        return body.decode(codec)
    except (UnicodeError, LookupError):  # LookupError: '', or 'hex', which is not a text encoding
        return None
