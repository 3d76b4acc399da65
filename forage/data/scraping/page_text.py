"""The text of a web page, in blocks, without the site's furniture.

    bytes -> decode_html -> read_page -> drop_boilerplate (over the pages of one site)

Example: `<nav>Home</nav><h1>Asthma</h1><p>A <b>long-term</b> disease.</p><ul><li>Cough<li>Wheeze</ul>`
has the blocks "Asthma" (a heading), "A long-term disease.", "Cough" and "Wheeze".

trafilatura was measured against this: on the sample pages it keeps as much with favor_recall, and
is no faster; on odder pages (tests/data/scraping/test_page_text.py) it loses text between blocks and keeps banners.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from bs4 import BeautifulSoup, Tag
from bs4.element import NavigableString, PreformattedString

from forage.data.scraping.bodies import decode_html
from forage.data.scraping.furniture import HEADINGS, MAIN_PARTS, ancestors_of, attribute, drop_furniture, text_sizes

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
    by_site: dict[str, list[Page]] = {}
    for address, page in pages.items():
        by_site.setdefault(site_of(address), []).append(page)
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
