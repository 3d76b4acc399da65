"""Causes: how fetching a URL ended, in one word, and which failures are worth another try.

A manifest row's `cause` is 'ok', or why there is no page. Permanent causes are not retried by the next run:

    bad_url             not an absolute URL, or one with an impossible host or port, or with a user name
    bad_scheme          neither http nor https, also after a redirect
    private_address     the host, also after a redirect, is not on the internet
    robots              robots.txt forbids it
    not_found           404, 410
    client_error        another 4xx
    bad_status          a status that is no error and brings no page (206, 304, a redirect to nowhere)
    redirect_loop       a redirect back to a URL already visited
    too_many_redirects  more than MAX_REDIRECTS
    not_html            no content type of pages by its header, or PDF by its first bytes
    too_large           over max_bytes
    bad_encoding        a Content-Encoding other than gzip, or broken compressed data
    empty               no text in the page

Transient causes are retried by the next run; those marked * also up to `retries` times in the same run:

    rate_limited *        429 (and 408, 425)
    server_error *        5xx
    timeout *             connected, but no answer in time, or an answer that doesn't end
    broken_connection *   reset, closed, or not HTTP
    truncated *           the body ended before its announced length, or in the middle of its compression
    robots_unavailable *  robots.txt could not be fetched (5xx, 429, timeout ...), which forbids for now (RFC 9309)
    dns *                 the host's name has no address
    connect *             no connection: refused, unreachable, timed out, or not encrypted as https asks
    host_unreachable      not tried: UNREACHABLE_AFTER dns, connect or robots.txt failures came in a row
"""

from __future__ import annotations

RETRIED = {"rate_limited", "server_error", "timeout", "broken_connection", "truncated", "robots_unavailable"}
RETRIED |= {"dns", "connect"}
TRANSIENT = RETRIED | {"host_unreachable"}
HOST_FAILURES = {"dns", "connect"}


class Unfetchable(Exception):
    """Why a page could not be fetched: a cause, and what is known about the response."""

    def __init__(self, cause: str, detail: str, status: int | None = None, size: int = 0) -> None:
        super().__init__(cause, detail)
        self.cause = cause
        self.detail = detail
        self.status = status
        self.size = size


def cause_of_status(status: int) -> str | None:
    """Why a response with this status is not a page; None if it is one."""
    if status in (200, 203):
        return None
    if status in (404, 410):
        return "not_found"
    if status in (408, 425, 429):
        return "rate_limited"
    if 400 <= status < 500:
        return "client_error"
    return "server_error" if 500 <= status < 600 else "bad_status"
