#!/usr/bin/env bash
# Starts a vLLM server on a GPU; adapters can be loaded while it runs. It serves what `scripts/stack.sh prepare` made, in
# the share of the GPU that scripts/cards.txt gives it; what is set in the environment goes first.
#   MODEL            folder of the base to serve instead; then VLLM_GPUS and VLLM_GPU_MEMORY must be set too
#   DTYPE            float32 or bfloat16, as the policy's; default: what prepare's policy says
#   SHARED           folder with models/served (default: .)
#   VLLM_PY          Python with vLLM (default: .venv-vllm/bin/python)
#   VLLM_GPUS        number of a GPU, as nvidia-smi counts them
#   VLLM_GPU_MEMORY  share of its memory
#   CARD, TRAIN_GPUS as in .env.example
#   LORA_RANK        largest rank of an adapter (default 16); vLLM is started for the next rank that it takes
#   MAX_STALENESS    steps that rollouts may run ahead (default 1): so many adapters and two more stay in the host's
#                    memory, so that none in use has to be read again while the next is loaded
#   MAX_TOKENS       most tokens of an episode (default 2048)
#   HOST, PORT       address to listen on (default 127.0.0.1, 8100)
#   VLLM_API_KEY     key that clients must send (default: none)
# Further arguments are passed to vLLM.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/settings.sh
models=${SHARED:-.}/models
if [ -z "${MODEL:-}" ]; then
  MODEL=$models/served
  while [ ! -e "$MODEL" ]; do
    [ -n "${said:-}" ] || echo "waiting until \`scripts/stack.sh prepare\` is through"
    said=1
    sleep 2
  done
  choose_gpus
  # In the type that the trainer computes in, if create_lora_model.py was told one; vLLM would take fp32 down to bf16.
  DTYPE=${DTYPE:-$(grep -oE '"dtype": "(float32|bfloat16)"' "$models/policy/model.json" 2>/dev/null | cut -d '"' -f 4 || true)}
fi

python=${VLLM_PY:-.venv-vllm/bin/python}
# Triton compiles C for the kernels of adapters, and says so only once the model is loaded.
headers=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
if ! echo '#include <Python.h>' | "${CC:-$(command -v gcc || command -v clang)}" -E -x c -I"$headers" - >/dev/null 2>&1; then
  echo "error: vLLM compiles kernels here, which needs gcc and Python.h in $headers; install gcc and python3-dev (that Python's own headers)" >&2
  exit 1
fi
for rank in 8 16 32 64 128 256 320 512; do [ "${LORA_RANK:-16}" -gt "$rank" ] || break; done # what vLLM takes

export CUDA_VISIBLE_DEVICES=$VLLM_GPUS CUDA_DEVICE_ORDER=PCI_BUS_ID # nvidia-smi's numbers
export VLLM_ALLOW_RUNTIME_LORA_UPDATING=True                        # enables /v1/load_lora_adapter
export VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=${HF_HUB_OFFLINE:-1}
vllm=("$python" -m vllm.entrypoints.openai.api_server)
# processed_logprobs: log-probabilities of the distribution that is sampled from, temperature included.
vllm+=(--model "$MODEL" --served-model-name policy --host "${HOST:-127.0.0.1}" --port "${PORT:-8100}"
  --max-model-len "${MAX_TOKENS:-2048}" --gpu-memory-utilization "$VLLM_GPU_MEMORY" ${SHARED_GPU:+--max-num-seqs 64}
  --enable-lora --max-lora-rank "$rank" --max-loras 2 --max-cpu-loras "$((${MAX_STALENESS:-1} + 2))"
  --logprobs-mode processed_logprobs)
[ -z "${DTYPE:-}" ] || vllm+=(--dtype "$DTYPE")
# Logits in fp32, as the trainer computes them, from a base in bf16.
vllm+=(--hf-overrides '{"head_dtype":"float32"}' "$@")
echo "GPU $VLLM_GPUS: ${vllm[*]}"
exec "${vllm[@]}"
