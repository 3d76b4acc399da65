"""Loading a policy prints nothing on stderr; other warnings still show."""

import subprocess
import sys

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
