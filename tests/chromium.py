"""Chromium: a headless browser without a network, driven by the DevTools protocol over two pipes, by no library.

with Chromium.start("/usr/bin/chromium") as chromium:
    page = chromium.open(Path("run.html"))
    page.evaluate("document.title")
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass

PATIENCE = 120.0  # seconds for an answer
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
    "--no-first-run",
]
# A page that asks for any address is told that there is none.
FLAGS += ["--host-resolver-rules=MAP * ~NOTFOUND", "--disable-background-networking"]


def chromium_path():
    """Where Chromium is, if it is installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Chromium:
    """A browser process. It reads commands from its file descriptor 3 and answers on 4, each ended by a NUL."""

    def __init__(self, commands, answers):
        self._commands, self._answers = commands, answers
        self._number, self._unread = 0, b""
        self.events = []

    @classmethod
    @contextmanager
    def start(cls, path):
        theirs_in, commands = os.pipe()
        answers, theirs_out = os.pipe()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            script = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
            command = ["bash", "-c", script, "chromium", path, *FLAGS, f"--user-data-dir={profile}"]
            process = subprocess.Popen(command, pass_fds=(theirs_in, theirs_out), stderr=subprocess.DEVNULL)
            os.close(theirs_in)
            os.close(theirs_out)
            chromium = cls(commands, answers)
            try:
                yield chromium
                chromium.send("Browser.close")
                process.wait(PATIENCE)
            finally:
                process.kill()
                process.wait()
                os.close(commands)
                os.close(answers)

    def send(self, method, session="", **params):
        """Send a command and return its result; events that come before it are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._commands, data) :]
        until = time.monotonic() + PATIENCE
        while True:
            answer = self._read(until)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def _read(self, until):
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, until - time.monotonic()))
            part = os.read(self._answers, 1 << 20) if ready else b""
            if not part:
                raise RuntimeError("Chromium ended" if ready else f"Chromium gave no answer in {PATIENCE:g} s")
            self._unread += part
        message, self._unread = self._unread.split(b"\0", 1)
        return json.loads(message)

    def open(self, path, width=1280, height=900):
        """Open a file in a new tab, and wait until its script has drawn the list."""
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        page = Page(self, self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        for domain in ("Runtime", "Log", "Page", "Network"):
            page.send(f"{domain}.enable")
        page.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        page.send("Page.navigate", url=path.resolve().as_uri())
        page.wait("document.getElementById('count')?.textContent")
        return page


@dataclass
class Page:
    """A tab."""

    chromium: Chromium
    session: str

    def send(self, method, **params):
        return self.chromium.send(method, self.session, **params)

    def evaluate(self, script):
        """The value of an expression, or of the promise it gives."""
        done = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in done:
            raise RuntimeError(f"{script}: {done['exceptionDetails']}")
        return done["result"].get("value")

    def wait(self, script):
        until = time.monotonic() + PATIENCE
        while not self.evaluate(script):
            if time.monotonic() > until:
                raise RuntimeError(f"{script} did not become true in {PATIENCE:g} s")
            time.sleep(0.02)

    def said(self):
        """What the page wrote to the console, its exceptions, and the log's entries, since the browser started."""
        self.evaluate("0")  # what was said before has come by now
        names = {"Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"}
        return [event for event in self.chromium.events if event["method"] in names]

    def asked(self):
        """Addresses that were asked for."""
        self.evaluate("0")
        sent = [event for event in self.chromium.events if event["method"] == "Network.requestWillBeSent"]
        return [str(event["params"]["request"]["url"]) for event in sent]
