"""Scripts run in the test's own process: the same command, without seconds of imports for each."""

import contextlib
import io
import os
import runpy
import subprocess
import sys
from unittest import mock

from tests import ROOT


def run_here(command, where=ROOT):
    """What subprocess.run gives for [python, script.py or -m module, arguments] in a folder.

    Only what a process alone can have differs: its own environment, its death, and what C code prints.
    """
    _, what, *arguments = map(str, command)
    module = what == "-m"
    name = arguments.pop(0) if module else what
    out, err, status, folder = io.StringIO(), io.StringIO(), 0, os.getcwd()
    argv = mock.patch.object(sys, "argv", [name, *arguments])
    try:
        os.chdir(where)
        with argv, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            if module:
                runpy.run_module(name, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(name, run_name="__main__")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            err.write(f"{end.code}\n")
    finally:
        os.chdir(folder)
    return subprocess.CompletedProcess(command, status, out.getvalue(), err.getvalue())
