"""The text of a web page, in blocks, without the site's furniture.

    bytes -> decode_html -> read_page -> drop_boilerplate (over the pages of one site)

Example: `<nav>Home</nav><h1>Asthma</h1><p>A <b>long-term</b> disease.</p><ul><li>Cough<li>Wheeze</ul>`
has the blocks "Asthma" (a heading), "A long-term disease.", "Cough" and "Wheeze".

trafilatura was measured against this: on the sample pages it keeps as much with favor_recall, and
is no faster; on odder pages (tests/data/scraping/test_page_text.py) it loses text between blocks and keeps banners.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from bs4 import BeautifulSoup, Tag
from bs4.dammit import EncodingDetector
from bs4.element import NavigableString, PreformattedString

from forage.metrics import grouped

HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
MAIN_PARTS = ("main", "article")
# A parsed tag takes about a kilobyte, so 5 MB of "<b>" would fill the memory; a long article has 10,000 tags.
MAX_TAGS = 100_000

BLOCKS = (
    {*HEADINGS, *MAIN_PARTS, "address", "aside", "blockquote", "body", "caption", "center", "dd", "details"}
    | {"div", "dl", "dt", "fieldset", "figcaption", "figure", "footer", "form", "header", "hr", "html"}
    | {"legend", "li", "menu", "nav", "ol", "p", "pre", "section", "summary", "table", "tbody", "td"}
    | {"tfoot", "th", "thead", "tr", "ul"}
)
# A row that contains one of these is page layout, not data.
NOT_IN_DATA_ROWS = (*HEADINGS, *MAIN_PARTS, "section", "table")

INVISIBLE = dict.fromkeys(map(ord, "\u200b\u200c\u200d\u2060\ufeff\u00ad"))  # zero-width, soft hyphen
BEFORE_SITE_NAME = re.compile(r"(.+)\s(?:[|»·•–—-]|::)\s")


@dataclass(frozen=True, slots=True)
class Block:
    """A heading, paragraph, list item, table row (cells joined by ' | '), term or definition; on one line."""

    text: str
    is_heading: bool = False


@dataclass(frozen=True, slots=True)
class Page:
    """The title and blocks of a page, in its order."""

    title: str
    blocks: tuple[Block, ...]


def read_page(body: bytes, charset: str | None) -> Page:
    """Title and blocks of a page of HTML, or of plain text (paragraphs between blank lines). Never raises."""
    html = decode_html(body, charset)
    if not re.search(r"<[a-zA-Z!/?]", html):
        paragraphs = (_one_line(part) for part in re.split(r"\n\s*\n", html))
        return Page("", tuple(Block(text) for text in paragraphs if text))
    pieces = html.split("<", MAX_TAGS)
    soup = BeautifulSoup("<".join(pieces[:MAX_TAGS]), "lxml")
    drop_furniture(soup)
    root = _main_part(soup)
    _join_rows(root)
    title = _title(soup, root)
    for tag in root.find_all("title"):
        tag.decompose()
    return Page(title, tuple(_blocks(root)))


def _main_part(soup: BeautifulSoup) -> Tag:
    """The <main> or <article> with the most text, if it has at least half of the page's; else the whole page."""
    sizes = text_sizes(soup)
    candidates: list[Tag] = soup.select("main, [role=main], article")
    best = max(candidates, key=lambda tag: sizes[id(tag)], default=soup)
    return best if 2 * sizes[id(best)] >= sizes[id(soup)] else soup


def _title(soup: BeautifulSoup, root: Tag) -> str:
    """The page's h1, else its og:title, else its <title> without the site's name."""
    for heading in (*root.find_all("h1", limit=3), *soup.find_all("h1", limit=3)):
        if text := " ".join(block.text for block in _blocks(heading)):
            return text
    shared = soup.find("meta", attrs={"property": "og:title"})
    if isinstance(shared, Tag) and (text := _one_line(attribute(shared, "content"))):
        return text
    title = soup.find("title")
    text = _one_line(title.get_text()) if title else ""
    with_site_name = BEFORE_SITE_NAME.match(text)
    return with_site_name[1] if with_site_name else text


def _join_rows(root: Tag) -> None:
    """A row of data becomes one text, its cells joined by ' | ', whatever is in them."""
    layout = ancestors_of(root, NOT_IN_DATA_ROWS)
    for row in root.find_all("tr"):
        if id(row) not in layout and not row.decomposed:  # with one around it
            cells = row.find_all(("td", "th"), recursive=False)
            texts = [" ".join(block.text for block in _blocks(cell)) for cell in cells]
            row.clear(decompose=True)
            row.append(" | ".join(filter(None, texts)))


def _blocks(root: Tag) -> Iterator[Block]:
    """Text between the starts and ends of block elements."""
    owners: dict[int, Tag] = {id(root): root}  # the block element that each element is in, or is
    current, parts = root, list[str]()
    for element in root.descendants:
        owner = owners[id(element.parent)]
        if isinstance(element, Tag):
            owners[id(element)] = owner = element if element.name in BLOCKS else owner
        if owner is not current:
            yield from _block(current, parts)
            current, parts = owner, []
        if isinstance(element, Tag):
            parts.append(" " if element.name == "br" else "")
        elif isinstance(element, NavigableString) and not isinstance(element, PreformattedString):
            parts.append(element)
    yield from _block(current, parts)


def _block(owner: Tag, parts: list[str]) -> Iterator[Block]:
    if text := _one_line("".join(parts)):
        yield Block(text, owner.name in HEADINGS)


def _one_line(text: str) -> str:
    return " ".join(text.translate(INVISIBLE).split())  # split() knows the no-break space


