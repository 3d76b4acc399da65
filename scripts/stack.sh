#!/usr/bin/env bash
# The stack's services, one verb each: the same in containers (docker-compose.yml) and in terminals.
#   stack.sh prepare    makes data and store, base with adapter, warm start; keeps what an earlier call has made
#   stack.sh vllm       runs a vLLM server: on the GPU, or without one by scripts/vllm_cpu.sh
#   stack.sh rollout    plays what the trainer plans, with the newest adapter; any number of them may run
#   stack.sh train      trains to MAX_STEPS
#   stack.sh show       prints the commands behind the verbs
# Everything is set by environment variables or lines of .env; .env.example explains each.
set -euo pipefail
cd "$(dirname "$0")/.."

# Lines NAME=VALUE are read as Docker reads them (a comment after a blank, quotes around a value) and never run as code.
# A variable of the environment takes precedence.
if [ -f "${ENV_FILE:-.env}" ]; then
  while IFS='=' read -r name value || [ -n "$name" ]; do
    [[ $name =~ ^[A-Z][A-Z0-9_]*$ ]] && [ -z "${!name+set}" ] || continue
    value=${value%$'\r'}
    if [[ $value =~ ^\"([^\"]*)\"|^\'([^\']*)\' ]]; then
      value=${BASH_REMATCH[1]}${BASH_REMATCH[2]}
    else
      value=${value%%[[:blank:]]#*}
      value=${value%"${value##*[![:blank:]]}"}
    fi
    export "$name=$value"
  done <"${ENV_FILE:-.env}"
fi

PY=${PY:-.venv/bin/python}
VLLM_PY=${VLLM_PY:-.venv-vllm/bin/python}
DEVICE=${DEVICE:-$(nvidia-smi >/dev/null 2>&1 && echo cuda || echo cpu)}
SHARED=${SHARED:-.}
run=$SHARED/runs/${RUN:-stack}
data=$SHARED/data
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
LORA_RANK=${LORA_RANK:-16} MAX_TOKENS=${MAX_TOKENS:-2048} SHARDING=${SHARDING:-$(default zero3 none)}

search=(--k "${K:-3}" --passage-tokens "${PASSAGE_TOKENS:-$(default 120 32)}" --mode "${MODE:-$(default hybrid sparse)}"
  --max-turns "${MAX_TURNS:-$(default 4 3)}" --max-turn-tokens "${MAX_TURN_TOKENS:-$(default 512 64)}"
  --max-tokens "$MAX_TOKENS")
[ "$WARM_STEPS" = 0 ] && search_said=("${search[@]}")
sampling=(--temperature "${TEMPERATURE:-1.0}")
play=(--data "$data" --policy "$policy" --run-dir "$run" --engine vllm --urls ${VLLM_URLS:-http://127.0.0.1:8100}
  --batch-size "${BATCH_SIZE:-8}" --num-rollouts "${NUM_ROLLOUTS:-8}" "${search_said[@]}" "${sampling[@]}"
  --max-staleness "${MAX_STALENESS:-1}" ${ROLLOUT_ARGS:-})

prepare_data=("$PY" data_prep.py --dataset-name "${DATASET:-$(default lavita/MedQuAD sample)}" --output-dir "$data"
  --content-dir "$data/pages" --cache-dir "$data/cache" ${CHROMA_URL:+--chroma-url "$CHROMA_URL"} ${DATA_ARGS:-})
quantize=${QUANTIZE:-$(default 1 0)}
prepare_policy=("$PY" create_lora_model.py --base-model "${BASE_MODEL:-auto}" --models-dir "$SHARED/models" --r "$LORA_RANK"
  --output-dir "$SHARED/models/policy" --overwrite ${POLICY_ARGS:-})
[ "$quantize" = 1 ] && prepare_policy+=(--quantize) || prepare_policy+=(--no-quantize)
prepare_warm=("$PY" sft_train.py --data "$data" --policy "$SHARED/models/policy" --output-dir "$SHARED/models/warm"
  --max-steps "$WARM_STEPS" "${search[@]}" "${sampling[@]}" ${WARM_ARGS:-$(default "" "--batch-size 2 --eval-every 12 --eval-questions 0 --answer-tokens 40")})
# vLLM serves the same base that is trained on, in 4 bits too: in another precision it would be another policy.
prepare_served=("$PY" -m forage.policy.served_base "$SHARED/models/policy" "$SHARED/models/served")

if [ "$DEVICE" = cuda ]; then
  export VLLM_ALLOW_RUNTIME_LORA_UPDATING=True VLLM_NO_USAGE_STATS=1
  vllm=("$VLLM_PY" -m vllm.entrypoints.openai.api_server --model "$SHARED/models/served"
    --served-model-name policy --host 127.0.0.1 --port "${VLLM_PORT:-8100}" --max-model-len "$MAX_TOKENS"
    --gpu-memory-utilization "${VLLM_GPU_MEMORY:-0.85}" --enable-lora --max-lora-rank "$LORA_RANK" --max-loras 2
    --logprobs-mode processed_logprobs ${VLLM_ARGS:-})
else
  vllm=(scripts/vllm_cpu.sh ${VLLM_ARGS:-})
  export MODEL=$SHARED/models/served PORT=${VLLM_PORT:-8100} MAX_LEN=$MAX_TOKENS LORA_RANK
fi
rollout=("$PY" grpo_rollout.py --follow "${play[@]}")
# DeepSpeed and FSDP2 need processes to share the work; one process trains without either.
processes=${TRAIN_PROCESSES:-1}
[ "$processes" = 1 ] && train=("$PY") || train=("$PY" -m torch.distributed.run --nproc-per-node "$processes")
train+=(grpo_train.py "${play[@]}" --rollouts service --max-steps "${MAX_STEPS:-200}" --learning-rate "${LEARNING_RATE:-5e-5}"
  --eval-every "${EVAL_EVERY:-$(default 10 0)}" --report-to "${REPORT_TO:-none}")
[ "$processes" = 1 ] || train+=(--sharding "$SHARDING")
train+=(${TRAIN_ARGS:-})

run_once() { # a file that exists once it is done, the command
  [ -e "$1" ] && echo "there already: $1" || { echo "+ ${*:2}" && "${@:2}"; }
}
# Under compose CUDA_VISIBLE_DEVICES is set already. A rollout gets no GPU: its embedder runs on the CPU.
choose_gpus() { # verb
  [ "$DEVICE" = cuda ] || return 0
  local -A gpus=([prepare]=${TRAIN_GPUS:-1} [train]=${TRAIN_GPUS:-1} [vllm]=${VLLM_GPUS:-0} [rollout]="")
  export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES-${gpus[$1]}}
  case $1 in prepare | train)
    # Otherwise everything would continue with the small model meant for machines without a GPU.
    "$PY" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' && return 0
    echo "error: there is no GPU $CUDA_VISIBLE_DEVICES (TRAIN_GPUS); on one GPU set TRAIN_GPUS=0, VLLM_GPUS=0 and VLLM_GPU_MEMORY=0.4" >&2
    exit 1
    ;;
  esac
}
wait_for_prepare() {
  local said=
  until [ -e "$SHARED/models/served" ]; do
    [ -n "$said" ] || echo "waiting until \`scripts/stack.sh prepare\` is through"
    said=1
    sleep 2
  done
}

case ${1:-} in
  prepare)
    choose_gpus prepare
    rm -f "$run/finished" # the trainer writes it again if MAX_STEPS was not raised; workers must not read the old one
    run_once "$data/eval.jsonl" "${prepare_data[@]}"
    run_once "$SHARED/models/policy/model.json" "${prepare_policy[@]}"
    [ "$WARM_STEPS" = 0 ] || run_once "$SHARED/models/warm/adapters/v000000" "${prepare_warm[@]}"
    "${prepare_served[@]}"
    ;;
  vllm | rollout | train)
    wait_for_prepare
    choose_gpus "$1"
    declare -n command=$1
    exec "${command[@]}"
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
  *)
    echo "usage: scripts/stack.sh prepare|vllm|rollout|train|show" >&2
    exit 2
    ;;
esac
