"""Charsets: the bytes of a web page as text, whatever it declares."""

from __future__ import annotations

import codecs
import re

META_CHARSET = re.compile(rb"<(?:meta|\?xml)\b[^>]*?(?:charset|encoding)\s*=\s*[\"']?\s*([\w.:-]+)", re.I)
BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose little-endian mark it starts with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Charsets that use 7-bit bytes only, so that their text looks like valid UTF-8.
STATEFUL = {"iso2022_jp", "iso2022_jp_1", "iso2022_jp_2", "iso2022_jp_3", "iso2022_kr", "hz"}
# Browsers read these charsets as their supersets, and pages rely on it.
SUPERSETS = {"iso8859-1": "cp1252", "ascii": "cp1252", "gb2312": "gb18030", "gbk": "gb18030"}
SUPERSETS |= {"shift_jis": "cp932", "euc_kr": "cp949"}
# Python's own codecs, not charsets of the web: they may decode to invalid text.
NOT_CHARSETS = {"unicode-escape", "raw-unicode-escape", "punycode", "idna", "utf-7", "undefined"}


def decode_html(body: bytes, charset: str | None) -> str:
    """Text of a page: by its byte-order mark, as UTF-8 if valid, by the header, by <meta>, else as windows-1252.

    Valid UTF-8 comes before the declarations: they are wrong more often than other text is valid UTF-8 by chance.
    """
    for mark, codec in BYTE_ORDER_MARKS:
        if body.startswith(mark):
            return body.decode(codec, "replace").replace("\0", "")
    meta = META_CHARSET.search(body[:4096])
    declared = [_codec(charset or ""), _codec(meta[1].decode("ascii", "replace") if meta else "")]
    stateful = [codec for codec in declared if codec in STATEFUL]
    for codec in (*stateful, "utf-8", *declared):
        text = _decode(body, codec)
        if text is not None:
            return text.replace("\0", "")  # libxml2 would end the page there
    broken = body.decode("utf-8", "replace")
    if "utf-8" in declared and _is_mostly_utf8(broken):
        return broken.replace("\0", "")
    return body.decode("cp1252", "replace").replace("\0", "")


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


def _is_mostly_utf8(text: str) -> bool:
    """Whether this is UTF-8 with a few broken characters, rather than another charset declared as UTF-8."""
    return sum(character > "\x7f" for character in text) > 2 * text.count("\ufffd")
