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

# What `prepare` chose for the GPUs. Every service may write to the shared folder, so nothing but its own names, numbers
# and flags is taken from there: another name could be LD_PRELOAD's, another flag load code.
PLAN_LINE='((VLLM_GPUS|TRAIN_GPUS|TRAIN_PROCESSES|VLLM_GPU_MEMORY|PLAN_SHARED|PLAN_TRAIN_SHARE)=[0-9.,]*|SERVE=(nf4|bf16)'
PLAN_LINE+='|PLAN_(VLLM|TRAIN)_ARGS=( ?(--(max-num-seqs|max-num-batched-tokens|token-budget) [0-9]+|--(no-)?gradient-checkpointing))*)'
read_plan() { # file
  local name value
  while IFS='=' read -r name value || [ -n "$name" ]; do
    if ! [[ $name=$value =~ ^$PLAN_LINE$ ]]; then
      echo "error: $1 holds what \`scripts/stack.sh prepare\` does not write ($name); run it again" >&2
      exit 1
    fi
    [ -n "${!name:-}" ] || export "$name=$value"
  done <"$1"
}
