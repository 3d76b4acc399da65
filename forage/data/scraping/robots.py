"""robots.txt by RFC 9309: the longest matching rule counts, * and $ are wildcards, groups of one name are merged.

urllib.robotparser (Python 3.11) takes the first matching rule and knows no wildcards: it gets eight of the rules in
tests/data/scraping/test_robots.py wrong. protego matches without regular expressions, so no rule can make it hang.
"""

from __future__ import annotations

from dataclasses import dataclass

from protego import Protego


@dataclass(frozen=True)
class Robots:
    """What one site's robots.txt says to one robot. An empty text forbids nothing."""

    rules: Protego
    name: str

    @classmethod
    def parse(cls, text: str, user_agent: str) -> Robots:
        """`user_agent` is the whole header; rules are matched against the part before the slash."""
        return cls(Protego.parse(text), user_agent.split("/")[0].strip())

    def allows(self, url: str) -> bool:
        return self.rules.can_fetch(url, self.name)

    @property
    def crawl_delay(self) -> float:
        """Seconds between requests; 0 where none is given."""
        return self.rules.crawl_delay(self.name) or 0.0
