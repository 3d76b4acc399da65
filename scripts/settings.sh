# What scripts read settings with; sourced by scripts/stack.sh, scripts/vllm_gpu.sh and cluster/node.sh.

# Lines NAME=VALUE are read as Docker reads them (a comment after a blank, quotes around a value) and never run as code.
# A variable of the environment takes precedence, unless it is empty.
read_settings() { # file
  local name value
  [ -e "$1" ] || return 0
  while IFS='=' read -r name value || [ -n "$name" ]; do
    name=${name#export }
    [[ $name =~ ^[A-Z][A-Z0-9_]*$ ]] && [ -z "${!name:-}" ] || continue
    value=${value%$'\r'}
    if [[ $value =~ ^\"([^\"]*)\"|^\'([^\']*)\' ]]; then
      value=${BASH_REMATCH[1]}${BASH_REMATCH[2]}
    else
      value=${value%%[[:blank:]]#*}
      value=${value%"${value##*[![:blank:]]}"}
    fi
    export "$name=$value"
  done <"$1"
}

refuse() {
  echo "error: $1" >&2
  exit 1
}

# What .env leaves open about the GPUs. It follows from .env, nvidia-smi and scripts/cards.txt alone, so that each service
# finds the same by itself. One GPU is for both (SHARED_GPU); of several vLLM has the first and the trainer the others.
choose_gpus() {
  local mib gpu least= others=() row size serve share
  [ -z "${CUDA_VISIBLE_DEVICES:-}" ] || [ -n "${VLLM_GPUS:-}${TRAIN_GPUS:-}" ] ||
    refuse "CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES does not reach the stack, which would take other GPUs; set VLLM_GPUS and TRAIN_GPUS instead"
  mib=$(nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits 2>/dev/null) ||
    refuse "there is no GPU: nvidia-smi does not answer; without one use docker-compose.cpu.yml, or DEVICE=cpu"
  mapfile -t mib <<<"$mib"
  for gpu in "${!mib[@]}"; do
    [[ ,${TRAIN_GPUS:-}, == *,$gpu,* ]] || VLLM_GPUS=${VLLM_GPUS:-$gpu}
  done
  VLLM_GPUS=${VLLM_GPUS:-${TRAIN_GPUS%%,*}}
  for gpu in "${!mib[@]}"; do
    [ "$gpu" = "$VLLM_GPUS" ] || others+=("$gpu")
  done
  TRAIN_GPUS=${TRAIN_GPUS:-$(IFS=, && echo "${others[*]:-$VLLM_GPUS}")}
  for gpu in $VLLM_GPUS ${TRAIN_GPUS//,/ }; do
    [[ $gpu =~ ^[0-9]+$ && -n ${mib[gpu]:-} ]] ||
      refuse "there is no GPU $gpu (VLLM_GPUS=$VLLM_GPUS, TRAIN_GPUS=$TRAIN_GPUS); give numbers of nvidia-smi, 0 to $((${#mib[@]} - 1))"
    [ "${least:-$((mib[gpu] + 1))}" -le "${mib[gpu]}" ] || least=${mib[gpu]}
  done
  others=(${TRAIN_GPUS//,/ })
  TRAIN_PROCESSES=${TRAIN_PROCESSES:-${#others[@]}}
  [ "$TRAIN_PROCESSES" -le "${#others[@]}" ] ||
    refuse "TRAIN_PROCESSES=$TRAIN_PROCESSES takes as many GPUs, and TRAIN_GPUS=$TRAIN_GPUS has ${#others[@]}"
  # Nodes of several (cluster/node.sh) either train or serve.
  [[ -n ${NODE_RANK:-} || ${ENGINE:-vllm} = local || ,$TRAIN_GPUS, != *,$VLLM_GPUS,* ]] && SHARED_GPU= || SHARED_GPU=1

  size=${CARD:-$((least * 1048576 / 1000000000))} # nvidia-smi counts in MiB, and a card's name in GB
  row=$(awk -v size="$size" '/^[0-9]/ && $1 <= size + 1 { row = $0 } END { print row }' scripts/cards.txt)
  [ -n "$row${VLLM_GPU_MEMORY:-}" ] || [ -z "$SHARED_GPU" ] ||
    refuse "a GPU of $size GB is too small for vLLM and the trainer of a 7B model at once; set a smaller BASE_MODEL with VLLM_GPU_MEMORY and TRAIN_ARGS, or ENGINE=local with TRAIN_ARGS=\"--rollouts own\", or let them take turns (docs/operations.md)"
  read -r size serve share CARD_ARGS <<<"$row"
  [ "${QUANTIZE:-1}" = 0 ] || SERVE=${SERVE:-${serve:-nf4}}
  [ -n "$SHARED_GPU" ] || share=0.9 # vLLM's default
  VLLM_GPU_MEMORY=${VLLM_GPU_MEMORY:-$share}
  [[ $VLLM_GPU_MEMORY =~ ^0?\.[0-9]+$ ]] || refuse "VLLM_GPU_MEMORY=$VLLM_GPU_MEMORY is no share of a GPU; give one such as 0.4"
}
