"""A script that is killed at a chosen moment of its own: whoever watched it from outside might come too late.

    python -m tests.dying '[["/episodes/", 1, 0.2], ["stats", 3, 0]]' SCRIPT.py [options], or -m MODULE [options]

A moment is so many seconds after the n-th time that a file or folder is made, or a file written or renamed, whose path
has the pattern; of several moments it is the first one. With "stop" for the seconds it only stops there, for others to
kill.
"""

import json
import os
import re
import runpy
import signal
import sys

WRITING = os.O_WRONLY | os.O_RDWR


def watch(moments):
    left = [[pattern, count, seconds] for pattern, count, seconds in moments]

    def hook(event, args):
        if event not in ("open", "os.mkdir", "os.rename") or (event == "open" and not written(args[2])):
            return
        paths = " ".join(os.fsdecode(path) for path in args[:2] if isinstance(path, str | bytes | os.PathLike))
        for moment in left:
            if re.search(moment[0], paths):
                moment[1] -= 1
                if moment[1] == 0:
                    die(moment[2])

    sys.addaudithook(hook)


def written(flags):
    return isinstance(flags, int) and bool(flags & WRITING)


def die(seconds):
    if seconds in (0, "stop"):
        os.kill(os.getpid(), signal.SIGSTOP if seconds else signal.SIGKILL)
        return
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process as SIGKILL does: no code of its own runs
    signal.setitimer(signal.ITIMER_REAL, seconds)


if __name__ == "__main__":
    watch(json.loads(sys.argv.pop(1)))
    if sys.argv[1] == "-m":
        sys.argv[0:2] = []
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv.pop(0)
        runpy.run_path(sys.argv[0], run_name="__main__")
