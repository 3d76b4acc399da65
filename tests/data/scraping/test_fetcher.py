"""Retry-After, by seconds and by date."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

from hypothesis import given
from hypothesis import strategies as st

from forage.data.scraping.fetcher import _retry_after


@given(st.text(max_size=40))
def test_retry_after_takes_anything(value):
    assert _retry_after(value, value) < 1e12


def test_retry_after_by_seconds_and_by_date():
    assert _retry_after("120", "") == 120
    in_a_minute = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    assert 55 < _retry_after(in_a_minute, "") <= 60
    assert _retry_after("Thu, 01 Jan 1970 00:00:00 GMT", "") < 0
    assert _retry_after("", "") == _retry_after("soon", "") == 0


def test_a_date_is_compared_with_the_servers_own():
    """This machine's clock may be an hour off."""
    assert _retry_after("Thu, 01 Jan 1970 00:01:30 GMT", "Thu, 01 Jan 1970 00:01:00 GMT") == 30
