"""Charsets: declared, misdeclared, undeclared."""

import pytest

from forage.data.scraping.page_text import decode_html

SJOGREN = "Sjögren – café"


@pytest.mark.parametrize(
    ("body", "charset", "text"),
    [
        (SJOGREN.encode(), None, SJOGREN),
        (SJOGREN.encode(), "iso-8859-1", SJOGREN),
        (SJOGREN.encode("cp1252"), "utf-8", SJOGREN),
        (SJOGREN.encode("cp1252"), "no-such-charset", SJOGREN),
        (b"\xef\xbb\xbf" + SJOGREN.encode(), "latin-1", SJOGREN),
        (b'<meta charset="koi8-r">' + "боль".encode("koi8-r"), None, '<meta charset="koi8-r">боль'),
        ("頭痛".encode("shift_jis"), '"Shift_JIS"', "頭痛"),
        (b"caf\xe9 \x81", None, "café \ufffd"),
    ],
)
def test_charsets(body, charset, text):
    assert decode_html(body, charset) == text
