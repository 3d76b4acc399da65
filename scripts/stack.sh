#!/usr/bin/env bash
# The stack's services, one verb each: the same in containers (docker-compose.yml) and in terminals.
#   stack.sh prepare    makes data and store, base with adapter, warm start; keeps what an earlier call has made
#   stack.sh vllm       runs a vLLM server: by scripts/vllm_gpu.sh, or without a GPU by scripts/vllm_cpu.sh
#   stack.sh rollout    plays what the trainer plans, with the newest adapter; any number of them may run
#   stack.sh train      trains to MAX_STEPS; over several machines with torchrun's options (cluster/node.sh gives them)
#   stack.sh show       prints the commands behind the verbs
# Everything is set by environment variables or lines of .env; .env.example explains each.
set -euo pipefail
cd "$(dirname "$0")/.."

verb=${1:-}
case $verb in prepare | vllm | rollout | train | show) ;; *)
  echo "usage: scripts/stack.sh prepare|vllm|rollout|train|show" >&2
  exit 2
  ;;
esac

source scripts/settings.sh
settings=${ENV_FILE:-.env}
read_settings "$settings"
export NO_PROXY="${NO_PROXY:+$NO_PROXY,}127.0.0.1,localhost" # a proxy can't reach the stack's own servers
VLLM_URLS=${VLLM_URLS:-http://127.0.0.1:${VLLM_PORT:-8100}}

[ "${SERVE:-auto}" != auto ] || unset SERVE # left to the card
PY=${PY:-.venv/bin/python}
# The device is found out where this runs, whatever the image was built for; docker compose says which its files are for.
DEVICE=${DEVICE:-$(nvidia-smi >/dev/null 2>&1 && echo cuda || echo cpu)}
SHARED=${SHARED:-.}
run=$SHARED/runs/${RUN:-stack}
data=$SHARED/data
# Says at once, and every two minutes, what it waits for.
wait_until() { # what, the command that succeeds then
  local begun=$SECONDS next=$SECONDS
  until "${@:2}"; do
    if [ "$SECONDS" -ge "$next" ]; then
      [ "$next" = "$begun" ] && echo "waiting $1" || echo "waiting $1, for $(((SECONDS - begun) / 60)) minutes now"
      next=$((next + 120))
    fi
    sleep 2
  done
}
prepared() { [ -e "$SHARED/models/served" ]; } # made last
case $verb in
  prepare | show) # in a container .env is not a file, but docker compose passes its lines on
    [ -e /app/.image-names ] && names=$(compgen -e | grep -vxFf /app/.image-names) ||
      names=$(sed -E 's/^export //; /^\s*(#|$)/d; s/=.*//' "$settings" 2>/dev/null || true)
    "$PY" -m forage.stack_settings <<<"$names" || exit 1
    ;;
  *) wait_until "until \`scripts/stack.sh prepare\` is through" prepared ;;
esac
# A rollout has no GPU, and vLLM's script looks for its own.
if [ "$DEVICE" = cuda ] && [[ $verb =~ prepare|show|train ]]; then
  choose_gpus
  [ "$verb" = train ] || echo "GPUs: vLLM has $VLLM_GPU_MEMORY of GPU $VLLM_GPUS and serves ${SERVE:-the base}, the trainer has $TRAIN_GPUS${CARD_ARGS:+ with $CARD_ARGS}" >&2
fi
# default GPU OTHER: one of two defaults, since what takes little time on a GPU takes hours without one.
if [ "$DEVICE" = cuda ]; then
  default() { echo "$1"; }
else
  default() { echo "$2"; }
  # Otherwise two processes with torch on the same cores wait in busy loops and slow each other down.
  export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-PASSIVE}
fi
WARM_STEPS=${WARM_STEPS:-$(default 100 24)}
[ "$WARM_STEPS" = 0 ] && policy=$SHARED/models/policy || policy=$SHARED/models/warm
# How the agent searches is decided by the first training, the warm start, and kept with the policy (agent.json). Later
# stages take it from there; what .env sets is passed to them as well, so that a contradiction is an error.
search_said=(${K:+--k "$K"} ${PASSAGE_TOKENS:+--passage-tokens "$PASSAGE_TOKENS"} ${MODE:+--mode "$MODE"}
  ${MAX_TURNS:+--max-turns "$MAX_TURNS"} ${MAX_TURN_TOKENS:+--max-turn-tokens "$MAX_TURN_TOKENS"} ${MAX_TOKENS:+--max-tokens "$MAX_TOKENS"})
