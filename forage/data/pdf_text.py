"""The text of a PDF, by pypdf. What a PDF shows as a picture of text can't be read."""

from __future__ import annotations

import io
import logging
import re
import struct
import zlib

from forage.data.folder import Unreadable
from forage.data.scraping.page_text import Block

HYPHENATED = re.compile(r"(?<=[a-z])-\n(?=[a-z])")


def read_pdf(body: bytes) -> tuple[str, list[Block]]:
    """(title, paragraphs) of a PDF; the title may be empty. Unreadable where there is no text."""
    import pypdf
    from pypdf.errors import PyPdfError

    # pypdf lets through what its code trips over in a damaged file.
    tripped = (ArithmeticError, AssertionError, AttributeError, LookupError, NotImplementedError, RecursionError)
    tripped += (TypeError, ValueError, struct.error, zlib.error, EOFError)  # type: ignore[assignment]
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it warns of each fault that it can read past
    try:
        reader = pypdf.PdfReader(io.BytesIO(body))
        if reader.is_encrypted:
            raise Unreadable("encrypted PDF")
        title = reader.metadata.title if reader.metadata else None
        blocks = [block for page in reader.pages for block in paragraphs(page.extract_text())]
    except (PyPdfError, *tripped) as error:
        raise Unreadable("damaged PDF") from error
    if not blocks:
        raise Unreadable("PDF without text (scanned?)")
    return " ".join(str(title or "").split()), blocks


def paragraphs(text: str) -> list[Block]:
    """Paragraphs between blank lines, each on one line; a word that a line's end divides is whole again.

    Example: "Bees like cro-\\ncuses.\\n\\nWasps." gives "Bees like crocuses." and "Wasps."
    """
    joined = (" ".join(HYPHENATED.sub("", part).split()) for part in re.split(r"\n\s*\n", text.replace("\r\n", "\n")))
    return [Block(part) for part in joined if part]
