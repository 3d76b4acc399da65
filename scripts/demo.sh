#!/usr/bin/env bash
# The pipeline on the sample data, from nothing, in runs/demo. PY is the interpreter of .venv.
set -euo pipefail
cd "$(dirname "$0")/.."
started=$SECONDS
data=runs/demo/data

"$PY" data_prep.py --dataset-name sample --output-dir $data --content-dir $data/pages --cache-dir $data/cache
"$PY" document_store.py search --store $data/store "why does my big toe hurt at night" --k 3
"$PY" document_store.py search --store $data/store "why does my big toe hurt at night" --k 3 --mode sparse
"$PY" create_lora_model.py --output-dir runs/demo/policy --overwrite
"$PY" sft_train.py --data $data --policy runs/demo/policy --output-dir runs/demo/warm --overwrite
"$PY" merge_lora.py --lora-model runs/demo/warm --output-path runs/demo/merged --overwrite

echo "demo: $(wc -l <$data/documents.jsonl) documents, $(wc -l <$data/train.jsonl) training," \
  "$(wc -l <$data/eval.jsonl) eval questions and a warm-started policy in $((SECONDS - started)) s; files in runs/demo"
