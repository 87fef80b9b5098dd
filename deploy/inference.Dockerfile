# The model server whose answers do not depend on their company, for CPUs. Build from the repository's root:
#   docker build -f deploy/inference.Dockerfile -t playhead-inference .
# Run it with a model at /model; it answers once it has checked itself: GET /batch_invariance.
FROM python:3.11-slim AS build
COPY --from=ghcr.io/astral-sh/uv:0.13.9 /uv /usr/local/bin/uv
ENV UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never
WORKDIR /app
RUN uv venv /app/.venv
COPY inference/cpu.lock inference/cpu.lock
# The hashes in the lock make it safe to take each package from whichever index has it.
RUN uv pip sync --python .venv/bin/python --require-hashes --index-strategy unsafe-best-match \
    --extra-index-url https://download.pytorch.org/whl/cpu inference/cpu.lock
COPY inference inference
RUN uv pip install --python .venv/bin/python --no-deps ./inference

FROM python:3.11-slim
# vLLM's kernels for CPUs are linked with it.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install -y --no-install-recommends libnuma1 && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 10001 --home-dir /var/lib/playhead --create-home --shell /usr/sbin/nologin playhead
COPY --from=build --chown=root:root /app/.venv /app/.venv
ENV PATH=/app/.venv/bin:$PATH PYTHONSAFEPATH=1 VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1 \
    VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=2 OMP_DYNAMIC=FALSE
USER 10001
WORKDIR /var/lib/playhead
EXPOSE 9000
STOPSIGNAL SIGTERM
# It listens only when its check has held, so being reachable is being proved.
HEALTHCHECK --interval=10s --timeout=5s --start-period=600s \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:9000/batch_invariance', timeout=4)"]
ENTRYPOINT ["python", "-m", "playhead_inference", "--host", "0.0.0.0", "--port", "9000", "--dtype", "float32", "--enforce-eager"]
CMD ["--model", "/model", "--served-model-name", "model", "--max-model-len", "4096"]
