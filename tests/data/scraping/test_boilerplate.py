"""Boilerplate of a host goes, what is only frequent stays."""

from urllib.parse import urlsplit

import pytest

from forage.data.scraping.page_text import Block, Page, drop_boilerplate


def test_drop_boilerplate():
    def page(*lines):
        return Page("T", (Block("See also", is_heading=True), *map(Block, lines)))

    pages = {
        "http://a.test/1": page("one", "Call 911.", "Rare note"),
        "http://a.test/2": page("two", "Call 911.", "Rare note"),
        "http://a.test/3": page("three", "Call 911."),
        "http://a.test/4": page("four", "Call 911."),
        "http://a.test/5": page("same", "Call 911."),
        "http://a.test/5?print": page("same", "Call 911."),
        "http://a.test/5?mobile": page("same", "Call 911."),
        "http://b.test/1": page("one", "Call 911."),
        "http://b.test/2": page("two", "Call 911."),
    }
    left, dropped = drop_boilerplate(pages, lambda url: urlsplit(url).netloc)
    assert dropped == {"Call 911.": 7}
    assert list(left) == list(pages)
    assert left["http://a.test/1"] == page("one", "Rare note")
    assert left["http://a.test/3"] == page("three")
    assert left["http://a.test/5?print"] == page("same")  # under three addresses, yet one page
    assert left["http://b.test/1"] == page("one", "Call 911.")  # two pages prove nothing
    together, _ = drop_boilerplate(pages, site_of=lambda url: "one host")
    assert together["http://b.test/1"] == page("one")


@pytest.mark.parametrize(
    ("number", "having", "goes"),
    [
        (13, 3, False), (13, 9, False), (13, 10, True), (13, 13, True),  # a warning on a few pages is content
        (4, 4, False), (5, 4, False), (5, 5, True), (10, 9, False), (100, 49, False), (100, 50, True),
    ],
)  # fmt: skip
def test_on_how_many_pages_a_paragraph_is_boilerplate(number, having, goes):
    pages = {f"{n}": Page("", (Block(f"Page {n}."), *[Block("Unplug it.")] * (n < having))) for n in range(number)}
    left, dropped = drop_boilerplate(pages, lambda name: "one folder")
    assert (Block("Unplug it.") not in left["0"].blocks) == goes
    assert dropped == ({"Unplug it.": having} if goes else {})
