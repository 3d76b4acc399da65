"""Boilerplate of a host goes, what is only frequent stays."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from forage.data.scraping.boilerplate import drop_boilerplate, frequent, recurring_blocks
from forage.data.scraping.page_text import Block, Page
from forage.spool import Spool


def test_drop_boilerplate():
    def page(*lines: str) -> Page:
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
    left = drop_boilerplate(pages)
    assert list(left) == list(pages)
    assert left["http://a.test/1"] == page("one", "Rare note")
    assert left["http://a.test/3"] == page("three")
    assert left["http://a.test/5?print"] == page("same")  # under three addresses, yet one page
    assert left["http://b.test/1"] == page("one", "Call 911.")  # two pages prove nothing
    together = drop_boilerplate(pages, site_of=lambda url: "one host")
    assert together["http://b.test/1"] == page("one")


LETTERS = st.lists(st.sampled_from("abcdefgh"), max_size=6)


@given(st.lists(LETTERS, max_size=12))
def test_what_recurs_is_what_counting_everything_finds(lines):
    pages = [Page("T", tuple(map(Block, letters))) for letters in lines]
    distinct = {page.blocks for page in pages}
    counts = Counter(block for blocks in distinct for block in set(blocks))
    least = max(3, len(distinct) / 2)
    assert recurring_blocks(pages) == {block for block, count in counts.items() if count >= least}


@given(st.lists(st.sampled_from("abcdefgh"), max_size=60), st.integers(1, 5))
def test_the_frequent_are_among_the_few_that_are_held(letters, most):
    held = frequent(map(Block, letters), most)
    assert len(held) <= most
    assert {letter for letter, count in Counter(letters).items() if count > len(letters) / (most + 1)} <= {
        block.text for block in held
    }


def test_pages_in_a_file_have_the_same_boilerplate(tmp_path):
    pages = [Page("T", (Block("Call 911."), Block(f"page {n}"))) for n in range(5)]
    spool = Spool(tmp_path)
    for page in pages:
        spool.append(page)
    assert recurring_blocks(spool) == recurring_blocks(pages) == {Block("Call 911.")}
