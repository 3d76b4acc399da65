#!/usr/bin/env bash
# Makes the lock files again, each out of the requirement file of its name: the newest versions that fit together for
# Python 3.11 on Linux x86-64, and the hashes of their files. The CPU build of torch is looked up in the folder
# PIP_FIND_LINKS, else in PyTorch's index.
set -euo pipefail
cd "$(dirname "$0")/.."
export UV_CUSTOM_COMPILE_COMMAND="make lock" # the locks say that they come from it
cpu=(--torch-backend cpu)
[ -z "${PIP_FIND_LINKS:-}" ] || cpu=(--find-links "$PIP_FIND_LINKS")
together=$(mktemp)
trap 'rm "$together"' EXIT

compile() {
  .venv/bin/uv pip compile -q --generate-hashes --python-version 3.11 --python-platform x86_64-manylinux_2_28 "$@"
}

lock() { # lock NAME "OTHERS" [OPTION...]: into NAME.lock what NAME.txt needs and the locks of the others don't have
  local other name left_out=() asked=requirements/$1.txt
  [ "$1" != base ] || asked=requirements.txt
  for other in $2; do
    for name in $(sed -n 's/^\([^ #=]*\)==.*/\1/p' "requirements/$other.lock"); do left_out+=(--no-emit-package "$name"); done
  done
  cp "$together" "requirements/$1.lock" # uv keeps the versions that it finds there
  compile "${left_out[@]}" "${@:3}" "$asked" -o "requirements/$1.lock"
}

compile "${cpu[@]}" requirements/dev.txt requirements/cpu.txt -o "$together"
lock base "" "${cpu[@]}" requirements/cpu.txt --no-emit-package torch
lock cpu base "${cpu[@]}"
lock cuda base
lock dev "base cpu" "${cpu[@]}"
lock models "" --no-deps
