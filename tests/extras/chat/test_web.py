"""The chat's page in a real browser, and what its server answers to anybody."""

import asyncio
import json
import queue
import shutil
import subprocess
import threading

import httpx
import pytest

from forage.agent.agent import Agent, BatchedSearch
from forage.agent.options import AgentSettings
from forage.agent.protocol import Protocol, write_answer, write_call
from forage.agent.searcher import searching
from forage.extras.chat import web
from forage.extras.serving.server import body_of
from forage.store.document_store import DocumentStore
from forage.store.options import StoreOptions
from tests.ports import answering
from tests.scripted_engine import Scripted
from tests.tiny import make_tokenizer

EVIL = "<img src=x onerror=\"document.title='owned'\"> rest"
SETTINGS = AgentSettings(mode="sparse", k=2, max_turns=3)


class Telling(Scripted):
    """It tells each token as it comes, as LocalEngine does."""

    async def generate(self, request):
        sample = await super().generate(request)
        for token in sample.ids:
            request.on_token(token)
        return sample


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    documents = [{"id": "gout", "title": "Gout", "text": EVIL}, {"id": "flu", "title": "Flu", "text": "Fever."}]
    return DocumentStore.build(tmp_path_factory.mktemp("web") / "store", documents, StoreOptions(embedder="none"))


def app_of(store, say):
    protocol = Protocol.playing(make_tokenizer(), SETTINGS)
    search = BatchedSearch(searching(store, SETTINGS), in_line=True)
    return web.make_app(Agent(Telling(protocol, say), protocol, search, SETTINGS), 0)


def searches_then_answers(name, turn, text):
    return [write_call("rest for gout"), "no call", write_answer(EVIL)][turn]


def asked(url, body, **headers):
    return httpx.post(f"{url}/ask", content=json.dumps(body), headers=headers, timeout=60)


def test_each_event_of_an_episode(store):
    with answering(app_of(store, searches_then_answers)) as url:
        events = [json.loads(line) for line in asked(url, {"question": " What mends gout? "}).text.splitlines()]
        assert "Ask the library" in httpx.get(url).text
    told = [event["text"] for event in events if event.get("turn") == 0]
    assert told[-1] == write_call("rest for gout")
    assert all(told[-1].startswith(text) for text in told)
    assert len(told) > 5
    passage = {"figure": "1", "text": f"Gout: {EVIL}"}
    rest = [event for event in events if "turn" not in event]
    assert rest == [
        {"search": "rest for gout", "passages": [passage]},
        {"answer": EVIL, "passages": [passage | {"figure": "100%"}], "notes": []},
    ]


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        ({"question": " "}, {}, 400),
        (["gout"], {}, 400),
        ({"question": "gout"}, {"origin": "http://elsewhere.example"}, 403),
        ({"question": "gout"}, {"host": "elsewhere.example"}, 403),
    ],
)
def test_what_it_refuses(store, body, headers, status):
    with answering(app_of(store, searches_then_answers)) as url:
        assert asked(url, body, **headers).status_code == status
        assert httpx.get(f"{url}/else").status_code == 404


def test_a_browser_that_hangs_up_ends_the_episode(store):
    begun, ended = threading.Event(), threading.Event()

    class Endless(Telling):
        async def generate(self, request):
            request.on_token(50)
            begun.set()
            try:
                await asyncio.sleep(600)
            finally:
                ended.set()

    protocol = Protocol.playing(make_tokenizer(), SETTINGS)
    agent = Agent(Endless(protocol, None), protocol, BatchedSearch(searching(store, SETTINGS)), SETTINGS)
    with answering(web.make_app(agent, 0)) as url:
        with httpx.stream("POST", f"{url}/ask", json={"question": "gout"}) as reply:
            next(reply.iter_lines())
            assert begun.wait(30)
        assert ended.wait(30)


@pytest.mark.slow
def test_a_person_asks_in_a_browser(store, tmp_path, monkeypatch):
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("left out: no chromium here (apt-get install chromium)")
    driver = """
      input.value = "What mends gout?";
      form.requestSubmit();
      const waiting = setInterval(() => {
        if (!document.querySelector("article.done")) return;
        clearInterval(waiting);
        document.querySelector("details").open = true;
        const shown = [...document.querySelector("article").children].map((each) => [each.className, each.innerText]);
        fetch("found", { method: "POST", body: JSON.stringify([shown, document.images.length, document.title]) });
      }, 10);"""
    page = tmp_path / "page.js"
    page.write_text((web.HERE / "page.js").read_text() + driver)
    monkeypatch.setitem(web.PAGE, "/page.js", (page, web.PAGE["/page.js"][1]))
    app, found = app_of(store, searches_then_answers), queue.Queue()

    async def listens(scope, receive, send):
        if scope["path"] == "/found":
            found.put(json.loads(await body_of(scope, receive)))
        await app(scope, receive, send)

    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", f"--user-data-dir={tmp_path}"]
    with answering(listens) as url, subprocess.Popen([chromium, *flags, url], stderr=subprocess.DEVNULL) as browser:
        try:
            shown, images, title = found.get(timeout=120)
        finally:
            browser.kill()
    assert (images, title) == (0, "Ask the library")
    assert shown == [
        ["", "What mends gout?"],
        ["turn", write_call("rest for gout")],
        ["did", "searched for: rest for gout"],
        ["", f"1 Gout: {EVIL}"],
        ["turn", "no call"],
        ["turn", write_answer(EVIL)],
        ["answer", EVIL],
        ["did", "share of the answer's words in a passage (even all of them don't make it right)"],
        ["", f"100% Gout: {EVIL}"],
    ]
