"""A real HTTP server on loopback that answers as an OpenAI-compatible one does, and keeps what it was asked."""

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from types import SimpleNamespace

from tests.ports import JSONHandler


@dataclass
class Chat:
    """`reply(prompt, number)` gives the text of a reply, or (status, body), or None: the server then never answers."""

    reply: object
    url: str = ""
    asked: list = field(default_factory=list)
    headers: list = field(default_factory=list)
    bodies: list = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)


def completion(text):
    return {"object": "chat.completion", "choices": [{"index": 0, "message": {"role": "assistant", "content": text}}]}


@contextmanager
def chat_server(reply):
    chat = Chat(reply)

    class Handler(JSONHandler):
        def do_POST(self):
            body = self.body()
            prompt = body["messages"][-1]["content"]
            with chat.lock:
                chat.asked.append(prompt)
                chat.headers.append(dict(self.headers))
                chat.bodies.append(SimpleNamespace(path=self.path, **body))
                number = len(chat.asked)
            answer = chat.reply(prompt, number)
            if answer is None:
                chat.closing.wait()
                return
            self.say(*(200, completion(answer)) if isinstance(answer, str) else answer)

        def do_GET(self):
            """Its models; the program of docs/serving.md asks for them."""
            self.say(200, {"object": "list", "data": [{"id": "m", "object": "model"}]})

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    chat.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield chat
    finally:
        chat.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()


def good_reply(prompt):
    """A question of a passage's own words whose answer is its last sentence: kept, where both are long enough."""
    text = " ".join(prompt.split())
    sentences = [part.strip() for part in text.split(". ")]
    asked = " ".join(sentences[0].split()[-9:])
    return json.dumps({"question": f"What is told beside {asked}?", "answer": sentences[-1]})
