"""Stand-ins for nvidia-smi and Python, with which the stack's scripts run on a machine without GPUs."""

import os
import sys

SMI = """case "$*" in
  *=index*) for card in $(seq 0 $((CARDS - 1))); do echo $card; done ;;
  *) for card in $(seq $CARDS); do echo $MIB; done ;;
esac
exit $((CARDS == 0))"""
# It checks as the real one does, finds CUDA, and shows what else it is asked.
PYTHON = f"""case "$*" in
  "-m forage.stack_settings") exec {sys.executable} "$@" ;;
  "-m forage.machine") ;; # the search for a GPU
  -c*sysconfig*) echo "${{0%/*}}" ;; # where Python.h is
  -c*) echo "asked $*" ;; # for a server's health
  *)
    echo "interface=$GLOO_SOCKET_IFNAME key=$VLLM_API_KEY gpus=$CUDA_VISIBLE_DEVICES order=$CUDA_DEVICE_ORDER $*"
    echo "$PYTORCH_CUDA_ALLOC_CONF" >&2 ;;
esac
case "$*" in *grpo_rollout.py*) sleep 1; exit ${{WORKER_STATUS:-0}} ;; esac"""


def machine_with(folder, cards=1, mib=24564, **more):
    """The environment of a machine with so many GPUs of so much memory; its programs lie in a folder, more if given."""
    folder.mkdir(exist_ok=True)
    for name, text in ({"nvidia-smi": SMI, "python": PYTHON} | more).items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    (folder / "Python.h").touch()
    return {"PATH": f"{folder}:{os.environ['PATH']}", "CARDS": str(cards), "MIB": str(mib), "DEVICE": "cuda"}
