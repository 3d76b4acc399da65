"""The text of a web page: what a reader came for, in blocks, without the site's furniture around it.

    bytes -> decode_html -> read_page -> drop_boilerplate (over the pages of one host) -> page_text

Example: `<nav>Home</nav><h1>Asthma</h1><p>A <b>long-term</b> disease.</p><ul><li>Cough<li>Wheeze</ul>`
has the blocks "Asthma" (a heading), "A long-term disease.", "Cough" and "Wheeze".

No page may take more than seconds, for pages are untrusted: what walks the tree is linear in its size,
however deep it nests, which is why some of it works on sets of element ids instead of asking each element.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from bs4 import BeautifulSoup, Tag
from bs4.element import NavigableString, PreformattedString

# A parsed tag takes about a kilobyte, so that 5 MB of "<b>" would fill the memory; a long article has 10,000.
MAX_TAGS = 100_000

HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
MAIN_PARTS = ("main", "article")
BLOCKS = (
    {*HEADINGS, *MAIN_PARTS, "address", "aside", "blockquote", "body", "caption", "center", "dd", "details"}
    | {"div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "header", "hr", "html"}
    | {"legend", "li", "menu", "nav", "ol", "p", "pre", "section", "summary", "table", "tbody", "td"}
    | {"tfoot", "th", "thead", "tr", "ul"}
)
# A row with one of these in it lays a page out instead of holding data.
NOT_IN_DATA_ROWS = (*HEADINGS, *MAIN_PARTS, "section", "table")

NEVER_TEXT = {"script", "style", "noscript", "template", "svg", "math", "iframe", "object", "canvas"}
NEVER_TEXT |= {"video", "audio", "button", "select", "textarea", "input"}
FURNITURE_TAGS = {"nav", "header", "footer", "aside", "form", "dialog"}
FURNITURE_ROLES = {"navigation", "banner", "contentinfo", "search", "dialog", "alertdialog"}
# Whole class names or ids: "social-anxiety", "informed-consent" and "sharing-needles" are content.
FURNITURE_NAME = re.compile(
    r"""(.*-)?cookies?(-.*)? | gdpr(-.*)? | onetrust.*
    | (.*-)?consent-(banner|bar|dialog|manager|modal|notice|overlay|popup) | (.*-)?breadcrumbs?(-.*)?
    | share | sharing | social | addthis.* | addtoany.* | sharethis.*
    | (.*-)?(share|sharing|social)-(bar|buttons?|icons?|links?|list|media|menu|nav|this|tools?|widget)(-.*)?
    | (.*-)?newsletter(-.*)? | subscribe(-.*)? | (.*-)?subscribe-(box|form|banner)
    | (.*-)?skip-?(links?|nav|navigation|to-.*|content|main)""",
    re.VERBOSE,
)

META_CHARSET = re.compile(rb"<(?:meta|\?xml)\b[^>]*?(?:charset|encoding)\s*=\s*[\"']?\s*([\w.:-]+)", re.I)
BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose little-endian mark it starts with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Charsets whose text is 7-bit bytes, so that it looks like valid UTF-8.
STATEFUL = {"iso2022_jp", "iso2022_jp_1", "iso2022_jp_2", "iso2022_jp_3", "iso2022_kr", "hz"}
# Browsers read these names as their supersets, and pages rely on it.
SUPERSETS = {"iso8859-1": "cp1252", "ascii": "cp1252", "gb2312": "gb18030", "gbk": "gb18030"}
SUPERSETS |= {"shift_jis": "cp932", "euc_kr": "cp949"}
# Python's own codecs, not charsets of the web: their output may be no valid text.
NOT_CHARSETS = {"unicode-escape", "raw-unicode-escape", "punycode", "idna", "utf-7", "undefined"}

CELL = "\x1f"  # between the cells of a row until they are joined; in a page's own text it is white space
INVISIBLE = dict.fromkeys(map(ord, "\u200b\u200c\u200d\u2060\ufeff\u00ad"))  # zero-width, soft hyphen
BEFORE_SITE_NAME = re.compile(r"(.+)\s(?:[|»·•–—-]|::)\s")


@dataclass(frozen=True, slots=True)
class Block:
    """A heading, paragraph, list item, table row (cells joined by ' | '), term or definition; on one line."""

    text: str
    is_heading: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """What a page says, in the order it says it."""

    title: str
    blocks: tuple[Block, ...]


def decode_html(body: bytes, charset: str | None) -> str:
    """Text of a page: by its byte-order mark, UTF-8 if valid, by the header, by <meta>, else windows-1252.

    Declarations come after valid UTF-8 because they are wrong more often than other text is UTF-8 by chance.
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
    """The name of Python's codec for a charset, or '' for none."""
    try:
        name = codecs.lookup(charset.strip("\"' ")).name
    except (LookupError, ValueError):  # ValueError: a name with NUL in it
        return ""
    return "" if name in NOT_CHARSETS else SUPERSETS.get(name, name)


