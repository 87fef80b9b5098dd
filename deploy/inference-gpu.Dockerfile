# The model server whose answers do not depend on their company, for NVIDIA GPUs. Build from the repository's root:
#   docker build -f deploy/inference-gpu.Dockerfile -t playhead-inference-gpu .
# Run it with --gpus all and a model at /model. Neither the image nor what is in it was ever run on a GPU (docs/batch-invariance.md):
# at start it asks stock vLLM first, then itself, and serves only where the one varied and the other did not.
FROM python:3.12-slim AS build
COPY --from=ghcr.io/astral-sh/uv:0.13.9 /uv /usr/local/bin/uv
ENV UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never
WORKDIR /app
RUN uv venv /app/.venv
COPY inference/gpu.lock inference/gpu.lock
RUN uv pip sync --python .venv/bin/python --require-hashes inference/gpu.lock
COPY inference inference
RUN uv pip install --python .venv/bin/python --no-deps ./inference

FROM python:3.12-slim
# Triton compiles its launchers at run time.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 10001 --home-dir /var/lib/playhead --create-home --shell /usr/sbin/nologin playhead
COPY --from=build --chown=root:root /app/.venv /app/.venv
ENV PATH=/app/.venv/bin:$PATH PYTHONSAFEPATH=1 VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 VLLM_BATCH_INVARIANT=1
USER 10001
WORKDIR /var/lib/playhead
EXPOSE 9000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=900s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:9000/batch_invariance', timeout=4)"]
ENTRYPOINT ["python", "-m", "playhead_inference", "--host", "0.0.0.0", "--port", "9000", "--attention-backend", "TRITON_ATTN"]
CMD ["--model", "/model", "--served-model-name", "model", "--max-model-len", "4096"]
