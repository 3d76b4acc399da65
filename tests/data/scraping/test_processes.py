"""Scraping by several processes: what one gives, with the same politeness, and nothing lost when any of them dies."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise

import pytest

from forage.data.scraping import processes
from forage.data.scraping.options import ScrapeOptions
from forage.data.scraping.processes import share_out, site_of
from forage.data.scraping.scraper import scrape
from forage.errors import UserError
from tests import ROOT
from tests.misbehaving_server import MisbehavingServer

QUICK = {"delay": 0, "retries": 0, "timeout": 60.0, "page_timeout": 120.0}
KINDS = ("good/{}", "good/{}", "plain-text/{}", "status/404?{}", "pdf/{}")
URLS = [f"http://www.site{n % 4}.test/{KINDS[n % 5].format(n)}" for n in range(40)]


@pytest.fixture
def server():
    with MisbehavingServer() as running:
        yield running


@pytest.fixture
def started(monkeypatch):
    """The processes that were started."""
    found, real = [], processes._started

    def noted(share):
        connection, process = real(share)
        found.append(process)
        return connection, process

    monkeypatch.setattr(processes, "_started", noted)
    return found


def options_for(server, **changes):
    resolve = {f"www.site{n}.test": server.address for n in range(4)}
    return ScrapeOptions(**{**QUICK, **changes, "resolve": resolve})


def found_in(folder):
    """The manifest without its times, and the pages."""
    rows = [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()]
    rows = [{name: value for name, value in row.items() if name != "time"} for row in rows]
    return rows, {file.name: file.read_bytes() for file in folder.glob("*/*")}


def test_the_pages_of_a_site_are_one_processs():
    urls = ["http://a.org/1", "http://a.org/2", "http://b.org/1", "http://a.org/3", "http://www.b.org/2", "no url"]
    a, b = ["http://a.org/1", "http://a.org/2", "http://a.org/3"], ["http://b.org/1", "http://www.b.org/2"]
    assert share_out(urls, 2) == [a, [*b, "no url"]]
    assert share_out(urls, 9) == [a, b, ["no url"]]
    assert share_out([], 2) == []


@pytest.mark.parametrize(
    ("host", "site"),
    [("www.x.org", "x.org"), ("X", "X"), ("10.0.0.1", "10.0.0.1"), ("2001:db8::1", "2001:db8::1"), ("", "")],
)
def test_the_site_of_a_host(host, site):
    assert site_of(host) == site


def test_several_processes_give_what_one_gives(server, started, tmp_path):
    seen = []
    one = scrape(URLS, tmp_path / "one", options_for(server))
    three = scrape(URLS, tmp_path / "three", options_for(server, scrape_processes=3), on_page=seen.append)
    assert len(started) == 3
    assert [process.returncode for process in started] == [0, 0, 0]
    assert list(three) == list(one)
    assert sorted(record.url for record in seen) == sorted(URLS)
    assert found_in(tmp_path / "three") == found_in(tmp_path / "one")
    server.log.clear()
    scrape(URLS, tmp_path / "three", options_for(server, scrape_processes=3))
    assert not server.log.requests


def test_there_are_no_more_processes_than_sites_or_pages_at_a_time(server, started, tmp_path):
    scrape(URLS[:2], tmp_path, options_for(server, scrape_processes=9))
    assert len(started) == 2
    server.answer_after = 0.05
    scrape(URLS, tmp_path, options_for(server, scrape_processes=9, batch_size=3))
    assert len(started) == 5
    assert server.log.peak[""] <= 3  # three processes of three pages would ask for nine


def test_politeness_to_a_host_is_that_of_one_process(server, tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "PROGRAM", "tests.noted_scraping")
    monkeypatch.setenv("STARTS", str(tmp_path / "starts"))
    server.robots["www.site1.test"] = "User-agent: *\nDisallow: /good"
    server.answer_after = 0.4
    server.until = lambda log: log.peak["www.site0.test"] >= 2
    urls = [f"http://www.site{n % 2}.test/good/{n}" for n in range(8)]
    records = scrape(urls, tmp_path / "pages", options_for(server, scrape_processes=2, delay=0.3, per_host=2))
    assert [record.cause for record in records.values()] == ["ok", "robots"] * 4
    noted = [line.split() for line in (tmp_path / "starts").read_text().splitlines()]
    starts = sorted(float(seconds) for host, seconds in noted if host == "www.site0.test")
    assert len(starts) == server.log.asked("www.site0.test") == 5  # with robots.txt
    assert min(later - earlier for earlier, later in pairwise(starts)) > 0.299
    assert server.log.peak["www.site0.test"] == 2
    assert server.log.asked("www.site1.test") == 1


def test_a_killed_process_is_told_and_loses_nothing(server, started, tmp_path):
    scrape(URLS, tmp_path / "undisturbed", options_for(server))
    server.log.clear()
    server.tickets = threading.Semaphore(16)  # so neither process is done before one is killed
    done = []

    def kill_one(record):
        done.append(record.url)
        if len(done) == 12:
            started[0].kill()

    options = options_for(server, scrape_processes=2, delay=0.02)
    with pytest.raises(UserError, match=r"^a process that was scraping ended by SIGKILL; re-run the same"):
        scrape(URLS, tmp_path / "killed", options, on_page=kill_one)
    assert all(process.poll() is not None for process in started)
    assert 12 <= len(done) < len(URLS)
    assert {row["url"] for row in found_in(tmp_path / "killed")[0]} == set(done)
    server.tickets.release(1000)
    scrape(URLS, tmp_path / "killed", options)
    assert found_in(tmp_path / "killed") == found_in(tmp_path / "undisturbed")
    for url in done:
        assert server.log.count(url.split(".test")[1]) == 1


def test_an_error_of_a_process_is_one_line_here(server, started, tmp_path, capfd):
    (tmp_path / hashlib.sha256(URLS[0].encode()).hexdigest()[:2]).write_text("in the way")
    with pytest.raises(UserError, match=r"^\S+: File exists; make room there or choose another --content-dir"):
        scrape(URLS, tmp_path, options_for(server, scrape_processes=2))
    assert all(process.poll() is not None for process in started)
    assert capfd.readouterr().err == ""


def children_of(pid):
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(word) for word in listed.stdout.split()]


def wait_for(condition, process=None):
    deadline = time.monotonic() + 200
    while not condition():
        assert process is None or process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_gone(pid):
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return not os.path.exists(f"/proc/{pid}")


@pytest.mark.slow
def test_when_the_one_that_started_them_is_killed_all_end_and_the_next_run_goes_on(server, tmp_path):
    scrape(URLS, tmp_path / "undisturbed", options_for(server))
    killed = tmp_path / "killed"
    command = [sys.executable, str(ROOT / "tests/scrape_worker.py"), str(killed), server.address, "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def start():
        return subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)

    server.tickets = threading.Semaphore(20)  # so they are not done before they are killed
    worker = start()
    worker.stdin.write("\n".join(URLS).encode())
    worker.stdin.close()
    rows = killed / "manifest.jsonl"
    wait_for(lambda: rows.exists() and rows.read_bytes().count(b"\n") > 10, worker)
    children = children_of(worker.pid)
    assert len(children) == 2
    worker.kill()
    worker.wait()
    wait_for(lambda: all(map(is_gone, children)))
    server.tickets.release(1000)

    again = start()
    again.communicate("\n".join(URLS).encode(), timeout=200)
    assert again.returncode == 0
    assert found_in(killed) == found_in(tmp_path / "undisturbed")


@pytest.mark.slow
def test_ctrl_c_ends_all_with_one_line(server, tmp_path):
    rows = [{"question": f"Question {n}?", "answer": f"Answer {n}.", "url": url} for n, url in enumerate(URLS)]
    (tmp_path / "qa.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    command = [sys.executable, "data_prep.py", "--dataset-name", tmp_path / "qa.jsonl", "--embedder", "none"]
    command += ["--output-dir", tmp_path / "data", "--content-dir", tmp_path / "pages", "--scrape-processes", "2"]
    command += ["--resolve", *(word for n in range(4) for word in (f"www.site{n}.test", server.address))]
    server.tickets = threading.Semaphore(20)  # so they are not done before they are stopped
    script = subprocess.Popen(
        list(map(str, command)), cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    manifest = tmp_path / "pages" / "manifest.jsonl"
    wait_for(lambda: manifest.exists() and manifest.read_bytes(), script)
    children = children_of(script.pid)
    assert len(children) == 2
    os.killpg(script.pid, signal.SIGINT)  # as a terminal sends it
    _, said = script.communicate(timeout=200)
    assert (script.returncode, said) == (130, "stopped; re-run the same command to resume\n")
    wait_for(lambda: all(map(is_gone, children)))
