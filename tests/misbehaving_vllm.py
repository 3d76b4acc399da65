"""A real HTTP server on loopback that answers as vLLM does, or fails and lies in the ways it is told to."""

import asyncio
import math
import select
import threading
import time
from http.server import ThreadingHTTPServer

from forage.engines.base import EngineOptions, Request, Sample, Sampling
from forage.engines.vllm import VLLMEngine
from tests.ports import JSONHandler, free_port

REQUEST = Request((1, 2, 3), 4, (2,), seed=7, sampling=Sampling(0.5), episode="q/0")
RIGHT = Sample((5, 2), (-0.5, -0.25), "stop")  # what a server that is not told otherwise says

LOGITS = {"token_id:7": 3.0, "token_id:5": 2.0, "token_id:2": 1.0, "token_id:9": 0.0, "token_id:1": -2.0}
NOT_FOUND = 404, {"detail": "Not Found"}
HTML = b"<html><body>Welcome to the proxy</body></html>"


def listed(mode, temperature):
    """The likeliest tokens and what a server says of them; there are no others."""
    scaled = {token: logit / (1 if mode.startswith("raw") else temperature) for token, logit in LOGITS.items()}
    total = 0 if mode.endswith("logits") else math.log(sum(map(math.exp, scaled.values())))
    return {token: logit - total for token, logit in scaled.items()}


class Listener(ThreadingHTTPServer):
    request_queue_size = 64  # the default of 5 overflows in a burst of 40 on a busy machine

    def handle_error(self, request, client_address):
        """Clients that leave in the middle are what is tested."""


class Handler(JSONHandler):
    """Sends what the server's fake says to a request: a status with a value, or one of the ways not to answer."""

    def do_GET(self):
        self.say(*self.server.fake.get(self.path))

    def do_POST(self):
        said = self.server.fake.post(self.path, self.body())
        if isinstance(said, str):
            getattr(self, said)()
        else:
            self.say(*said)

    def cut(self):
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b'{"choices"')
        self.wfile.flush()

    def hang(self):
        select.select([self.connection], [], [], 60)

    def drip(self):
        self.send_response(200)
        self.end_headers()
        while True:  # ends by the error of writing to a client that has left
            self.wfile.write(b" ")
            time.sleep(0.02)

    def html(self):
        self.say(200, HTML)


class MisbehavingVLLM:
    """`plan` holds what the next completions do, after which all succeed: a status, or one of

    cut (half a body), hang (nothing until the client leaves), drip (a byte at a time, for ever), html (a proxy's page),
    or a dictionary of changes to the choice. `says` makes a completion's choice otherwise, from the body.

    `sleep_mode` is True with --enable-sleep-mode and VLLM_SERVER_DEV_MODE=1, False with the latter alone (then it says
    that it sleeps and frees nothing, as the real server does), None without both. `turns` lists what happened in turn.
    Loading an adapter while it sleeps ends a real server, so here it does too.
    """

    def __init__(self):
        self.adapters, self.plan, self.bodies, self.probes, self.base = [], [], [], [], "policy"
        self.raced = self.refused = self.ignores_adapters = False
        self.folders, self.card = {}, {"root": "", "max_model_len": 4096}
        self.busy, self.loading, self.mode = 0, [], "processed_logprobs"
        self.says = lambda body: {}
        self.sleep_mode, self.asleep, self.turns = None, False, []
        self.spoilt_base = False  # its memory is not what it was before it slept
        self.port = free_port()  # which stays its own when it is stopped and started
        self.start()

    def get(self, path):
        if self.busy:
            self.busy -= 1
            return 503, {"error": "starting"}
        if path == "/is_sleeping" and self.sleep_mode is not None:
            return 200, {"is_sleeping": self.asleep}
        if path.startswith("/server_info") and self.sleep_mode is not None:
            return 200, {"vllm_config": {"model_config": {"enable_sleep_mode": self.sleep_mode}}}
        if path == "/health":
            return 200, ""
        if path != "/v1/models":
            return NOT_FOUND
        base = {"id": self.base, "parent": None, **self.card}
        return 200, {"data": [base, *({"id": adapter, "parent": self.base} for adapter in self.adapters)]}

    def post(self, path, body):
        if path.startswith(("/sleep", "/wake_up")):
            return self.turn(path)
        if path == "/v1/load_lora_adapter":
            return self.load(**body)
        if path == "/v1/unload_lora_adapter":
            self.adapters.remove(body["lora_name"])
            self.turns.append("unload")
            return 200, "ok"
        if body["logprobs"]:
            self.probes.append(body)
            return self.complete(body, {"logprobs": {"top_logprobs": [listed(self.mode, body["temperature"])]}})
        if body["prompt"][0] == 11:  # the comparison of an adapter with the base
            odd = not self.ignores_adapters and body["model"] != self.base
            odd += self.spoilt_base / 16
            changes = {"token_ids": [5] * 8, "finish_reason": "length"}
            return self.complete(body, changes | {"logprobs": {"token_logprobs": [-0.1 - odd] * 8}})
        self.bodies.append(body)
        self.turns.append("completion")
        plan = self.plan.pop(0) if self.plan else {}
        if isinstance(plan, dict):
            return self.complete(body, plan)
        return (plan, {"error": {"message": f"status\n{plan}"}}) if isinstance(plan, int) else plan

    def turn(self, path):
        if self.sleep_mode is None:
            return NOT_FOUND
        self.turns.append(path)
        self.asleep = path != "/wake_up"
        return 200, {"status": "sleeping" if self.asleep else "awake"}

    def load(self, lora_name, lora_path, **_):
        self.turns.append("load")
        if self.asleep:
            return 500, {"error": {"message": "EngineDeadError"}}
        if self.loading:
            return self.loading.pop(0), {"error": {"message": "not now"}}
        known = lora_name in self.adapters
        if not known and not self.refused:
            self.adapters.append(lora_name)
            self.folders[lora_name] = lora_path
        if known or self.raced or self.refused:  # raced: another worker's request came first
            return 400, {"error": {"message": "has already been loaded"}}
        return 200, "ok"

    def complete(self, body, changes):
        if body["model"] not in (self.base, *self.adapters):
            return 404, {"error": {"message": "no such model"}}
        choice = {"token_ids": [5, 2], "logprobs": {"token_logprobs": [-0.5, -0.25]}, "finish_reason": "stop"}
        choice |= {"prompt_token_ids": body["prompt"]} | (changes or self.says(body))
        return 200, {"choices": [choice]}

    def start(self):
        self.server = Listener(("127.0.0.1", self.port), Handler)
        self.server.fake = self
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def with_engine(action, *servers, patience=60.0, **more):
    """What a function makes of an engine over these servers."""

    async def run():
        options = EngineOptions(urls=tuple(server.url for server in servers), patience=patience)
        async with VLLMEngine(options, **more) as engine:
            return await action(engine)

    return asyncio.run(run())
