"""Boilerplate of a host goes, what is only frequent stays."""

from urllib.parse import urlsplit

from forage.data.scraping.page_text import Block, Page, drop_boilerplate


def test_drop_boilerplate():
    def page(*lines):
        return Page("T", (Block("See also", is_heading=True), *map(Block, lines)))

    pages = {
        "http://a.test/1": page("one", "Call 911.", "Rare note"),
        "http://a.test/2": page("two", "Call 911.", "Rare note"),
        "http://a.test/3": page("three", "Call 911."),
        "http://a.test/4": page("four"),
        "http://a.test/5": page("same"),
        "http://a.test/5?print": page("same"),
        "http://a.test/5?mobile": page("same"),
        "http://b.test/1": page("one", "Call 911."),
        "http://b.test/2": page("two", "Call 911."),
    }
    left = drop_boilerplate(pages, lambda url: urlsplit(url).netloc)
    assert list(left) == list(pages)
    assert left["http://a.test/1"] == page("one", "Rare note")
    assert left["http://a.test/3"] == page("three")
    assert left["http://a.test/5?print"] == page("same")  # under three addresses, yet one page
    assert left["http://b.test/1"] == page("one", "Call 911.")  # two pages prove nothing
    together = drop_boilerplate(pages, site_of=lambda url: "one host")
    assert together["http://b.test/1"] == page("one")