def _decode(body: bytes, codec: str) -> str | None:
    try:
        return body.decode(codec)
    except (UnicodeError, LookupError):  # LookupError: '', and 'hex', which is no text encoding
        return None


def _is_mostly_utf8(text: str) -> bool:
    """UTF-8 with a broken character here and there, rather than another charset under UTF-8's name."""
    return sum(character > "\x7f" for character in text) > 2 * text.count("\ufffd")


def read_page(body: bytes, charset: str | None) -> Page:
    """Title and blocks of a page of HTML, or of plain text (paragraphs between blank lines). Never raises."""
    html = decode_html(body, charset)
    if not re.search(r"<[a-zA-Z!/?]", html):
        paragraphs = (_one_line(part) for part in re.split(r"\n\s*\n", html))
        return Page("", tuple(Block(text) for text in paragraphs if text))
    pieces = html.split("<", MAX_TAGS)
    soup = BeautifulSoup("<".join(pieces[:MAX_TAGS]), "lxml")
    _drop_furniture(soup)
    root = _main_part(soup)
    title = _title(soup, root)
    for tag in root.find_all("title"):
        tag.decompose()
    return Page(title, tuple(_blocks(root)))


def _drop_furniture(soup: BeautifulSoup) -> None:
    _drop(soup, lambda tag: tag.name in NEVER_TEXT)
    sizes = _text_sizes(soup)
    around_main = _around(soup, MAIN_PARTS)
    inside_main = _inside(soup, MAIN_PARTS)

    def unwanted(tag: Tag) -> bool:
        if not _is_furniture(tag) or (tag.name == "header" and id(tag) in inside_main):
            return False
        # Some sites put the whole page in one <form>, or mark it with a class such as "cookies-accepted".
        return id(tag) not in around_main and 2 * sizes[id(tag)] <= sizes[id(soup)]

    _drop(soup, unwanted)


def _drop(soup: BeautifulSoup, unwanted: Callable[[Tag], bool]) -> None:
    """Take the unwanted elements out, after the walk, because bs4 can't say much of elements taken out."""
    dropped: set[int] = set()
    outermost: list[Tag] = []
    for tag in soup.find_all(True):
        if id(tag.parent) in dropped:
            dropped.add(id(tag))
        elif unwanted(tag):
            dropped.add(id(tag))
            outermost.append(tag)
    for tag in outermost:
        tag.decompose()


def _text_sizes(soup: BeautifulSoup) -> Counter[int]:
    """Characters of text in each element, by id()."""
    sizes: Counter[int] = Counter()
    for element in reversed(list(soup.descendants)):  # children before their parents
        size = len(element.strip()) if isinstance(element, NavigableString) else sizes[id(element)]
        if not isinstance(element, PreformattedString):  # comments and the like
            sizes[id(element.parent)] += size
    return sizes


def _around(root: Tag, names: tuple[str, ...]) -> set[int]:
    """The id() of every element that has one of these inside it."""
    around: set[int] = set()
    for tag in root.find_all(names):
        for parent in tag.parents:
            if id(parent) in around:
                break
            around.add(id(parent))
    return around


def _inside(root: Tag, names: tuple[str, ...]) -> set[int]:
    """The id() of every element that is inside one of these, or is one."""
    inside: set[int] = set()
    for tag in root.find_all(True):
        if tag.name in names or id(tag.parent) in inside:
            inside.add(id(tag))
    return inside


def _is_furniture(tag: Tag) -> bool:
    if tag.name in ("html", "body", *MAIN_PARTS, *HEADINGS):  # a heading's id is made of its words
        return False
    if tag.name in FURNITURE_TAGS or _attribute(tag, "role") in FURNITURE_ROLES:
        return True
    if _attribute(tag, "aria-hidden") == "true" or _attribute(tag, "hidden", "no") in ("", "hidden", "true"):
        return True
    names = f"{_attribute(tag, 'class')} {_attribute(tag, 'id')}".split()
    return any(FURNITURE_NAME.fullmatch(_dashed(name)) for name in names)


def _attribute(tag: Tag, name: str, default: str = "") -> str:
    value = tag.get(name) if tag.has_attr(name) else default
    return (value if isinstance(value, str) else " ".join(value or ())).strip()