def drop_boilerplate(pages: Mapping[str, Page], site_of: Callable[[str], str]) -> tuple[dict[str, Page], Counter[str]]:
    """The pages, by their addresses, without what recurs on their site; on how many pages each such text was."""
    by_site = grouped((site_of(address), page) for address, page in pages.items())
    recurring = {site: recurring_blocks(its_pages) for site, its_pages in by_site.items()}
    own, dropped = {}, Counter[str]()
    for address, page in pages.items():
        boilerplate = recurring[site_of(address)].intersection(page.blocks)
        own[address] = replace(page, blocks=tuple(block for block in page.blocks if block not in boilerplate))
        dropped.update(block.text for block in boilerplate)
    return own, dropped


def recurring_blocks(pages: Iterable[Page]) -> set[Block]:
    """The blocks on at least half of one site's pages; no headings.

    A few pages may well share a paragraph that says something, so it must be on ten of them, or on all of five to ten;
    of fewer pages, nothing is boilerplate. Pages with equal blocks count once, so a page under several addresses
    doesn't become boilerplate.
    """
    distinct = {page.blocks for page in pages}
    counts = Counter(block for blocks in distinct for block in set(blocks) if not block.is_heading)
    return {block for block, count in counts.items() if count >= max(5, min(10, len(distinct)), len(distinct) / 2)}


# Furniture: the parts of a page that are not what a reader came for (navigation, banners, share buttons, forms).
#
# Pages are untrusted, so everything here takes time linear in the page's size, however deeply it nests. That is why
# some functions return sets of element ids instead of asking each element for its ancestors.

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


def drop_furniture(soup: BeautifulSoup) -> None:
    """Remove what is never text, and the furniture, unless it holds the main part or most of the page."""
    _drop(soup, lambda tag: tag.name in NEVER_TEXT)
    sizes = text_sizes(soup)
    around_main = ancestors_of(soup, MAIN_PARTS)
    inside_main = _inside(soup, MAIN_PARTS)

    def unwanted(tag: Tag) -> bool:
        if not _is_furniture(tag) or (tag.name == "header" and id(tag) in inside_main):
            return False
        # Some sites put the whole page into one <form>, or give it a class such as "cookies-accepted".
        return id(tag) not in around_main and 2 * sizes[id(tag)] <= sizes[id(soup)]

    _drop(soup, unwanted)


def _drop(soup: BeautifulSoup, unwanted: Callable[[Tag], bool]) -> None:
    """Remove the unwanted elements after the walk: bs4 loses track of the neighbours of removed elements."""
    for tag in soup.find_all(unwanted):
        if not tag.decomposed:  # with one around it
            tag.decompose()


def text_sizes(soup: BeautifulSoup) -> Counter[int]:
    """Characters of text in each element, by its id()."""
    sizes: Counter[int] = Counter()
    for element in reversed(list(soup.descendants)):  # children before their parents
        size = len(element.strip()) if isinstance(element, NavigableString) else sizes[id(element)]
        if not isinstance(element, PreformattedString):  # comments and the like
            sizes[id(element.parent)] += size
    return sizes


def ancestors_of(root: Tag, names: tuple[str, ...]) -> set[int]:
    """The id() of every element that contains one of these."""
    ancestors: set[int] = set()
    for tag in root.find_all(names):
        for parent in tag.parents:
            if id(parent) in ancestors:
                break
            ancestors.add(id(parent))
    return ancestors


def _inside(root: Tag, names: tuple[str, ...]) -> set[int]:
    """The id() of every element that is one of these or inside one."""
    inside: set[int] = set()
    for tag in root.find_all(True):
        if tag.name in names or id(tag.parent) in inside:
            inside.add(id(tag))
    return inside


def _is_furniture(tag: Tag) -> bool:
    if tag.name in ("html", "body", *MAIN_PARTS, *HEADINGS):  # a heading's id is made from its words
        return False
    if tag.name in FURNITURE_TAGS or attribute(tag, "role") in FURNITURE_ROLES:
        return True
    if attribute(tag, "aria-hidden") == "true" or attribute(tag, "hidden", "no") in ("", "hidden", "true"):
        return True
    names = f"{attribute(tag, 'class')} {attribute(tag, 'id')}".split()
    return any(FURNITURE_NAME.fullmatch(_dashed(name)) for name in names)


def attribute(tag: Tag, name: str, default: str = "") -> str:
    value = tag.get(name) if tag.has_attr(name) else default
    return (value if isinstance(value, str) else " ".join(value or ())).strip()


def _dashed(name: str) -> str:
    """cookieBanner, cookie_banner and Cookie--Banner are all cookie-banner."""
    return re.sub(r"[^a-z0-9]+", "-", re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name[:100]).lower()).strip("-")


# Charsets

# Browsers read these charsets as their supersets, and pages rely on it.
SUPERSETS = {"iso8859-1": "cp1252", "ascii": "cp1252", "gb2312": "gb18030", "gbk": "gb18030"}
SUPERSETS |= {"shift_jis": "cp932", "euc_kr": "cp949"}
# Python's own codecs, not charsets of the web: they may decode to invalid text.
NOT_CHARSETS = {"unicode-escape", "raw-unicode-escape", "punycode", "idna", "utf-7", "undefined"}


def decode_html(body: bytes, charset: str | None) -> str:
    """Text of a page: as UTF-8 if valid, by the header, by <meta>, else as windows-1252.

    Valid UTF-8 comes before the declarations: they are wrong more often than other text is valid UTF-8 by chance.
    """
    meta = EncodingDetector.find_declared_encoding(body[:4096], is_html=True, search_entire_document=True)
    texts = (_decode(body, codec) for codec in ("utf-8-sig", _codec(charset or ""), _codec(meta or "")))
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
