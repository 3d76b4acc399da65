"""Scraping against a real server that misbehaves: exact causes, resuming after a kill, politeness, addresses."""

import json
import socket
import tracemalloc
from collections import defaultdict
from copy import copy
from dataclasses import replace
from itertools import pairwise
from urllib.parse import urlsplit

import anyio
import pytest

from forage.data.scraping import fetcher
from forage.data.scraping.fetcher import Fetcher, scrape
from forage.data.scraping.hosts import host_of
from forage.data.scraping.options import ScrapeOptions
from forage.data.scraping.page_text import read_page
from tests.misbehaving_server import MisbehavingServer
from tests.refusals import refused

QUICK = {"delay": 0, "retries": 2, "timeout": 0.5, "max_bytes": 200_000}


@pytest.fixture
def server():
    with MisbehavingServer() as running:
        yield running


@pytest.fixture(autouse=True)
def no_name_server(monkeypatch):
    """No name is looked up outside: numbers pass, localhost is loopback, all else does not exist."""
    real = socket.getaddrinfo

    def getaddrinfo(host, port, *args, **options):
        if host == "localhost":
            host = "127.0.0.1"
        elif not set(host) <= set("0123456789abcdefx.:"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real(host, port, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """Only what never ends is timed out soon: on a slow machine, any other request may take seconds."""
    monkeypatch.setattr(fetcher, "MAX_WAIT", 0.05)
    real = Fetcher._request

    async def request(self, url, read):
        if url.path not in ("/silent", "/drip"):
            self = copy(self)
            self.options = replace(self.options, timeout=60)
        return await real(self, url, read)

    monkeypatch.setattr(Fetcher, "_request", request)


@pytest.fixture
def starts(monkeypatch):
    """When each host's requests started, by the clock that delays are kept by; the server may see them late."""
    found, real = defaultdict(list), Fetcher._exchange

    async def exchange(self, host, url, address, port, read):
        found[host_of(url)].append(host.next_start - host.delay)
        return await real(self, host, url, address, port, read)

    monkeypatch.setattr(Fetcher, "_exchange", exchange)
    return found


@pytest.fixture
def closed_port():
    """A port that refuses connections for as long as the test runs: bound, not listened on."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield unused.getsockname()[1]


def options_for(urls, server, **changes):
    """Options that send the .test hosts of the URLs to the server."""
    hosts = {host for url in urls if (host := urlsplit(url).hostname or "").endswith(".test")}
    host, _, port = server.address.partition(":")
    resolve = dict.fromkeys(hosts, (host, int(port))) | changes.pop("resolve", {})
    return ScrapeOptions(**{**QUICK, **changes, "resolve": resolve})


def manifest(folder):
    return [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()]


def without_times(folder):
    return [{name: value for name, value in row.items() if name != "time"} for row in manifest(folder)]


def pages(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.glob("*/*")}


def redirect(target):
    return f"http://redirecting.test/redirect/{target.encode('latin-1').hex()}"


EXPECTED = {
    # what is fine in the end
    "http://good.test/good/1": "ok",
    "http://good.test/good/2#fragment": "ok",
    "http://GOOD.test:80/good/3?x=ä": "ok",
    "http://plain.test/plain-text": "ok",
    "http://untyped.test/no-type": "not_html",
    "http://moved.test/moved": "ok",
    "http://flaky.test/flaky": "ok",
    "http://busy.test/busy": "ok",
    "http://says-utf8.test/says-utf8": "ok",
    "http://says-latin1.test/says-latin1": "ok",
    "http://gzip.test/gzip": "ok",
    "http://forbidding.test/good/1": "ok",
    # statuses
    "http://status.test/status/404": "not_found",
    "http://status.test/status/410": "not_found",
    "http://status.test/status/403": "client_error",
    "http://status.test/status/206": "bad_status",
    "http://status.test/status/301": "bad_status",
    "http://status-429.test/status/429": "rate_limited",
    "http://status-503.test/status/503": "server_error",
    # connections
    "http://silent.test/silent": "timeout",
    "http://drip.test/drip": "timeout",
    "http://reset.test/reset": "broken_connection",
    "http://garbage.test/garbage": "broken_connection",
    "http://truncated.test/truncated": "truncated",
    "http://cut-gzip.test/cut-gzip": "truncated",
    "http://closed.test/good/1": "connect",
    "https://no-tls.test/good/1": "connect",
    "http://nowhere.invalid/1": "dns",
    "http://nowhere.invalid/2": "dns",
    "http://nowhere.invalid/3": "host_unreachable",
    "http://nowhere.invalid/4": "host_unreachable",
    # bodies
    "http://endless.test/endless": "too_large",
    "http://bomb.test/bomb": "too_large",
    "http://empty.test/empty": "empty",
    "http://empty.test/script-only": "empty",
    "http://pdf.test/pdf": "not_html",
    "http://pdf.test/pdf-as-html": "not_html",
    "http://pdf.test/untyped-bytes": "not_html",
    "http://not-gzip.test/not-gzip": "bad_encoding",
    "http://brotli.test/brotli": "bad_encoding",
    # robots.txt
    "http://forbidding.test/good/private": "robots",
    redirect("http://forbidding.test/good/private"): "robots",
    "http://robots-503.test/good/1": "robots_unavailable",
    "http://robots-odd.test/good/1": "ok",  # a rule that makes urllib.robotparser fail
    # redirects
    "http://loop.test/loop-a": "redirect_loop",
    "http://ever-on.test/ever-on/1": "too_many_redirects",
    redirect("ftp://good.test/"): "bad_scheme",
    redirect("file:///etc/passwd"): "bad_scheme",
    redirect("http://["): "bad_url",
    redirect("http://xn--a/"): "dns",
    redirect("http://user:secret@good.test/"): "bad_url",
    redirect("http://10.0.0.1/"): "private_address",
    redirect("http://169.254.169.254/latest/meta-data"): "private_address",
    # schemes and addresses; PORT is the server's
    "ftp://good.test/x": "bad_scheme",
    "file:///etc/passwd": "bad_scheme",
    "javascript:alert(1)": "bad_scheme",
    "mailto:a@good.test": "bad_scheme",
    "http://127.0.0.1:PORT/good/secret": "private_address",
    "http://localhost:PORT/good/secret": "private_address",
    "http://2130706433:PORT/good/secret": "private_address",
    "http://0x7f000001:PORT/good/secret": "private_address",
    "http://0:PORT/good/secret": "private_address",
    "http://[::1]:PORT/good/secret": "private_address",
    "http://[::ffff:127.0.0.1]:PORT/good/secret": "private_address",
    "http://user:secret@good.test/": "bad_url",
    "http://good.test:99999/": "bad_url",
    "http://exa mple.test/": "bad_url",
    f"http://{'a' * 70}.test/": "bad_url",
    "http://\ud800.test/": "bad_url",
    "http://": "bad_url",
    "asthma": "bad_url",
    "": "bad_url",
}


def test_every_misbehaviour_has_its_cause(server, closed_port, tmp_path, monkeypatch):
    monkeypatch.setattr(fetcher, "MAX_WAIT", 1.0)
    monkeypatch.setattr(fetcher, "UNREACHABLE_AFTER", 3)
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{closed_port}")  # the environment must not matter
    server.robots = {
        "forbidding.test": "User-agent: forage\nDisallow: /good/private",
        "robots-503.test": "503",
        "robots-odd.test": "User-agent: *\nDisallow: //[",
    }
    port = server.address.partition(":")[2]
    expected = {url.replace("PORT", port): cause for url, cause in EXPECTED.items()}
    options = options_for(
        expected,
        server,
        resolve={"closed.test": ("127.0.0.1", closed_port)},
    )
    seen = []
    records = scrape([*expected, *expected], tmp_path, options, on_page=seen.append)

    assert {url: record.cause for url, record in records.items()} == expected
    assert list(records) == list(expected)
    assert len(seen) == len(expected)
    assert len(pages(tmp_path)) == list(expected.values()).count("ok")
    assert server.log.count("/good/secret") == 0
    assert server.log.count("/good/private") == 0
    assert server.log.count("/status/503") == server.log.count("/silent") == 3
    assert server.log.count("/status/404") == 1

    def title(url):
        body = (tmp_path / str(records[url].path)).read_bytes()
        assert len(body) == records[url].bytes
        return read_page(body, records[url].charset).title

    assert title("http://says-utf8.test/says-utf8") == title("http://says-latin1.test/says-latin1") == "Sjögren"
    assert title("http://gzip.test/gzip") == "Gzip"


def test_a_gzip_bomb_takes_little_memory(server, tmp_path):
    url = "http://bomb.test/bomb"
    options = options_for([url], server, max_bytes=5 * 2**20)
    tracemalloc.start()
    record = scrape([url], tmp_path, options)[url]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert record.cause == "too_large"
    assert peak < 40 * 2**20  # the server's own megabyte and its copies among it


# Resuming


def mixed_urls(count):
    kinds = ("good/{}", "good/{}", "good/{}", "status/404?{}", "pdf/{}")
    return [f"http://host{n % 2}.test/{kinds[n % 5].format(n)}" for n in range(count)]


def test_skip_existing_asks_again_only_for_what_may_have_changed(server, tmp_path):
    good = [f"http://a.test/good/{n}" for n in range(4)]
    urls = [*good, "http://a.test/status/404", "http://a.test/status/503", "http://a.test/silent"]
    options = options_for(urls, server, retries=0)
    first = scrape(urls, tmp_path, options)
    kept_row = {**manifest(tmp_path)[0], "url": "http://other.test/"}
    with (tmp_path / "manifest.jsonl").open("a") as file:
        file.write(json.dumps(kept_row) + "\n" + json.dumps({**kept_row, "status": 203}) + "\n")
    (tmp_path / str(first[good[1]].path)).unlink()
    (tmp_path / str(first[good[2]].path)).write_bytes(b"half a pa")
    server.log.clear()

    seen = []
    second = scrape(urls, tmp_path, options, on_page=seen.append)
    asked = sorted(seen.path for seen in server.log.requests)
    assert asked == ["/good/1", "/good/2", "/robots.txt", "/silent", "/status/503"]
    assert {url: record.cause for url, record in second.items()} == {url: first[url].cause for url in urls}
    assert len(seen) == len(urls)
    assert [row["url"] for row in manifest(tmp_path)] == ["http://other.test/", *urls]
    assert manifest(tmp_path)[0]["status"] == 203

    server.log.clear()
    scrape(good, tmp_path, options, skip_existing=False)
    assert sum(seen.path.startswith("/good/") for seen in server.log.requests) == 4


def test_a_torn_last_row_is_cut_and_a_broken_one_named(server, tmp_path):
    urls = mixed_urls(4)
    options = options_for(urls, server)
    scrape(urls, tmp_path, options)
    whole = without_times(tmp_path)
    rows = tmp_path / "manifest.jsonl"
    rows.write_bytes(rows.read_bytes()[:-40])
    (tmp_path / ".manifest.jsonl.1.forage").write_text("left by a kill")
    scrape(urls, tmp_path, options)
    assert without_times(tmp_path) == whole
    assert not list(tmp_path.glob("**/*.forage"))

    rows.write_text('{"url": "http://a.test/"}\n')
    with refused(r"manifest.jsonl:1: not a manifest row"):
        scrape(urls, tmp_path, options)


# Politeness


def gaps(times):
    return [later - earlier for earlier, later in pairwise(times)]


def test_delay_and_connections_per_host_are_kept(server, starts, tmp_path):
    server.answer_after = 0.75  # after the first pages of both hosts are open, in which time a third one might start
    server.until = lambda log: log.peak[""] >= 4
    urls = [f"http://{host}.test/good/{n}" for n in range(8) for host in ("a", "b")]
    scrape(urls, tmp_path, options_for(urls, server, delay=0.3, per_host=2))
    for host in ("a.test", "b.test"):
        assert server.log.peak[host] == 2
        assert server.log.asked(host) == len(starts[host]) == 9  # with robots.txt
        assert min(gaps(starts[host])) > 0.299
    assert server.log.peak[""] == 4  # both hosts at once


def test_crawl_delay_and_retry_after_hold_the_whole_host(server, starts, tmp_path, monkeypatch):
    monkeypatch.setattr(fetcher, "MAX_WAIT", 2)
    server.robots["slow.test"] = "User-agent: *\nCrawl-delay: 3"
    slow, busy = "http://slow.test/good/1", [f"http://busy.test/{path}" for path in ("busy", "good/1", "good/2")]
    urls = [slow, *busy]
    records = scrape(urls, tmp_path, options_for(urls, server, per_host=1))
    assert {record.cause for record in records.values()} == {"ok"}
    assert gaps(starts["slow.test"])[0] > 1.99  # the Crawl-delay of 3 s, bounded by MAX_WAIT
    _robots, first, *rest = starts["busy.test"]
    assert min(rest) - first > 1.99  # so is the Retry-After of 3 s


# Addresses


def answers_of(*addresses):
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 80)) for address in addresses]


@pytest.fixture
def connections(server, monkeypatch):
    """The addresses that were connected to; the connections themselves go to the server."""
    made = []
    real = anyio.connect_tcp

    async def connect_tcp(remote_host, remote_port, **options):
        made.append(remote_host)
        return await real("127.0.0.1", server.server_address[1], **options)

    monkeypatch.setattr(anyio, "connect_tcp", connect_tcp)
    return made


def test_a_name_that_changes_its_address_is_not_followed(connections, tmp_path, monkeypatch):
    lookups = iter([answers_of("93.184.216.34")] + [answers_of("127.0.0.1")] * 9)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: next(lookups))
    url = "http://rebinding.example/good/1"
    assert scrape([url], tmp_path, ScrapeOptions(**QUICK))[url].cause == "ok"
    assert connections == ["93.184.216.34"] * 2  # robots.txt and the page


def test_one_private_address_among_public_ones_is_enough(connections, tmp_path, monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **options: answers_of("93.184.216.34", "10.0.0.1"))
    url = "http://two-faced.example/good/1"
    assert scrape([url], tmp_path, ScrapeOptions(**QUICK))[url].cause == "private_address"
    assert connections == []