def _dashed(name: str) -> str:
    """cookieBanner, cookie_banner and Cookie--Banner are all cookie-banner."""
    return re.sub(r"[^a-z0-9]+", "-", re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name[:100]).lower()).strip("-")


def _main_part(soup: BeautifulSoup) -> Tag:
    """The <main> or <article> with the most text, if it holds most of the page's; else the whole page."""
    sizes = _text_sizes(soup)
    candidates: list[Tag] = soup.select("main, [role=main], article")
    best = max(candidates, key=lambda tag: sizes[id(tag)], default=soup)
    return best if 2 * sizes[id(best)] >= sizes[id(soup)] else soup


def _title(soup: BeautifulSoup, root: Tag) -> str:
    """The page's own heading, else what it is shared under, else <title> without the site's name."""
    for heading in (*root.find_all("h1", limit=3), *soup.find_all("h1", limit=3)):
        if text := " ".join(block.text for block in _blocks(heading)):
            return text
    shared = soup.find("meta", attrs={"property": "og:title"})
    if isinstance(shared, Tag) and (text := _one_line(_attribute(shared, "content"))):
        return text
    title = soup.find("title")
    text = _one_line(title.get_text()) if title else ""
    with_site_name = BEFORE_SITE_NAME.match(text)
    return with_site_name[1] if with_site_name else text


def _blocks(root: Tag) -> Iterator[Block]:
    """Text between starts and ends of block elements; a row of data stays whole, whatever its cells hold."""
    layout = _around(root, NOT_IN_DATA_ROWS)
    owners: dict[int, Tag] = {id(root): root}  # the block element that each element is in, or is
    rows: dict[int, Tag] = {}  # the row of data that each block element is in, or is
    current, parts = root, list[str]()
    for element in root.descendants:
        owner = owners[id(element.parent)]
        if isinstance(element, Tag):
            owners[id(element)] = owner = _own(element, owner, rows, layout)
        if owner is not current:
            if id(current) in rows and rows.get(id(owner)) is rows[id(current)]:
                parts.append(CELL if element is owner and owner.name in ("td", "th") else " ")
            else:
                yield from _block(current, parts)
                parts = []
            current = owner
        if isinstance(element, Tag):
            parts.append(" " if element.name == "br" else "")
        elif isinstance(element, NavigableString) and not isinstance(element, PreformattedString):
            parts.append(element.replace(CELL, " "))
    yield from _block(current, parts)


def _own(tag: Tag, outer: Tag, rows: dict[int, Tag], layout: set[int]) -> Tag:
    """The block element of a tag: itself or one around it. Notes the row of data that a block is part of."""
    if tag.name not in BLOCKS:
        return outer
    if id(outer) in rows:
        rows[id(tag)] = rows[id(outer)]
    elif tag.name == "tr" and id(tag) not in layout:
        rows[id(tag)] = tag
    return tag


def _block(owner: Tag, parts: list[str]) -> Iterator[Block]:
    cells = (_one_line(cell) for cell in "".join(parts).split(CELL))
    if text := " | ".join(cell for cell in cells if cell):
        yield Block(text, owner.name in HEADINGS)


def _one_line(text: str) -> str:
    return " ".join(text.translate(INVISIBLE).split())  # split() knows the no-break space


def _host_of(url: str) -> str:
    return urlsplit(url).hostname or ""


def drop_boilerplate(pages: Mapping[str, Page], host_of: Callable[[str], str] = _host_of) -> dict[str, Page]:
    """Drop blocks that recur on at least half, and at least three, of one host's pages; headings stay.

    Pages with equal blocks count once: a page under several addresses is no boilerplate of its host.
    """
    by_host: defaultdict[str, set[tuple[Block, ...]]] = defaultdict(set)
    for url, page in pages.items():
        by_host[host_of(url)].add(page.blocks)
    recurring: dict[str, set[Block]] = {}
    for host, distinct in by_host.items():
        counts = Counter(block for blocks in distinct for block in set(blocks) if not block.is_heading)
        recurring[host] = {block for block, count in counts.items() if count >= max(3, len(distinct) / 2)}
    kept: dict[str, Page] = {}
    for url, page in pages.items():
        dropped = recurring[host_of(url)]
        kept[url] = replace(page, blocks=tuple(block for block in page.blocks if block not in dropped))
    return kept


def page_text(page: Page) -> str:
    """A block a line, a blank line before a heading unless it is first: '\\n\\n' is where a section starts."""
    lines = (f"\n{block.text}" if block.is_heading else block.text for block in page.blocks)
    return "\n".join(lines).lstrip("\n")
