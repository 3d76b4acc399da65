"""Markdown as blocks of text, like those of a web page: headings, paragraphs, list items, rows of tables.

Example: "# Bees\n\nThey *dance*.\n\n- Wax\n- [Honey](h.md)" has the blocks "Bees" (a heading), "They dance.", "Wax" and
"Honey".
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from forage.data.scraping.page_text import Block

LONGEST_HEADING = 1000  # characters
FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
HEADING = re.compile(r" {0,3}#{1,6}(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$")
UNDERLINE = re.compile(r" {0,3}(?:=+|-+)[ \t]*$")
RULE = re.compile(r" {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$")
ITEM = re.compile(r"[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]+(.*)$")
QUOTE = re.compile(r" {0,3}(?:>[ \t]?)+")
TABLE_RULE = re.compile(r"[ \t]*\|?(?:[ \t]*:?-+:?[ \t]*\|)+(?:[ \t]*:?-+:?)?[ \t]*$")
COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
FRONT_MATTER = re.compile(r"\A---[ \t]*\n.*?^(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
# Of each mark the text is kept: images and links, code, emphasis. Their lengths are bounded, as a mark that nothing
# closes would be sought to the end each time.
IMAGE_OR_LINK = re.compile(r"!?\[([^\[\]]*)\](?:\([^()\s]*(?:\s+\"[^\"]*\")?\)|\[[^\[\]]*\])")
AUTOLINK = re.compile(r"<((?:https?://|mailto:)[^<>\s]+)>")
CODE = re.compile(r"(`+)(.{1,500}?)\1")
STRONG = re.compile(r"(\*\*|__)(?=\S)(.{1,500}?)(?<=\S)\1")
EMPHASIS = re.compile(
    r"(?<![\w*])\*(?=[^\s*])([^*]{1,500}?)(?<=[^\s*])\*(?![\w*])"
    r"|(?<![\w_])_(?=[^\s_])([^_]{1,500}?)(?<=[^\s_])_(?![\w_])"
)
ESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")


def markdown_blocks(text: str) -> Iterator[Block]:
    """Blocks of a Markdown text, without its front matter and comments. Lines of a paragraph are joined."""
    text = COMMENT.sub("", FRONT_MATTER.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))
    lines: list[str] = []  # of the paragraph so far
    fence = ""
    for line in text.split("\n"):
        mark = FENCE.match(line)
        if fence:  # code stays as it is, a block a line
            if mark and mark[1].startswith(fence) and not line[mark.end() :].strip():
                fence = ""
            else:
                yield from _block(line, plain=True)
            continue
        line = QUOTE.sub("", line)
        heading, item = len(line) <= LONGEST_HEADING and HEADING.match(line), ITEM.match(line)
        if lines and UNDERLINE.match(line) and not TABLE_RULE.match(line):
            yield from _block(" ".join(lines), is_heading=True)
            lines = []
        elif mark or heading or not line.strip() or RULE.match(line) or TABLE_RULE.match(line):
            yield from _block(" ".join(lines))
            lines = []
            if mark:
                fence = mark[1]
            elif heading:
                yield from _block(heading[1] or "", is_heading=True)
        elif item or line.lstrip().startswith("|"):
            yield from _block(" ".join(lines))
            lines = [item[1] if item else " | ".join(cell.strip() for cell in line.strip().strip("|").split("|"))]
        else:
            lines.append(line)
    yield from _block(" ".join(lines))


def without_marks(text: str) -> str:
    """The text of one block. Example: "see **[the guide](g.md)** and `x`" gives "see the guide and x"."""
    text = AUTOLINK.sub(r"\1", IMAGE_OR_LINK.sub(r"\1", text))
    text = CODE.sub(r"\2", STRONG.sub(r"\2", text))
    text = EMPHASIS.sub(lambda found: found[1] or found[2], text)
    return ESCAPED.sub(r"\1", text)


def _block(text: str, *, is_heading: bool = False, plain: bool = False) -> Iterator[Block]:
    if shown := " ".join((text if plain else without_marks(text)).split()):
        yield Block(shown, is_heading)
