"""Furniture: the parts of a page that are not what a reader came for (navigation, banners, share buttons, forms).

Pages are untrusted, so everything here takes time linear in the page's size, however deeply it nests. That is why some
functions return sets of element ids instead of asking each element for its ancestors.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

from bs4 import BeautifulSoup, Tag
from bs4.element import NavigableString, PreformattedString

HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
MAIN_PARTS = ("main", "article")
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
