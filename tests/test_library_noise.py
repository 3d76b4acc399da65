"""What libraries do unasked: two warnings are silenced, the hub hears of no run, and products are not kept for ever."""

import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from bench.harness import outer
from tests import ROOT


def test_only_the_two_known_warnings_are_silenced():
    code = """
import logging, warnings, forage
told = {"category": FutureWarning, "filename": "modeling_utils.py", "lineno": 1}
old = "`is_gradient_checkpointing` is deprecated and will be removed"
warnings.warn_explicit(old, **told, module="transformers.modeling_utils")
warnings.warn_explicit(old, **told, module="forage")
logger = logging.getLogger("bitsandbytes.backends.cpu.ops")
logger.warning("Failed to load CPU gemm_4bit_forward from kernels-community: %s", "No module named 'kernels'")
logger.warning("another warning")
"""
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stderr
    assert told.count("is deprecated") == 1
    assert told.splitlines()[-1] == "another warning"


@pytest.mark.parametrize(("said", "told"), [(None, []), ("0", ["/api/telemetry/trl/PPOTrainer"])])
def test_the_hub_hears_of_no_run_unless_a_user_says_so(said, told):
    """A hub within reach, and what TRL calls when its trainer is made."""
    asked = []

    class Hub(BaseHTTPRequestHandler):
        def do_HEAD(self):
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()

    hub = HTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=hub.serve_forever, daemon=True).start()
    code = """
import forage
from huggingface_hub.utils import _telemetry
_telemetry.send_telemetry("trl/PPOTrainer")
_telemetry._TELEMETRY_QUEUE.join()
"""
    env = {**os.environ, "HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HUB_OFFLINE": "0"}
    env.pop("HF_HUB_DISABLE_TELEMETRY", None)  # set by forage in the process of the tests
    if said:
        env["HF_HUB_DISABLE_TELEMETRY"] = said
    subprocess.run([sys.executable, "-c", code], env=env, check=True, cwd=ROOT)
    hub.shutdown()
    hub.server_close()
    assert asked == told


def test_memory_does_not_grow_with_the_shapes_met():
    """Products of 500 shapes, as of as many micro-batches: oneDNN would keep some 400 MiB for them."""
    code = """
import forage, resource, torch
weight, peaks = torch.ones(1024, 1024, dtype=torch.bfloat16), []
for rows in range(600):
    torch.ones(rows, 1024, dtype=torch.bfloat16) @ weight
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
print(peaks[-1] - peaks[100])
"""
    grown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, env=outer()
    )
    assert float(grown.stdout) < 200
