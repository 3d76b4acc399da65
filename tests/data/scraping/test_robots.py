"""robots.txt by RFC 9309, rule by rule, by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forage.data.scraping.robots import Robots

ALL = "User-agent: *\n"
# (robots.txt, path, whether it may be fetched); the first eight are those urllib.robotparser of Python 3.11 gets wrong.
RULES = [
    (f"{ALL}Disallow: /\nAllow: /topics/", "/topics/gout", True),  # the longest rule counts, not the first
    (f"{ALL}Allow: /topics/\nDisallow: /topics/private", "/topics/private/1", False),
    (f"{ALL}Disallow: /page\nAllow: /page", "/page", True),  # of equally long ones, the one that allows
    (f"{ALL}Disallow: /*.pdf$", "/a/leaflet.pdf", False),
    (f"{ALL}Disallow: /*/print", "/gout/print", False),
    (f"{ALL}Disallow: /gout$", "/gout", False),
    (f"{ALL}Disallow: /a\n\nUser-agent: x\nDisallow: /\n\n{ALL}Disallow: /b", "/b", False),  # groups merge
    ("User-agent: Forager\nDisallow: /a\n\nUser-agent: forager\nDisallow: /b", "/b", False),
    (f"{ALL}Disallow: /*.pdf$", "/a/leaflet.pdf?page=1", True),
    (f"{ALL}Disallow: /gout$", "/gout/care", True),
    (f"{ALL}Disallow: /\n\nUser-agent: forager\nDisallow: /a", "/b", True),  # its own group alone counts
    (f"{ALL}Disallow: /caf%C3%A9", "/café", False),
    (f"{ALL}Disallow: /search?", "/search?q=x", False),
    ("", "/a", True),
]


@pytest.mark.parametrize(("text", "path", "allowed"), RULES)
def test_rules_by_hand(text, path, allowed):
    assert Robots.parse(text, "forager/0.1 (reads pages)").allows(f"http://a.test{path}") is allowed


def test_only_the_name_before_the_slash_is_matched():
    robots = Robots.parse("User-agent: pages\nDisallow: /", "forager/0.1 (reads pages)")
    assert robots.allows("http://a.test/")


def test_crawl_delays():
    for text, seconds in (("1.5", 1.5), ("2", 2), ("²", 0), ("soon", 0), ("-1", 0), ("inf", 0)):
        assert Robots.parse(f"{ALL}Crawl-delay: {text}", "forager/0.1").crawl_delay == seconds
    assert Robots.parse("", "forager/0.1").crawl_delay == 0


@given(st.text(alphabet="aA*$/:%é[]?# \n\t") | st.text())
def test_no_text_raises(text):
    robots = Robots.parse(f"{ALL}Disallow: {text}\nAllow: {text}\n{text}", "forager/0.1")
    robots.allows("http://a.test/a//[b]?c=%e9")
    assert robots.crawl_delay >= 0


def test_wildcards_take_no_time():
    rules = "".join(f"Disallow: /{'*a' * 20}{number}b\n" for number in range(2000))
    assert Robots.parse(ALL + rules, "forager/0.1").allows("http://a.test/" + "a" * 2000)