# Both default data sets are medical.
task=${TASK:-}
[ -n "$task" ] || [ -n "${DATASET:-}" ] || task="Answer the medical question from a library"
[ -z "${TASK:-}" ] || search_said+=(--task "$TASK")
LORA_RANK=${LORA_RANK:-16} MAX_TOKENS=${MAX_TOKENS:-2048} OFFLOAD=${OFFLOAD:-none}
# DeepSpeed in any case. For one process ZeRO-2: there is nothing to share out, and the weights stay where they are used.
processes=${TRAIN_PROCESSES:-1}
torchrun=("${@:2}") # with further options for torchrun there are processes on other machines too
[ "$processes" = 1 ] && [ ${#torchrun[@]} = 0 ] && [ "$OFFLOAD" != all ] && sharding=${SHARDING:-zero2} || sharding=${SHARDING:-zero3}

search=(--k "${K:-3}" --passage-tokens "${PASSAGE_TOKENS:-$(default 120 32)}" --mode "${MODE:-$(default hybrid sparse)}"
  --max-turns "${MAX_TURNS:-$(default 4 3)}" --max-turn-tokens "${MAX_TURN_TOKENS:-$(default 512 64)}"
  --max-tokens "$MAX_TOKENS" ${task:+--task "$task"})
[ "$WARM_STEPS" = 0 ] && search_said=("${search[@]}")
play=(--data "$data" --policy "$policy" --run-dir "$run" --engine "${ENGINE:-vllm}" --urls $VLLM_URLS
  --batch-size "${BATCH_SIZE:-8}" --num-rollouts "${NUM_ROLLOUTS:-8}" "${search_said[@]}" --temperature "${TEMPERATURE:-1.0}"
  ${ROLLOUT_ARGS:-})

prepare_data=("$PY" data_prep.py --dataset-name "${DATASET:-$(default lavita/MedQuAD sample)}" --output-dir "$data"
  --content-dir "$data/pages" --cache-dir "$data/cache" ${CHROMA_URL:+--chroma-url "$CHROMA_URL"} ${DATA_ARGS:-})
quantize=${QUANTIZE:-$(default 1 0)}
prepare_policy=("$PY" create_lora_model.py --base-model "${BASE_MODEL:-auto}" --models-dir "$SHARED/models" --r "$LORA_RANK"
  --output-dir "$SHARED/models/policy" --overwrite ${POLICY_ARGS:-})
[ "$quantize" = 1 ] && prepare_policy+=(--quantize) || prepare_policy+=(--no-quantize)
prepare_warm=("$PY" sft_train.py --data "$data" --policy "$SHARED/models/policy" --output-dir "$SHARED/models/warm"
  --max-steps "$WARM_STEPS" "${search[@]}" ${WARM_ARGS:-$(default "" "--batch-size 2 --eval-every 12 --answer-tokens 40")})
# vLLM serves the base that is trained on, or its exact copy in bf16: in another precision it would be another policy.
prepare_served=("$PY" -m forage.policy.served_base "$SHARED/models/policy" "$SHARED/models/served"
  ${SERVE:+--serve "$SERVE"})

vllm=("scripts/vllm_$(default gpu cpu).sh" ${VLLM_ARGS:-})
rollout=("$PY" grpo_rollout.py --follow "${play[@]}")
[ "$processes" = 1 ] && [ ${#torchrun[@]} = 0 ] && train=("$PY") ||
  train=("$PY" -m torch.distributed.run "${torchrun[@]}" --nproc-per-node "$processes")
train+=(grpo_train.py "${play[@]}" --rollouts service --max-staleness "${MAX_STALENESS:-1}" --max-steps "${MAX_STEPS:-200}" --learning-rate "${LEARNING_RATE:-5e-5}"
  --eval-every "${EVAL_EVERY:-$(default 10 0)}" --report-to "${REPORT_TO:-none}" --sharding "$sharding"
  --offload "$OFFLOAD" ${CARD_ARGS:-} ${TRAIN_ARGS:-})

# Makes a thing once, and keeps what it was made with beside it: another setting would be ignored from then on.
run_once() { # a file that exists once it is done, the folder to remove to do it again, its command
  local record=$SHARED/models/made/${2##*/} now="$DEVICE: ${*:4}" before=
  now=${now//"$SHARED/"/}
  [ ! -e "$record" ] || before=$(<"$record")
  if [ ! -e "$1" ]; then
    echo "+ ${*:3}"
    "${@:3}"
    mkdir -p "${record%/*}"
    echo "$now" >"$record"
  elif [ -z "$before" ] || [ "$before" = "$now" ]; then # a kill may have left no record
    echo "there already: $1"
  elif [ "${before%%:*}" != "$DEVICE" ]; then
    echo "error: $2 was made for ${before%%:*}, and this is the stack for $DEVICE; start that one, or give this one a volume of its own (docker compose -p NAME up)" >&2
    exit 1
  else
    echo "error: $2 was made by \`${before#*: }\`, and .env now says \`${now#*: }\`; undo the change, or remove $2 to make it anew" >&2
    exit 1
  fi
}
# A rollout gets no GPU: its embedder runs on the CPU.
use_gpus() { # their numbers
  [ "$DEVICE" = cuda ] || return 0
  export CUDA_VISIBLE_DEVICES=$1 CUDA_DEVICE_ORDER=PCI_BUS_ID # nvidia-smi's numbers
  [ -n "$1" ] || return 0
  # Otherwise everything would continue with the small model meant for machines without a GPU.
  local error
  error=$("$PY" -m forage.machine 2>&1) || { echo "error: ${error##*$'\n'} (DEVICE=cuda, TRAIN_GPUS=$1)" >&2 && exit 1; }
}
# On a card for both, vLLM measures what is free when it starts, so the trainer comes after it. It leaves vLLM's share alone
# also while vLLM restarts, unless they take turns; CUDA itself takes some of the rest.
join_vllm() {
  local url=${VLLM_URLS%% *}
  [[ " ${TRAIN_ARGS:-} " == *" --vllm-sleep "* ]] ||
    export PYTORCH_CUDA_ALLOC_CONF=per_process_memory_fraction:$(awk -v share="$VLLM_GPU_MEMORY" 'BEGIN { print 0.97 - share }')
  wait_until "for vLLM at $url, which shares the GPU (its log says what it does)" answers "$url/health"
}
answers() { "$PY" -c 'import sys, urllib.request as u; u.urlopen(sys.argv[1], timeout=4)' "$1" 2>/dev/null; }

case $verb in
  prepare)
    use_gpus "${TRAIN_GPUS:-}"
    mkdir -p "$SHARED/models"
    rm -f "$run/finished" # the trainer writes it again if MAX_STEPS was not raised; workers must not read the old one
    run_once "$data/eval.jsonl" "$data" "${prepare_data[@]}"
    run_once "$SHARED/models/policy/model.json" "$SHARED/models/policy" "${prepare_policy[@]}"
    [ "$WARM_STEPS" = 0 ] || run_once "$SHARED/models/warm/adapters/v000000" "$SHARED/models/warm" "${prepare_warm[@]}"
    "${prepare_served[@]}"
    ;;
  vllm)
    export SHARED MAX_TOKENS LORA_RANK PORT=${VLLM_PORT:-8100}
    [ "$DEVICE" = cuda ] || export MODEL=$SHARED/models/served MAX_LEN=$MAX_TOKENS
    exec "${vllm[@]}"
    ;;
  rollout)
    use_gpus ""
    exec "${rollout[@]}"
    ;;
  train)
    use_gpus "${TRAIN_GPUS:-}"
    [ -z "${SHARED_GPU:-}" ] || join_vllm
    exec "${train[@]}"
    ;;
  show)
    echo "# once"
    for step in prepare_data prepare_policy prepare_warm prepare_served; do
      declare -n command=$step
      echo "${command[*]}"
    done
    for pane in vllm rollout train; do
      declare -n command=$pane
      printf '\n# pane: %s\n%s\n' "$pane" "${command[*]}"
    done
    ;;
esac
