"""A real HTTP server on loopback that answers as vLLM does, or fails and lies in the ways it is told to."""

import asyncio
import json
import math
import select
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from forage.engines.base import EngineOptions, Request, Sample, Sampling
from forage.engines.vllm import VLLMEngine
from tests.ports import free_port

REQUEST = Request((1, 2, 3), 4, (2,), seed=7, sampling=Sampling(0.5), episode="q/0")
RIGHT = Sample((5, 2), (-0.5, -0.25), "stop")  # what a server that is not told otherwise says

LOGITS = {"token_id:7": 3.0, "token_id:5": 2.0, "token_id:2": 1.0, "token_id:9": 0.0, "token_id:1": -2.0}
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
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_): ...

            def say(self, status, value):
                text = value if isinstance(value, bytes) else json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def do_GET(self):
                if fake.busy:
                    fake.busy -= 1
                    return self.say(503, {"error": "starting"})
                if self.path == "/is_sleeping" and fake.sleep_mode is not None:
                    return self.say(200, {"is_sleeping": fake.asleep})
                if self.path.startswith("/server_info") and fake.sleep_mode is not None:
                    return self.say(200, {"vllm_config": {"model_config": {"enable_sleep_mode": fake.sleep_mode}}})
                if self.path == "/health":
                    return self.say(200, "")
                if self.path != "/v1/models":
                    return self.say(404, {"detail": "Not Found"})
                base = {"id": fake.base, "parent": None, **fake.card}
                return self.say(200, {"data": [base, *({"id": a, "parent": fake.base} for a in fake.adapters)]})

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or "{}")
                if self.path.startswith(("/sleep", "/wake_up")):
                    return self.turn()
                if self.path == "/v1/load_lora_adapter":
                    return self.load(body)
                if self.path == "/v1/unload_lora_adapter":
                    fake.adapters.remove(body["lora_name"])
                    fake.turns.append("unload")
                    return self.say(200, "ok")
                if body["logprobs"]:
                    fake.probes.append(body)
                    return self.complete(body, {"logprobs": {"top_logprobs": [listed(fake.mode, body["temperature"])]}})
                if body["prompt"][0] == 11:  # the comparison of an adapter with the base
                    odd = not fake.ignores_adapters and body["model"] != fake.base
                    odd += fake.spoilt_base / 16
                    changes = {"token_ids": [5] * 8, "finish_reason": "length"}
                    return self.complete(body, changes | {"logprobs": {"token_logprobs": [-0.1 - odd] * 8}})
                fake.bodies.append(body)
                fake.turns.append("completion")
                plan = fake.plan.pop(0) if fake.plan else {}
                return self.act(plan, body)

            def turn(self):
                if fake.sleep_mode is None:
                    return self.say(404, {"detail": "Not Found"})
                fake.turns.append(self.path)
                fake.asleep = self.path != "/wake_up"
                return self.say(200, {"status": "sleeping" if fake.asleep else "awake"})

            def load(self, body):
                fake.turns.append("load")
                if fake.asleep:
                    return self.say(500, {"error": {"message": "EngineDeadError"}})
                if fake.loading:
                    return self.say(fake.loading.pop(0), {"error": {"message": "not now"}})
                known = body["lora_name"] in fake.adapters
                if not known and not fake.refused:
                    fake.adapters.append(body["lora_name"])
                    fake.folders[body["lora_name"]] = body["lora_path"]
                if known or fake.raced or fake.refused:  # raced: another worker's request came first
                    return self.say(400, {"error": {"message": "has already been loaded"}})
                return self.say(200, "ok")

            def act(self, plan, body):
                if isinstance(plan, dict):
                    return self.complete(body, plan)
                if isinstance(plan, int):
                    return self.say(plan, {"error": {"message": f"status\n{plan}"}})
                return getattr(self, plan)()

            def complete(self, body, changes):
                if body["model"] not in (fake.base, *fake.adapters):
                    return self.say(404, {"error": {"message": "no such model"}})
                choice = {"token_ids": [5, 2], "logprobs": {"token_logprobs": [-0.5, -0.25]}, "finish_reason": "stop"}
                choice |= {"prompt_token_ids": body["prompt"]} | (changes or fake.says(body))
                return self.say(200, {"choices": [choice]})

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

        self.handler, self.port = Handler, free_port()  # which stays its own when it is stopped and started
        self.start()

    def start(self):
        self.server = Listener(("127.0.0.1", self.port), self.handler)
        self.port = self.server.server_port
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
