# The store server: spools in, Postgres and REST out. It carries no mitmproxy and no embedded Postgres. Build from the root:
#   docker build -f deploy/store.Dockerfile -t playhead-store .
FROM python:3.13-slim AS build
COPY --from=ghcr.io/astral-sh/uv:0.13.9 /uv /usr/local/bin/uv
ENV UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy UV_PYTHON_DOWNLOADS=never
WORKDIR /app
COPY pyproject.toml uv.lock README.md LICENSE ./
RUN uv sync --frozen --no-default-groups --extra store --no-install-project
COPY calls calls
COPY store store
COPY replay replay
COPY proxy proxy
RUN uv sync --frozen --no-default-groups --extra store --no-editable

FROM python:3.13-slim
RUN useradd --uid 10001 --home-dir /var/lib/playhead --create-home --shell /usr/sbin/nologin playhead
COPY --from=build --chown=root:root /app/.venv /app/.venv
ENV PATH=/app/.venv/bin:$PATH PLAYHEAD_DATA=/var/lib/playhead PLAYHEAD_PART=store
USER 10001
WORKDIR /var/lib/playhead
VOLUME /var/lib/playhead
EXPOSE 8081
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8081/healthz', timeout=2).close()"]
ENTRYPOINT ["playhead"]
CMD ["up"]
